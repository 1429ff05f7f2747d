"""Trials of values: what is counted without a manager, what a copy has, and what identifies a request.

PLAN-2    the most blocks that a request holds are those of the specification, before there is a manager
HASH-5    a request's keys and content depend on its tokens and identity, not on how the tokens came
COPY-3    a copy of a request or a manager has all that the original has, and neither changes with the other
NAME-1    a request is itself, its copies, and no other: not its forks, whatever their names
"""

from array import array
from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding
from blockwright_spec.worker.storage import Limits, held

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import manager_of

LIMIT = 2**31 - 1


def peaks(package: ModuleType) -> Iterator[Fault]:
    """Count the most blocks of each kind for many sizes (PLAN-2)."""
    sizes: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
    for size, caching in product((1, 2, 3), (True, False)):
        rearm()
        specs = [
            (Full(), package.FullAttentionSpec(block_size=size, **sizes)),
            (Sliding(1), package.SlidingWindowSpec(block_size=size, sliding_window=1, **sizes)),
            (Sliding(4), package.SlidingWindowSpec(block_size=size, sliding_window=4, **sizes)),
            (
                Chunked(2 * size),
                package.ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=2 * size, **sizes),
            ),
            (Chunked(size), package.ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=size, **sizes)),
            (
                Mamba(2),
                package.MambaSpec(block_size=size, shapes=((1,),), dtypes=("float32",), num_speculative_blocks=2),
            ),
            (Mamba(), package.MambaSpec(block_size=size, shapes=((1,),), dtypes=("float32",))),
        ]
        if not caching:
            specs.append((Cross(), package.CrossAttentionSpec(block_size=size, **sizes)))
        for (kind, spec), tokens, step, flights in product(specs, (1, 2, 5, 8), (1, 2, 4), (1, 2, 4)):
            limits = Limits(tokens, step, 5, 0, flights, caching)
            config = Config((Group(kind, size),), 9, tokens, caching)
            wanted = held(config, config.groups[0], limits)
            found = package.core.plans.most_blocks(spec, tokens, step, caching, 5, flights)
            if found != wanted:
                what = (
                    f"{kind}, block {size}, {tokens} tokens in steps of {step}, {flights} under way, caching {caching}"
                )
                yield Fault("PLAN-2", f"{what}: {found} blocks, expected {wanted}", 1)
                return

    for _, spec in specs:
        found = package.core.plans.most_blocks(spec, 0, 1, False)
        if found != (1 + spec.num_speculative_blocks if isinstance(spec, package.MambaSpec) else 0):
            yield Fault("PLAN-2", f"{spec} holds {found} blocks without a token", 1)


def refused_counts(package: ModuleType) -> Iterator[Fault]:
    """Count with numbers out of range; the message names the argument (REFUSE-2)."""
    spec = package.FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=1, dtype="float32")
    counts: list[tuple[str, tuple[Any, ...]]] = [
        ("num_tokens", (spec, -1, 1, True)),
        ("num_tokens", (spec, LIMIT + 1, 1, True)),
        ("step", (spec, 4, -1, True)),
        ("num_encoder_tokens", (spec, 4, 1, True, -1)),
        ("num_encoder_tokens", (spec, 4, 1, True, LIMIT + 1)),
    ]
    for name, arguments in counts:
        try:
            found = package.core.plans.most_blocks(*arguments)
        except package.errors.InvalidArgumentError as error:
            if not str(error).startswith(f"{name}: "):
                yield Fault("REFUSE-2", f"{name} out of range: {error}", 1)
        else:
            yield Fault("REFUSE-2", f"{name} out of range: {found} blocks", 1)
    if package.core.plans.most_blocks(spec, LIMIT, LIMIT, True) != LIMIT:
        yield Fault("REFUSE-2", "the longest request", 1)


# --- requests


ITEMS = (("a", 0, 3), ("b", 4, 2))


def made(package: ModuleType, tokens: list[int], prompt: int, items: bool, **rest: Any) -> Any:
    """Give a request of which some tokens are the prompt's, and the others were put out, one and then all."""
    told = [package.MultiModalItem(*item) for item in ITEMS] if items else []
    hasher = package.SipHasher(bytes(16))
    request = package.Request("r", tokens[:prompt], 2, hasher=hasher, mm_items=told, **rest)
    if prompt < len(tokens):
        request.append_output_token_ids(tokens[prompt])
        request.append_output_token_ids(tokens[prompt + 1 :])
    return request


def shown(request: Any) -> tuple[object, ...]:
    """Give all that a request tells."""
    sizes = range(0, request.num_tokens + 1, request.block_size)
    return (
        request.block_hashes,
        request.all_token_ids,
        [request.prefix_content(size) for size in sizes],
        [request.token_bytes(start, stop) for start in (0, 2) for stop in range(start, request.num_tokens + 1)],
        [request.token_at(at) for at in range(request.num_tokens)],
        [list(request.keys(units).words) for units in (1, 2)],
        (request.cache_salt, request.lora_name, request.prompt_logprobs, request.num_computed_tokens),
        (request.block_size, request.num_prompt_tokens, request.num_output_tokens, request.request_id),
    )


def requests(package: ModuleType) -> Iterator[Fault]:
    """Make requests in several ways, copy and fork them, and go on with each (HASH-5, COPY-3, NAME-1)."""
    tokens, rest = list(range(1, 12)), {"cache_salt": "salt", "lora_name": "adapter", "prompt_logprobs": True}
    for items, prompt in product((False, True), (6, 7, 9, 11)):
        rearm()
        whole, parts = made(package, tokens, 11, items, **rest), made(package, tokens, prompt, items, **rest)
        if shown(whole)[:6] != shown(parts)[:6]:
            yield Fault("HASH-5", f"{prompt} tokens of the prompt, items {items}: {shown(parts)} for {shown(whole)}", 1)
            return
        for twin_of in (copy, type(parts).copy, lambda request: request.fork("r")):
            first = made(package, tokens[:9], min(prompt, 9), items, **rest)
            before, twin = shown(first), twin_of(first)
            if shown(twin) != before or twin is first:
                yield Fault("COPY-3", f"a copy shows {shown(twin)}, the request {before}", 1)
                return
            third = twin_of(first)
            for each, more in ((first, 50), (twin, 60), (third, 70)):
                each.append_output_token_ids([more, more + 1, more + 2])
            for each, more in ((first, 50), (twin, 60), (third, 70)):
                alone = made(package, [*tokens[:9], more, more + 1, more + 2], min(prompt, 9), items, **rest)
                if shown(each) != shown(alone):
                    yield Fault("COPY-3", f"a request and its copies go on: {shown(each)}, expected {shown(alone)}", 1)
                    return
    yield from identities(package)
    yield from unfinished(package)
    yield from packed(package)


def identities(package: ModuleType) -> Iterator[Fault]:
    """Run a request and name another that has the same id, before and after forks (NAME-1)."""
    make = package.Request
    family = [make("r", [1, 2, 3], 1)]
    for _ in range(2):
        family += [make("r", [1, 2, 3], 1), family[0].fork("r"), family[1 - 1].fork("r"), make("r", [1, 2, 3], 1)]
    for one in family:
        manager = manager_of(package, "full")
        manager.allocate_slots(one, 2)
        for other in family:
            try:
                manager.free(other)
            except package.errors.DuplicateRequestError:
                if other is one:
                    yield Fault("NAME-1", "a request is taken for another", 1)
                continue
            if other is not one:
                yield Fault("NAME-1", "a request is taken for another of its id", 1)
            manager.allocate_slots(one, 2)


def unfinished(package: ModuleType) -> Iterator[Fault]:
    """Append tokens while the hasher fails half-way: nothing is appended, and the next time all is (HASH-5)."""
    rearm()
    fails = [False, False, False, True]

    def hashed(parent: bytes, block: bytes) -> bytes:
        if fails and fails.pop(0):
            raise OSError("no more hashes")
        return bytes([sum(parent) % 251, sum(block) % 251]) * 8

    request = package.Request("r", [1, 2, 3], 2, hasher=package.FunctionHasher(hashed))
    request.append_output_token_ids([4])
    before = request.all_token_ids, request.block_hashes
    try:
        request.append_output_token_ids([5, 6, 7, 8])
    except OSError:
        if (request.all_token_ids, request.block_hashes) != before:
            yield Fault("HASH-5", "tokens whose block could not be hashed are appended", 1)
    else:
        yield Fault("HASH-5", "an error of the hasher is not told", 1)
    request.append_output_token_ids([5, 6, 7, 8])
    whole = package.Request("r", list(range(1, 9)), 2, hasher=package.FunctionHasher(hashed))
    if request.block_hashes != whole.block_hashes:
        yield Fault("HASH-5", "keys differ after an error of the hasher", 1)


def packed(package: ModuleType) -> Iterator[Fault]:
    """Pack buffers with one wrong token at each place (PACK-1)."""
    for kind, length, at, value in product(
        "iI", (1, 2, 3, 4, 5), range(5), (0, 1 << 30, LIMIT, -1, -LIMIT - 1, LIMIT + 1)
    ):
        if at >= length or not (-(1 << 31) if kind == "i" else 0) <= value < ((1 << 31) if kind == "i" else (1 << 32)):
            continue
        for rest in (0, 1 << 30):
            tokens = array(kind, [rest] * length)
            tokens[at] = value
            try:
                found = package.Request("r", tokens).all_token_ids
            except package.errors.InvalidArgumentError as error:
                if 0 <= value <= LIMIT or f"found {value} at {at}" not in str(error):
                    yield Fault("PACK-1", f"{tokens}: {error}", 1)
            else:
                if found != list(tokens) or not 0 <= value <= LIMIT:
                    yield Fault("PACK-1", f"{tokens} is taken as {found}", 1)


# --- copies of managers


def copies(package: ModuleType) -> Iterator[Fault]:
    """Copy a manager in the middle of everything: all counts of all tables are the original's (COPY-3)."""
    for kind, options in (
        ("full, sliding", {}),
        ("full, mamba +1", {"overlap_steps": True, "publish_on_settlement": True, "watermark": 0.2}),
        ("full, mamba +1", {"overlap_steps": True}),
        ("full", {"overlap_steps": True, "watermark": 0.5}),
    ):
        rearm()
        manager = manager_of(package, kind, 1, 40, **options)
        overlaps = bool(options)
        manager.start_step() if overlaps else None
        one, two, far = (package.Request(name, [1, 2, 3, 4, 5], 1) for name in ("one", "two", "far"))
        manager.allocate_slots(one, 3)
        if overlaps:
            manager.settle_step(1)
            manager.allocate_slots(far, 0, num_external_computed_tokens=2)
            manager.start_step()
        one.num_computed_tokens = 3
        manager.fork(one, child := one.fork("child"))
        for request in (one, two):
            manager.allocate_slots(request, 2)
        if overlaps:
            manager.free(two)
        twin = manager.copy()
        mine, its = counts(manager), counts(twin)
        if mine != its:
            gone = [(name, value, its.get(name)) for name, value in mine.items() if its.get(name) != value]
            yield Fault("COPY-3", f"{kind}, {options}: a copy differs in {gone}", 1)
            return
        manager.check()
        twin.check()
        del child


def counts(manager: Any) -> dict[str, object]:
    """Give every count of a manager, of its requests and their tables."""
    state = manager._state
    found = plain("manager", state, ("owner",))
    for name, tables in state.running.items():
        found |= plain(name, tables, ("owner",))
        for number, table in enumerate(tables.groups):
            found |= plain(f"{name} in {number}", table, ())
            found[f"{name} in {number}, named"] = manager.managers[number]._tables[name] is table
    for at, step in enumerate(state.steps):
        found |= plain(f"step {at}", step, ())
        found[f"step {at}, of whom"] = [tables.request_id for tables in step.tables if tables.owner]
    found["loads"] = {name: [list(each) for each in held] for name, held in state.loads.items()}
    return found


def plain(name: str, thing: Any, but: tuple[str, ...]) -> dict[str, object]:
    """Give the fields of an object that are numbers, or vectors of them."""
    fields = {field: value for field, value in vars(thing).items() if field not in but}
    return {
        f"{name}: {field}": list(value) if type(value).__name__ == "vec" else value
        for field, value in fields.items()
        if isinstance(value, int | float | str | None) or type(value).__name__ == "vec"
    }


# --- what a manager answers


def manager_answers(package: ModuleType) -> Iterator[Fault]:
    """Ask a manager for all that it says of itself, and for what each call gave (SHOWN-1)."""
    rearm()
    for overlaps in (False, True):
        manager = manager_of(package, "full, sliding", 2, 20, overlap_steps=overlaps, log_stats=overlaps)
        plain = manager.max_model_len, manager.overlap_steps, manager.usage
        if plain != (8, overlaps, 0.0):
            yield Fault("SHOWN-1", f"length, steps in flight, usage: {plain}", 1)
        manager.start_step() if overlaps else None
        one = package.Request("one", [1, 2, 3, 4, 5], 2)
        given = manager.allocate_slots(one, 3)
        told: list[tuple[str, object, object]] = [
            ("new blocks", given.get_block_ids(), ([1, 2], [3, 4])),
            ("blocks", manager.get_blocks("one").get_block_ids(), ([1, 2], [3, 4])),
            ("usage", round(manager.usage, 3), round(4 / 19, 3)),
            ("settled", manager.num_settled("one"), 0),
            ("no blocks", manager.create_empty_block_list().get_block_ids(), ([], [])),
            ("ids", manager.request_ids(), ["one"]),
        ]
        if overlaps:
            manager.settle_step(1)
            told.append(("settled", manager.num_settled("one"), 3))
            manager.start_step()
        before = manager.get_blocks("one")
        one.num_computed_tokens = 3
        quiet, grown = manager.allocate_slots(one, 1), None
        if overlaps:
            manager.settle_step(2)
            manager.start_step()
        one.num_computed_tokens = 4
        grown = manager.allocate_slots(one, 1)
        told += [
            ("no new blocks", quiet.get_block_ids(), ([], [])),
            ("new blocks", grown.get_block_ids(), ([5], [6])),
            ("blocks before", before.get_block_ids(), ([1, 2], [3, 4])),
            ("none alike", quiet is manager.get_computed_blocks(package.Request("none", [9], 2))[0], True),
        ]
        stats = manager.make_prefix_cache_stats()
        told.append(("statistics", stats and tuple(stats), (False, 1, 1, 0) if overlaps else None))
        told.append(("evictions", manager.make_eviction_stats(), None))
        for what, found, wanted in told:
            if found != wanted:
                yield Fault("SHOWN-1", f"{what}, steps in flight {overlaps}: {found}, expected {wanted}", 1)
        for ask in (
            manager.num_published,
            manager.get_blocks,
            partial(manager.get_num_common_prefix_blocks, num_running_requests=1),
        ):
            try:
                yield Fault("REFUSE-2", f"of a request that is not there: {ask('gone')}", 1)
            except package.errors.UnknownRequestError:
                continue
        manager.free(one)
        if one._held is not None:
            yield Fault("SHOWN-1", "a freed request holds on to its tables", 1)
    yield from lengths(package)
    yield from given_wrongly(package)


def given_wrongly(package: ModuleType) -> Iterator[Fault]:
    """Give counts below 0, and hits that do not hold as many tokens as is said, to calls and plans (REFUSE-2)."""
    manager = manager_of(package, "full", 1, 6)
    gone = package.Request("gone", [1, 2, 3], 1)
    manager.allocate_slots(gone, 3)
    manager.free(gone)
    again = package.Request("again", [1, 2, 3], 1)
    hit, _ = manager.get_computed_blocks(again)
    for call in (manager.allocate_slots, manager.plan):
        for what, asked in (
            ("a hit of no tokens", (1, 0, hit)),
            ("a hit of one token", (1, 1, hit)),
            ("tokens without blocks", (1, 2, None)),
            ("tokens and no blocks", (1, 2, manager.create_empty_block_list())),
            ("drafts", (1, 0, None, 0, False, -1)),
            ("loaded tokens", (1, 0, None, 0, False, 0, -1)),
            ("encoder tokens", (1, 0, None, 0, False, 0, 0, -1)),
            ("reserved blocks", (1, 0, None, 0, False, 0, 0, 0, False, -1)),
        ):
            try:
                found = call(again, *asked)
            except package.errors.BlockwrightError:
                continue
            yield Fault("REFUSE-2", f"{what}, {asked} by {call.__name__}: {found!r}", 1)
    manager.allocate_slots(package.Request("one", [7], 1), 1)
    for reserved, fits in ((2, True), (3, False), (1, True)):
        plan = manager.plan(again, 2, reserved_blocks=reserved)
        if isinstance(plan, package.NotNow) is fits:
            yield Fault("PLAN-1", f"two blocks with {reserved} of 4 reserved: {plan!r}", 1)
    for tokens, reserved in ((2, 3), (3, 2), (4, 1)):
        if (
            manager.allocate_slots(package.Request("two", [8] * tokens, 1), tokens, reserved_blocks=reserved)
            is not None
        ):
            yield Fault("PLAN-1", f"{tokens} blocks with {reserved} of 4 reserved are given", 1)


def lengths(package: ModuleType) -> Iterator[Fault]:
    """Take the least that any recurrent layer keeps of drafts, and refuse more by the name of the argument."""
    rearm()
    manager = manager_of(package, "full, mamba +1, mamba +3", 1, 40)
    request = package.Request("r", [1, 2, 3], 1)
    calls: list[tuple[str, dict[str, int]]] = [
        ("", {"num_new_tokens": 3}),
        ("", {"num_new_tokens": 2, "num_draft_tokens": 1}),
        ("num_draft_tokens: a recurrent layer keeps the states of 1", {"num_new_tokens": 3, "num_draft_tokens": 2}),
        (
            "num_lookahead_tokens: a recurrent layer keeps the states of 1",
            {"num_new_tokens": 1, "num_lookahead_tokens": 2},
        ),
        ("num_draft_tokens: 1 of 1", {"num_new_tokens": 1, "num_draft_tokens": 1}),
        ("num_new_tokens: a recurrent state must not run ahead of the 4", {"num_new_tokens": 2}),
    ]
    for words, arguments in calls:
        try:
            manager.plan(request, **arguments)
        except package.errors.BlockwrightError as error:
            if not words or words not in str(error):
                yield Fault("REFUSE-2", f"{arguments}: {error}", 1)
        else:
            if words:
                yield Fault("REFUSE-2", f"{arguments} is taken", 1)
        if request.num_computed_tokens == 0:
            manager.allocate_slots(request, 3)
            request.num_computed_tokens = 3
            request.append_output_token_ids([4])
    small = manager_of(package, "full", 1, 4)
    never = small.plan(package.Request("long", [1] * 7, 1), 5)
    if "5 blocks at once, the pool has 3" not in repr(never) or never.request_id != "long":
        yield Fault("PLAN-1", f"too much for the pool: {never!r}", 1)
    small.allocate_slots(package.Request("two", [1, 2], 1), 2)
    later = small.plan(package.Request("more", [5, 6], 1), 2)
    if later.request_id != "more" or later.num_missing_blocks != 1:
        yield Fault("PLAN-1", f"too much for now: {later!r}", 1)


# --- lookups


class Shelf:
    """A store of which a probe asks for single blocks: `blocks` by entry, 0 where there is none, `lost` by entry."""

    def __init__(self, blocks: tuple[int, ...], lost: tuple[int, ...]) -> None:
        self.blocks, self.lost = blocks, lost

    def find(self, _keys: object, index: int, _group: int, _block_size: int) -> int:
        """Give the block of an entry."""
        return self.blocks[index]

    def loss(self, _keys: object, index: int, _group: int) -> int:
        """Give how the key of an entry was lost."""
        return self.lost[index]


def probes(package: ModuleType) -> Iterator[Fault]:
    """Probe every row of four blocks that are there, lost, or never were (HIT-1, LOSS-2)."""
    keys = SimpleNamespace(num_blocks=lambda: 4)
    for row in product((5, -1, 0), repeat=4):
        rearm()
        shelf = Shelf(tuple(max(each, 0) for each in row), tuple(int(each < 0) for each in row))
        probe = package.core.window.Probe(shelf, keys, 0, 2, 9, 0)
        there = [each > 0 for each in row]
        if [probe.cached(at) for at in (*range(4), 4, *range(4))] != [*there, False, *there]:
            yield Fault("HIT-1", f"{row}: other blocks are there", 1)
        probe.restore()
        back = [each != 0 for each in row]
        run = next((at for at in range(4) if not back[at]), 4)
        if probe.run_end != run or [probe.cached(at) for at in range(4)] != back:
            yield Fault("LOSS-2", f"{row} without losses: a run of {probe.run_end}, expected {run}", 1)
        for stop, first in product(range(5), range(5)):
            probe = package.core.window.Probe(shelf, keys, 0, 2, 9, 0)
            if first > stop or not all(there[first:stop]):
                continue
            for at in range(4):
                probe.cached(at)
            found = list(probe.entries(2 * stop, first))
            if found != [0] * first + [5] * (stop - first):
                yield Fault("HIT-1", f"{row}: entries of {stop} blocks from {first}: {found}", 1)
        for length in range(9):
            probe = package.core.window.Probe(shelf, keys, 0, 2, 9, 0)
            first = length // 6 * 3
            run = next((at for at in range(first, length // 2) if not there[at]), length // 2)
            found = package.core.window.ChunkedRule(6).longest(probe, length)
            if found != 2 * run:
                yield Fault("HIT-1", f"{row}: a hit of {found} of at most {length} tokens in chunks of 6", 1)
    yield from unasked(package)


def unasked(package: ModuleType) -> Iterator[Fault]:
    """Explain hits that are not looked up, for each of the three reasons (EXPLAIN-1)."""
    for cause in ("no caching", "no keys", "prompt log-probabilities"):
        manager = manager_of(package, "full, sliding", 2, 9, enable_caching=cause != "no caching")
        size = None if cause == "no keys" else 2
        request = package.Request("r", [1, 2, 3, 4, 5], size, prompt_logprobs=cause.startswith("prompt"))
        found = manager.explain_hit(request)
        if tuple(found[:7]) != ("r", 0, 4, 2, None, None, ()):
            yield Fault("EXPLAIN-1", f"{cause}: {found}", 1)
        parts = [(*part[:5], part.limit.name, part.cause) for part in found.groups]
        names = ("FullAttention", "SlidingWindow(2)")
        if parts != [(at, name, 2, 0, None, "NOT_ASKED", None) for at, name in enumerate(names)]:
            yield Fault("EXPLAIN-1", f"{cause}: {parts}", 1)
