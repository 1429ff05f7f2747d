"""Mutants of running requests that nothing can tell from the original, each with the reason."""

RUNNING: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        (
            "states are taken all at once, to an empty vector, and never written one by one "
            "(`GroupTables.take_states`): both tables replace the vector, none changes it"
        ),
        (
            (
                "core/tables.py GroupTable.copy: twin = GroupTable(self.blocks[:], self.num_published, "
                "self.num_trimmed, self.num_covered, self.states[:]) -> twin = GroupTable(self.blocks[:], "
                "self.num_published, self.num_trimmed, self.num_covered, self.states)"
            ),
        ),
    ),
    (
        (
            "`_vacate`, the only caller, closes the table: nobody reads its vector again, and no other vector "
            "shares its buffer, since whatever is handed out is sliced or copied"
        ),
        (
            (
                "core/steps.py held_blocks: return extend(table.blocks[:], table.states) -> return "
                "extend(table.blocks, table.states)"
            ),
        ),
    ),
    (
        (
            "a batch's number is only compared with that of an earlier one, and 0 stands for no batch: the first "
            "has 1 or 2"
        ),
        ("core/running.py RunningRequests.__init__: self._batches: i64 = 0 -> self._batches: i64 = 1",),
    ),
    (
        (
            "`settled` is read by `_count_running` and by `_act` before `_trim`, both of requests that run; a plan "
            "made before a request ran is stale once it runs (`_moment`)"
        ),
        ("core/running.py RunningRequests._fits: ask.settled = ask.begin -> pass",),
    ),
    (
        (
            "`most` above the blocks of the pool comes to `missing` above 0: a hit's blocks are distinct, so those "
            "of them that are not free, and the free blocks, are no more than the pool has; the last line of "
            "`_fits` then says no as well, and `plan` compares `most` itself"
        ),
        (
            (
                "core/running.py RunningRequests._fits: if ask.most > self.block_pool.num_blocks - 1 -> if "
                "ask.most > self.block_pool.num_blocks + 1"
            ),
            (
                "core/running.py RunningRequests._fits: if ask.most > self.block_pool.num_blocks - 1 -> if "
                "ask.most > self.block_pool.num_blocks - 0"
            ),
            "core/running.py RunningRequests._fits: return False -> pass",
        ),
    ),
    (
        "a larger bound: the fast path is taken less often, and the exact count below gives the same answer",
        (
            (
                "core/running.py RunningRequests._fits: most = self._num_groups * (max(0, ask.slots - "
                "tables.num_written) // self._least_size + 2) -> most = self._num_groups * (max(0, ask.slots - "
                "tables.num_written) * self._least_size + 2)"
            ),
        ),
    ),
    (
        (
            "in an idle pool no hit is held by others, so that `most` is at least what is demanded: if that is one "
            "more than the pool has, `_fits` refuses it by `most`, and `plan` says `Never`"
        ),
        ("core/running.py RunningRequests._count_new: spare = 0 -> spare = -1",),
    ),
    (
        "a running request has its states since it was admitted or forked: `take_states` does nothing",
        ("core/running.py RunningRequests._act: is_new = False -> is_new = True",),
    ),
    (
        "new tokens are at least one: a step that ends at `trim_at` or below begins below it, where nothing dies",
        (
            (
                "core/running.py RunningRequests._act: tables.quiet = min(quiet, tables.trim_at - 1) -> "
                "tables.quiet = min(quiet, tables.trim_at - 0)"
            ),
        ),
    ),
    (
        "where the counts are equal the first condition has said so",
        (
            (
                "core/running.py RunningRequests._is_quiet: if given != int(tables.num_written) and (not "
                "int(tables.num_certain) <= given < int(tables.num_written)) -> if given != "
                "int(tables.num_written) and (not int(tables.num_certain) <= given <= int(tables.num_written))"
            ),
        ),
    ),
    (
        (
            "`quiet` says only up to where a step surely changes nothing but counts (`quiet_slots`, `_is_quiet`): "
            "where it is lower, or the question is answered no, the step takes the long way through `_check_ask`, "
            "`_fits` and `_act`, which counts the same (`_count_step`) and trims, grows and publishes nothing"
        ),
        ("core/running.py RunningRequests._act: quiet = 0 -> quiet = -1",),
    ),
    (
        "the last group's end is written twice, with the same number",
        ("core/running.py RunningRequests._trim: at: i64 = 0 -> at: i64 = -1",),
    ),
    (
        (
            "`trim_at` only says below which count nothing dies: where it is lower, `_trim` asks each group, which "
            "finds no dead entry (`GroupTables.trim` returns where `stop <= start`), and writes the same ends"
        ),
        (
            "core/running.py RunningRequests._trim: return -> pass",
            "core/forks.py ForkedRequests.fork: new.trim_at = tables.trim_at -> pass",
        ),
    ),
    (
        (
            "`_held` is a short way to what `_look_up` finds by name: the same tables, of the same manager. "
            "`tables.request` is then the request that is named, which it is already: a copy of a request is for a "
            "copied manager (`Request.copy`), whose tables have another owner and are looked up either way"
        ),
        (
            "core/running.py RunningRequests._admit: request._held = tables -> pass",
            "core/running.py RunningRequests._tables_of: return held -> pass",
            "core/forks.py ForkedRequests.fork: child._held = new -> pass",
        ),
    ),
    (
        "`_vacate` has taken the owner off the tables, so that `_tables_of` passes them over",
        ("core/timed.py TimedRequests.finish_load: request._held = None -> pass",),
    ),
    (
        "`publish` asks the same and returns (`stop <= start`); keys were checked when the request was admitted",
        (
            (
                "core/running.py RunningRequests._publish: if manager.publishes(table, count) and "
                "request._block_size > 0 -> if request._block_size > 0"
            ),
        ),
    ),
    (
        "`RequestTables` is the only subclass of `Held`: the condition tells the compiler the type",
        (
            (
                "core/running.py RunningRequests._tables_of: if held is not None and held.owner == self._owner and "
                "isinstance(held, RequestTables) -> if held is not None and held.owner == self._owner"
            ),
        ),
    ),
    (
        "entries that cover -1 tokens are at most 0 (`entries_for`), and any table has as many",
        ("core/running.py RunningRequests._covered: return 0 -> return -1",),
    ),
    (
        "block 0 is no holder's: `count_blocks` passes it over",
        (
            (
                "core/running.py RunningRequests.check: alone = [block for block in range(1, pool.num_blocks) if "
                "sharers[block] > 1 and (not keyed[block])] -> alone = [block for block in range(0, "
                "pool.num_blocks) if sharers[block] > 1 and (not keyed[block])]"
            ),
        ),
    ),
    (
        "every place of the vector is written by the loop, or an error is raised",
        (
            (
                "core/timed.py TimedRequests._rejections: rejected = vec[i64]([0] * len(done.tables)) -> rejected "
                "= vec[i64]([1] * len(done.tables))"
            ),
            (
                "core/timed.py TimedRequests._rejections: rejected = vec[i64]([0] * len(done.tables)) -> rejected "
                "= vec[i64]([-1] * len(done.tables))"
            ),
        ),
    ),
    (
        (
            "`num_drafts` is read of recurrent layers only. With them no later step is given slots while one with "
            "drafts is in flight (`_check_step`): where a draft is taken back here the request's last step is the "
            "one that is settled, whose number is below all in flight; so the condition after `and` holds, and "
            "without drafts taken back 0 is subtracted"
        ),
        (
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back > 0 or (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number)"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if len(self._steps) == 0 or tables.last_step < self._steps[0].number"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back > 0"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back >= 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number)"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back > -1 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number)"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back > 0 and (len(self._steps) == 0 or tables.last_step <= "
                "self._steps[0].number)"
            ),
            (
                "core/timed.py TimedRequests._land: if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[0].number) -> if back > 0 and (len(self._steps) == 0 or tables.last_step < "
                "self._steps[-1].number)"
            ),
        ),
    ),
    (
        "a request that is forked has computed a token, so that its next step ends at 2 or beyond",
        ("core/forks.py ForkedRequests.fork: each.quiet = 0 -> each.quiet = 1",),
    ),
    (
        (
            "with room for no draft a recurrent layer computes known tokens only, all of them certain, and "
            "`num_drafts` is 0: what `certain <= computed <= written` leaves is `written`"
        ),
        (
            (
                "core/forks.py ForkedRequests._check_fork: if self._most_drafts >= 0 and computed != "
                "int(tables.num_written - tables.num_drafts) -> if self._most_drafts > 0 and computed != "
                "int(tables.num_written - tables.num_drafts)"
            ),
            (
                "core/forks.py ForkedRequests._check_fork: if self._most_drafts >= 0 and computed != "
                "int(tables.num_written - tables.num_drafts) -> if self._most_drafts >= 1 and computed != "
                "int(tables.num_written - tables.num_drafts)"
            ),
        ),
    ),
)
"""Families of equivalent mutants: a reason, and their names."""
