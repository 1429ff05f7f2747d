"""A trial of managers of one kind that an engine calls by their own names, beside the manager of all kinds.

ONE-1     a manager of one kind, called by its own names, does what the manager of all kinds does
"""

from collections.abc import Iterator
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import MAX_LENGTH, manager_of, shape_of, spec_of

STEPS = 40
KINDS = ("full", "sliding", "chunked", "mamba")


class Pair:
    """A manager of all kinds with one layer, and one of that kind over a pool of its own."""

    def __init__(self, package: ModuleType, kind: str, size: int, caching: bool) -> None:
        self.package, self.caching, self.size = package, caching, size
        self.whole = manager_of(package, kind, size, 9, enable_caching=caching)
        self.spec = spec_of(package, kind, size)
        self.pool = package.BlockPool(9, caching)
        make: Any = package.core.managers.get_manager_for_kv_cache_spec
        self.alone = make(self.spec, self.pool, 0)
        self.running: dict[str, tuple[Any, Any]] = {}

    def admit(self, name: str, tokens: list[int]) -> None:
        """Look a request up on both sides, and give it slots for all its tokens."""
        requests = [self.package.Request(name, tokens, self.size) for _ in range(2)]
        hit, length = self.whole.get_computed_blocks(requests[0])
        hashes = requests[1].block_hashes
        (found,) = self.alone.find_longest_cache_hit(hashes, len(tokens) - 1, [0], self.pool, self.spec)
        assert [each.block_id for each in found] == list(hit.ids[0]), f"hit {found}, expected {hit}"
        free = self.pool.get_num_free_blocks()
        missing = self.alone.get_num_blocks_to_allocate(name, len(tokens), found)
        given = self.whole.allocate_slots(requests[0], len(tokens) - length, length, hit)
        assert (given is None) == (missing > free), f"{missing} missing of {free} free, {given} given"
        if given is not None:
            self.alone.save_new_computed_blocks(name, found)
            new = self.alone.allocate_new_blocks(name, len(tokens))
            assert [each.block_id for each in new] == list(given.ids[0]), f"new {new}, expected {given}"
            if self.caching:
                self.alone.cache_blocks(requests[1], len(tokens))
            for request in requests:
                request.num_computed_tokens = len(tokens)
            self.whole.new_step_starts()
            self.running[name] = (requests[0], requests[1])

    def grow(self, name: str) -> None:
        """Give a request a token and a slot for it."""
        requests = self.running[name]
        for request in requests:
            request.append_output_token_ids([0])
        computed = requests[0].num_computed_tokens
        twin = self.whole.copy()
        given = self.whole.allocate_slots(requests[0], 1)
        if given is None:
            self.whole = twin
            self.end(name)
            return
        self.alone.save_new_computed_blocks(name, ())
        self.alone.remove_skipped_blocks(name, computed)
        new = self.alone.allocate_new_blocks(name, computed + 1)
        assert [each.block_id for each in new] == list(given.ids[0]), f"new {new}, expected {given}"
        if self.caching:
            self.alone.cache_blocks(requests[1], computed + 1)
        for request in requests:
            request.num_computed_tokens = computed + 1
        self.whole.new_step_starts()

    def end(self, name: str) -> None:
        """End a request on both sides."""
        request, _ = self.running.pop(name)
        self.whole.free(request)
        self.alone.free(name)

    def differ(self) -> str:
        """Say what differs."""
        tables, *wanted = shape_of(self.whole)
        pool = self.pool
        found = [pool.free_block_ids(), pool.ref_counts(), pool.block_keys(), pool.get_num_free_blocks()]
        if wanted != found:
            return f"expected {wanted}, found {found}"
        assert isinstance(tables, list)
        own = {name: [view.block_id for view in views] for name, views in self.alone.req_to_blocks.items()}
        if own != {name: held[0] for name, held, _ in tables}:
            return f"expected the tables {tables}, found {own}"
        if self.caching and self.alone.num_cached_block != {name: told[0] for name, _, told in tables}:
            return f"expected {tables} to be published, found {self.alone.num_cached_block}"
        return ""


def alone(package: ModuleType) -> Iterator[Fault]:
    """Make the same calls on both (ONE-1), and wrong ones (REFUSE-2)."""
    for kind, size, caching in product(KINDS, (1, 2), (True, False)):
        if kind == "chunked" and size == 1:
            continue
        rearm()
        random, pair = Random(f"{kind} {size}"), Pair(package, kind, size, caching)
        for step in range(STEPS):
            name = f"r{random.randrange(3)}"
            try:
                if name not in pair.running:
                    pair.admit(name, [random.randrange(2)] * random.randint(1, 6))
                elif random.random() < 0.3 or pair.running[name][0].num_tokens >= MAX_LENGTH - 1:
                    pair.end(name)
                else:
                    pair.grow(name)
                wrong = pair.differ()
            except AssertionError as error:
                wrong = str(error)
            if wrong:
                yield Fault("ONE-1", f"{kind}, block {size}, caching {caching}, step {step}: {wrong}", step + 1)
                return
    yield from refused(package)
    yield from told(package)


def refused(package: ModuleType) -> Iterator[Fault]:
    """Make wrong calls on managers of one kind; nothing must change."""
    errors: Any = package.errors
    for kind in ("full", "sliding", "mamba"):
        pair = Pair(package, kind, 1, True)
        pair.admit("r", [0] * 4)
        pair.admit("gone", [1] * 4)
        pair.end("gone")
        fresh, alone = package.Request("r", [0] * 4, 1), pair.alone
        hit = alone.find_longest_cache_hit(package.Request("x", [1] * 5, 1).block_hashes, 4, [0], pair.pool, pair.spec)
        bare = [0] * len(hit[0])
        finding = alone.find_longest_cache_hit
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (alone.allocate_new_blocks, ("", 1)),
            (alone.allocate_new_blocks, ("new", -1)),
            (alone.allocate_new_blocks, ("new", True)),
            (alone.allocate_new_blocks, ("new", 2**31)),
            (alone.allocate_new_blocks, ("new", 40 if kind != "mamba" else 2**31)),
            (alone.save_new_computed_blocks, ("r", hit[0])),
            (alone.save_new_computed_blocks, ("", hit[0])),
            (alone.save_new_computed_blocks, ("new", bare)),
            (alone.save_new_computed_blocks, ("new", [9])),
            (alone.save_new_computed_blocks, ("new", [True])),
            (alone.cache_blocks, (fresh, 5)),
            (alone.cache_blocks, (fresh, -1)),
            (alone.cache_blocks, (package.Request("stranger", [0], 1), 1)),
            (alone.cache_blocks, (package.Request("r", [0] * 9, 1), 5)),
            (alone.remove_skipped_blocks, ("r", 5)),
            (alone.remove_skipped_blocks, ("r", -1)),
            (alone.get_num_common_prefix_blocks, ("stranger", 1)),
            (alone.get_num_blocks_to_allocate, ("r", -1)),
            (alone.get_num_blocks_to_allocate, ("r", 4, [9])),
            (finding, (fresh.block_hashes, 4, [], pair.pool, pair.spec)),
            (finding, ([b"short"], 4, [0], pair.pool, pair.spec)),
            (finding, (fresh.block_hashes, -1, [0], pair.pool, pair.spec)),
            (finding, (fresh.block_hashes, 4, [-1], pair.pool, pair.spec)),
            (finding, (fresh.block_hashes, 4, [0], package.BlockPool(4, verify_tokens=True), pair.spec)),
            (finding, (fresh.block_hashes, 4, [0], pair.pool, spec_of(package, "cross", 1))),
            (finding, (fresh.block_hashes, 4, [0], pair.pool, spec_of(package, "chunked", 2), True)),
        ]
        for number, (call, arguments) in enumerate(calls):
            try:
                call(*arguments)
            except errors.BlockwrightError:
                pass
            else:
                yield Fault("REFUSE-2", f"{kind}, wrong call {number}: {call.__name__}{arguments} is taken", 3)
            if wrong := pair.differ():
                yield Fault("REFUSE-2", f"{kind}, wrong call {number} changed something: {wrong}", 3)
                return


def told(package: ModuleType) -> Iterator[Fault]:
    """Ask managers of one kind for what they are, and an encoder's for what it does not do."""
    pool, make = package.BlockPool(9), package.core.managers.get_manager_for_kv_cache_spec
    ranks = make(spec_of(package, "full", 2), pool, 1, 3)
    full, sliding, local = (make(spec_of(package, kind, 2), pool, 1) for kind in ("full", "sliding", "chunked"))
    encoder = make(spec_of(package, "cross", 2), pool, 0)
    wide, narrow = package.core.managers.SlidingWindowManager, package.core.managers.ChunkedLocalAttentionManager
    found = (ranks.block_size, full.block_size, sliding.sliding_window, local.attention_chunk_size, full.table_of("r"))
    if found != (6, 2, 2, 4, None) or not isinstance(sliding, wide) or not isinstance(local, narrow):
        yield Fault("SHOWN-1", f"managers of one kind tell {found}", 1)
    if [each.block_id for each in ranks.allocate_new_blocks("r", 13)] != [1, 2, 3] or ranks.allocate_new_blocks(
        "r", 13
    ):
        yield Fault("ONE-1", "13 slots in blocks of 6", 2)
    if ranks.table_of("r") is None or ranks.copy(pool.copy()).block_size != 6:
        yield Fault("SHOWN-1", "a copy of a manager of three ranks has other blocks", 2)
    encoder.save_new_computed_blocks("r", ())
    if encoder.table_of("r") is not None:
        yield Fault("ONE-1", "an encoder without hits has a table", 1)
    for call, arguments in (
        (encoder.save_new_computed_blocks, ("r", [1])),
        (encoder.cache_blocks, (package.Request("r", [0], 2), 1)),
    ):
        try:
            call(*arguments)
        except package.errors.UnsupportedError:
            continue
        yield Fault("REFUSE-2", f"an encoder takes {call.__name__}{arguments}", 1)
    blocks = package.Request("s", [0] * 4, 2).block_hashes
    hits = [finder(package, pool, blocks, 4, groups) for groups in ([0], [0, 1])]
    if hits != [([],), ([], [])]:
        yield Fault("ONE-1", f"hits in an empty pool: {hits}", 1)


def finder(package: ModuleType, pool: Any, hashes: Any, length: int, groups: list[int]) -> Any:
    """Look hashes up in some groups of full attention."""
    kind: Any = package.core.managers.FullAttentionManager
    return kind.find_longest_cache_hit(hashes, length, groups, pool, spec_of(package, "full", 2))
