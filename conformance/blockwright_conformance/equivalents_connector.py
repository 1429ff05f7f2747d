"""Mutants of the connector's bookkeeping that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

GROUPS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "read only once `failed` has written it",
        "offload/breaker.py CircuitBreaker.__init__",
        "self._until = 0.0",
        ("pass",),
    ),
    (
        "a shortcut: the way through the lock answers the same",
        "offload/breaker.py CircuitBreaker.may_try",
        "return True",
        ("pass",),
    ),
    (
        "asked again only for what another thread may have done meanwhile",
        "offload/breaker.py CircuitBreaker.may_try",
        "if self._in_a_row >= self._most and self._clock() < self._until",
        ("if self._clock() < self._until",),
    ),
    (
        "a shortcut: the way through the lock answers the same",
        "offload/breaker.py CircuitBreaker.succeeded",
        "return False",
        ("pass",),
    ),
    (
        "they differ in the very instant in which the time is over",
        "offload/connector.py OffloadingConnector.drain",
        "while not self.is_idle and time.monotonic() < end",
        ("while not self.is_idle and time.monotonic() <= end",),
    ),
    (
        "counts of what was written are never negative",
        "offload/disk_slots.py SlotTable.recover",
        "self._used[slot] = max(record.written, used if written == record.written else 0)",
        ("self._used[slot] = max(record.written, used if written == record.written else -1)",),
    ),
    (
        "requests without a block size come no further than the connector and the stores",
        "offload/hits.py GroupBlocks.__init__",
        "self._units = self.tokens // (request.block_size or 1)",
        (
            "self._units = self.tokens // request.block_size",
            "self._units = self.tokens // (request.block_size or 2)",
            "self._units = self.tokens // (request.block_size or 0)",
        ),
    ),
    (
        "without keys the run begins where the device's own blocks end at the latest, which is the greater",
        "offload/hits.py _Probe._leading_run",
        "run = self._chain.lookup(keys) if keys else 0",
        ("run = self._chain.lookup(keys) if keys else -1",),
    ),
    (
        "both ranges are empty",
        "offload/hits.py _Probe.needed",
        "indices = range(first // per_block, -(-stop // per_block)) if first < stop else range(0)",
        ("indices = range(first // per_block, -(-stop // per_block)) if first < stop else range(-1)",),
    ),
    (
        "no length is this number, or it is one that cannot be gained",
        "offload/hits.py external_hit",
        "length, before = ((request.num_tokens - 1) // alignment * alignment, -1)",
        (
            "length, before = ((request.num_tokens - 1) // alignment * alignment, -2)",
            "length, before = ((request.num_tokens - 1) // alignment * alignment, -0)",
        ),
    ),
    (
        "probes never make a length greater: one that gains nothing is still refused below",
        "offload/hits.py external_hit",
        "while length != before and length > num_computed",
        (
            "while length != before",
            "while length != before and length >= num_computed",
        ),
    ),
    (
        "for a length that gains nothing no block is needed, which is the same answer",
        "offload/hits.py external_hit",
        "if length <= num_computed",
        ("if length < num_computed",),
    ),
    (
        "they differ only where torch finds a GPU",
        "offload/host_pool.py HostPool.__init__",
        "pinned = torch.cuda.is_available() if pin_memory is None else pin_memory",
        ("pinned = torch.cuda.is_available() if pin_memory is not None else pin_memory",),
    ),
    (
        "there is a tensor at least, and it is a byte wide or more",
        "offload/host_pool.py _offsets",
        "offsets, end, widest = ([], 0, 1)",
        ("offsets, end, widest = ([], 0, 0)",),
    ),
    (
        "without readers there is nothing below one",
        "offload/shared_manager.py SharedStoreManager.check",
        "if min(self._readers.values(), default=1) < 1",
        ("if min(self._readers.values(), default=2) < 1",),
    ),
    (
        "what is published is full of tokens that are known",
        "offload/stores.py Stores._store_request",
        "done = min(done, request.num_tokens)",
        ("pass",),
    ),
    (
        "a shortcut: what follows would walk over no block",
        "offload/stores.py Stores._store_request",
        "if all((stop <= start for start, stop in zip(starts, stops, strict=True)))",
        ("if all((stop < start for start, stop in zip(starts, stops, strict=True)))",),
    ),
    (
        "a shortcut: what follows would walk over no block",
        "offload/stores.py Stores._store_request",
        "return",
        ("pass #2",),
    ),
    (
        "the greater of two",
        "offload/stores.py Stores._store_request",
        "self._next[name] = [max(start, stop) for start, stop in zip(starts, stops, strict=True)]",
        ("self._next[name] = [max(start, stop) for start, stop in zip(stops, starts, strict=True)]",),
    ),
    (
        "the null block is never published",
        "offload/stores.py Stores._are_published",
        "return all((block != 0 and pool.is_published(block) for block in parts)) and pool.block_key(parts[-1]) == key",
        (
            "return all((pool.is_published(block) for block in parts)) and pool.block_key(parts[-1]) == key",
            "return all((block != -1 and pool.is_published(block) for block in parts)) and "
            "pool.block_key(parts[-1]) == key",
        ),
    ),
    (
        "behind the last block nothing is left to store, and an empty store starts none: all count as refused",
        "offload/stores.py Stores._store",
        "while start is None and first < len(keys) - 1",
        (
            "while start is None",
            "while start is None and first <= len(keys) - 1",
            "while start is None and first < len(keys) + 1",
            "while start is None and first < len(keys) - 0",
        ),
    ),
    (
        "a function that ends returns None",
        "offload/worker.py OffloadingHandler.close",
        "return",
        ("pass",),
    ),
    (
        "None is as false",
        "offload/worker.py OffloadingWorker._begun",
        "return False",
        ("pass #3",),
    ),
    (
        "a transfer with a part that failed has failed, and `Counters.end` counts the bytes of those alone that came "
        "through",
        "offload/jobs.py JobQueue._work_once",
        "moved, failed = (0, False)",
        (
            "moved, failed = (1, False)",
            "moved, failed = (-1, False)",
        ),
    ),
    (
        "the last entry is published, or its key would not be this one; entries are looked at for publication in order "
        "(PUB-2), so that one before it which is not null is published, too",
        "offload/stores.py Stores._are_published",
        "return all((block != 0 and pool.is_published(block) for block in parts)) and pool.block_key(parts[-1]) == key",
        (
            "return all((block != 0 or pool.is_published(block) for block in parts)) and pool.block_key(parts[-1]) "
            "== key",
            "return all((block != 0 for block in parts)) and pool.block_key(parts[-1]) == key",
        ),
    ),
    (
        "what is published holds what it is published as (PUB-1), and the entries of a table hold the tokens of its "
        "request (READ-1), of which none ever changes: the key can be no other one",
        "offload/stores.py Stores._are_published",
        "return all((block != 0 and pool.is_published(block) for block in parts)) and pool.block_key(parts[-1]) == key",
        ("return all((block != 0 and pool.is_published(block) for block in parts))",),
    ),
)
"""The reason, the function, the statement, and what may stand there instead."""

EQUIVALENT: dict[str, str] = {
    f"{where}: {before} -> {after}": reason for reason, where, before, changes in GROUPS for after in changes
}

RULES: tuple[Rule, ...] = (
    Rule(
        r"offload/\S+ \S+: (?P<one>.*)strict=True(?P<two>.*) -> (?P=one)strict=False(?P=two)( #\d+)?",
        "both lists have an entry for each group, block or tensor: they are of one length, as `strict` says",
    ),
)
"""Families of such mutants."""
