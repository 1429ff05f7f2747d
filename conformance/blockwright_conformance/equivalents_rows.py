"""Mutants of a worker's rows that nothing can tell from the original, each with the reason."""

LISTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        (
            "without a shift (any negative number) `entry` divides, which comes to the same; `block_size "
            "& block_size - 2` is 0 for the powers of two from 2 on alone, and a block of 1 token then "
            "has no shift; the others are never true"
        ),
        (
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size | block_size - 1 == 0 else -1"
            ),
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size & block_size - 2 == 0 else -1"
            ),
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size & block_size - 0 == 0 else -1"
            ),
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size & block_size - 1 == 1 else -1"
            ),
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size & block_size - 1 == -1 else -1"
            ),
            (
                "core/rows.py GroupRows.__init__: self.shift: i64 = block_size.bit_length() - 1 if "
                "block_size & block_size - 1 == 0 else -1 -> self.shift: i64 = block_size.bit_length() - "
                "1 if block_size & block_size - 1 == 0 else -2"
            ),
        ),
    ),
    (
        "`TableRows.__init__` sets it for every group",
        (
            "core/rows.py GroupRows.__init__: self.first: i64 = 0 -> self.first: i64 = 1",
            "core/rows.py GroupRows.__init__: self.first: i64 = 0 -> self.first: i64 = -1",
        ),
    ),
    (
        ("set by `TableReplica.__init__` where `has_slots`, and read there alone (`_fill_slots`, `Views`)"),
        (
            "core/rows.py GroupRows.__init__: self.slots: i64 = 0 -> self.slots: i64 = 1",
            "core/rows.py GroupRows.__init__: self.slots: i64 = 0 -> self.slots: i64 = -1",
        ),
    ),
    (
        "set where `is_recurrent`, and read there alone (`_check_states`, `_fill_states`, `Views`)",
        (
            "core/rows.py GroupRows.__init__: self.reads: i64 = 0 -> self.reads: i64 = 1",
            "core/rows.py GroupRows.__init__: self.reads: i64 = 0 -> self.reads: i64 = -1",
            "core/rows.py GroupRows.__init__: self.writes: i64 = 0 -> self.writes: i64 = 1",
            "core/rows.py GroupRows.__init__: self.writes: i64 = 0 -> self.writes: i64 = -1",
            "core/rows.py GroupRows.__init__: self.record: i64 = 0 -> self.record: i64 = 1",
            "core/rows.py GroupRows.__init__: self.record: i64 = 0 -> self.record: i64 = -1",
        ),
    ),
    (
        "a position is shifted or divided by the block size: both are its entry",
        (
            "core/rows.py GroupRows.entry: if self.shift >= 0 -> if self.shift > 0",
            "core/rows.py GroupRows.entry: if self.shift >= 0 -> if self.shift >= 1",
            "core/rows.py GroupRows.entry: return position >> self.shift -> pass",
        ),
    ),
    (
        "one field more in each record: nobody reads it, and rows that change places take it along",
        (("core/rows.py TableRows.__init__: record += 2 + rows.num_states -> record += 3 + rows.num_states"),),
    ),
    (
        "`_applied` only bounds numbers above 0 from below, for which 0 and -1 are the same",
        (
            "core/rows.py TableRows.__init__: self._applied: i64 = 0 -> self._applied: i64 = -1",
            "core/rows.py TableRows.remove_request: self._applied = 0 -> self._applied = -1",
            "core/replica.py TableReplica.step: number: i64 = 0 -> number: i64 = -1",
        ),
    ),
    (
        ("no step begins at a negative position (`_check_counts`), and at 0 `_state_read` returns before it compares"),
        (
            (
                "core/rows.py TableRows.add_request: self._set_record(row, BEGIN, -1) -> "
                "self._set_record(row, BEGIN, -2)"
            ),
            (
                "core/rows.py TableRows.add_request: self._set_record(row, BEGIN, -1) -> "
                "self._set_record(row, BEGIN, -0)"
            ),
        ),
    ),
    (
        (
            "`_swap` treats both rows alike; only the order in which `changes` lists the entries differs,"
            " which it leaves open"
        ),
        (
            "core/rows.py TableRows.swap_rows: self._swap(first, second) -> self._swap(second, first)",
            "core/rows.py TableRows.compact: self._swap(last, row) -> self._swap(row, last)",
            "core/replica.py TableReplica._place: self._swap(i, row) -> self._swap(row, i)",
        ),
    ),
    (
        ("a row that is exchanged with itself stays as it is: `_put` notes nothing where the value is the same"),
        ("core/rows.py TableRows._swap: return -> pass",),
    ),
    (
        "the `operator.index` of an integer is that integer",
        ("core/rows.py whole: return given -> pass",),
    ),
    (
        "the end of the function returns None as well",
        ("core/rows.py whole: return None -> pass #2",),
    ),
    (
        ("a chunk of any length above 0 will do: it is cut to what is missing, and for a count of 0 not used"),
        (
            (
                "core/rows.py zeros32: chunk = vec[i32]([0] * min(count, 4096)) -> chunk = vec[i32]([0] *"
                " max(count, 4096))"
            ),
            (
                "core/rows.py zeros32: chunk = vec[i32]([0] * min(count, 4096)) -> chunk = vec[i32]([0] *"
                " min(count, 4097))"
            ),
            (
                "core/rows.py zeros32: chunk = vec[i32]([0] * min(count, 4096)) -> chunk = vec[i32]([0] *"
                " min(count, 4095))"
            ),
            (
                "core/rows.py zeros64: chunk = vec[i64]([0] * min(count, 4096)) -> chunk = vec[i64]([0] *"
                " max(count, 4096))"
            ),
            (
                "core/rows.py zeros64: chunk = vec[i64]([0] * min(count, 4096)) -> chunk = vec[i64]([0] *"
                " min(count, 4097))"
            ),
            (
                "core/rows.py zeros64: chunk = vec[i64]([0] * min(count, 4096)) -> chunk = vec[i64]([0] *"
                " min(count, 4095))"
            ),
        ),
    ),
    (
        "zeros before zeros are as many zeros as zeros behind them",
        (
            (
                "core/rows.py zeros32: made = extend(made, chunk[:count - i64(len(made))]) -> made = "
                "extend(chunk[:count - i64(len(made))], made)"
            ),
            (
                "core/rows.py zeros64: made = extend(made, chunk[:count - i64(len(made))]) -> made = "
                "extend(chunk[:count - i64(len(made))], made)"
            ),
        ),
    ),
    (
        (
            "the numbers of calls are only compared with the marks that the same call made; they must "
            "differ, and none be 0"
        ),
        (
            "core/replica.py TableReplica.__init__: self._calls: i64 = 0 -> self._calls: i64 = 1",
            "core/replica.py TableReplica._locate: self._calls += 1 -> self._calls += 2",
            "core/replica.py TableReplica._locate: self._calls += 1 -> self._calls -= 1",
            "core/replica.py TableReplica._place: self._named[i] = self._calls -> pass",
        ),
    ),
    (
        "`start == stop` returned before",
        (
            (
                "core/replica.py TableReplica._append: if start < 0 or start > stop or stop > "
                "i64(len(ids)) or (length + stop - start > group.width) -> if start < 0 or start >= stop "
                "or stop > i64(len(ids)) or (length + stop - start > group.width)"
            ),
        ),
    ),
    (
        (
            "BEGIN and CERTAIN are read in `_state_read` alone, of recurrent groups; where there are "
            "none, the size is RECORD"
        ),
        (
            ("core/replica.py TableReplica.step: while i < size and self._record_size > RECORD -> while i < size"),
            (
                "core/replica.py TableReplica.step: while i < size and self._record_size > RECORD -> "
                "while i < size and self._record_size >= RECORD"
            ),
        ),
    ),
    (
        ("a step with new tokens has one at least that is no draft (`_check_counts`), so that `certain` is above 0"),
        (
            (
                "core/replica.py TableReplica._check_states: if certain > 0 and "
                "self.tables[self._state_index(group, row, certain)] == 0 -> if "
                "self.tables[self._state_index(group, row, certain)] == 0"
            ),
            (
                "core/replica.py TableReplica._check_states: if certain > 0 and "
                "self.tables[self._state_index(group, row, certain)] == 0 -> if certain >= 0 and "
                "self.tables[self._state_index(group, row, certain)] == 0"
            ),
            (
                "core/replica.py TableReplica._check_states: if certain > 0 and "
                "self.tables[self._state_index(group, row, certain)] == 0 -> if certain > -1 and "
                "self.tables[self._state_index(group, row, certain)] == 0"
            ),
            "core/replica.py TableReplica._fill_states: if certain > 0 -> if certain >= 0",
            "core/replica.py TableReplica._fill_states: if certain > 0 -> if certain > -1",
        ),
    ),
    (
        (
            "the mark of row `row`, which is above i, is read when that row's turn comes: taken for one "
            "of this step, it has `_at` written for request i, whose turn is over; 1 and -1 are no "
            "numbers of this call, but for 1 in the first"
        ),
        (
            "core/replica.py TableReplica._place: self._named[row] = 0 -> pass",
            "core/replica.py TableReplica._place: self._named[row] = 0 -> self._named[row] = 1",
            "core/replica.py TableReplica._place: self._named[row] = 0 -> self._named[row] = -1",
        ),
    ),
    (
        ("request i and row i have had their turn: `_place` reads only those behind, and `_locate` writes all anew"),
        (
            "core/replica.py TableReplica._place: self._at[i] = i -> pass",
            "core/replica.py TableReplica._place: self._order[i] = i -> pass",
        ),
    ),
    (
        "nothing else is ever written there, and the vector began as zeros",
        ("core/replica.py TableReplica._fill: counts[0] = 0 -> pass",),
    ),
    (
        (
            "what is not of the step: counts[1] is written below if there is a request, the last place by"
            " what follows if the last row is of the step; `padded` writes those behind the step itself"
        ),
        (
            "core/replica.py TableReplica._fill: counts[0] = 0 -> counts[1] = 0",
            "core/replica.py TableReplica._fill: counts[0] = 0 -> counts[-1] = 0",
        ),
    ),
    (
        "a hint: the vector grows with what is appended, whatever its capacity",
        (
            (
                "core/replica.py TableReplica.slots: held: i64 = min(end, length * group.block_size) -> "
                "held: i64 = min(end, length // group.block_size)"
            ),
            "core/replica.py TableReplica.slots: if held > position -> if held >= position",
            "core/replica.py TableReplica.slots: found = vec[i64](capacity=held - position) -> pass",
        ),
    ),
    (
        "a list or tuple does not stand for an integer: `whole` gives None",
        (
            (
                "core/replica.py _count: if not isinstance(given, (list, tuple)) and whole(given) is not "
                "None -> if whole(given) is not None"
            ),
        ),
    ),
    (
        "a short way: what it leaves out goes the long way, to the same count",
        (
            (
                "core/replica.py _checked_count: if isinstance(given, int) and (not isinstance(given, "
                "bool)) and (0 <= given <= MAX_LENGTH) -> if isinstance(given, int) and (not "
                "isinstance(given, bool)) and (0 < given <= MAX_LENGTH)"
            ),
            (
                "core/replica.py _checked_count: if isinstance(given, int) and (not isinstance(given, "
                "bool)) and (0 <= given <= MAX_LENGTH) -> if isinstance(given, int) and (not "
                "isinstance(given, bool)) and (0 <= given < MAX_LENGTH)"
            ),
            (
                "core/replica.py _checked_count: if isinstance(given, int) and (not isinstance(given, "
                "bool)) and (0 <= given <= MAX_LENGTH) -> if isinstance(given, int) and (not "
                "isinstance(given, bool)) and (1 <= given <= MAX_LENGTH)"
            ),
            "core/replica.py _checked_count: return given -> pass",
        ),
    ),
)
"""Families of equivalent mutants: a reason, and their names."""

EQUIVALENT: dict[str, str] = {key: reason for reason, keys in LISTED for key in keys}
