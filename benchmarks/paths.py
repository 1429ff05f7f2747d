"""The paths that are measured: what each sets up, what it times, and the ratio over the peer that it must reach.

Every sample asserts, outside the timed region, that the work was done. Block size 16, prefix caching on, one group of
full attention; several groups are the business of `groups`, block tables that of `paging_paths`. Requests bring their
tokens and block hashes along, except where hashing itself is measured.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks import groups, loop_paths, step_paths, token_paths
from benchmarks.groups import BATCH, STEPS
from benchmarks.measure import Sample, now, require, since
from benchmarks.offload import paths as offload_paths
from benchmarks.paging import paths as paging_paths
from benchmarks.path import Path
from benchmarks.sides import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    TENANTS,
    Ours,
    SharedOurs,
    Side,
    Tokens,
    Windows,
    With,
    as_array,
    as_list,
    as_numpy,
    ours_sha256,
)

LONG = 8_192
"""Blocks of the long request."""
PROMPT = 64
"""Shortest prompt of a decoding request; the others are up to 15 tokens longer, so that blocks fill in turn."""
CHURN_POOL, CHURN_REQUESTS, CHURN_LONG = 8_192, 16, 1_024
"""Blocks of the pool, requests that evict one another, blocks of each."""
SHARED_LONG = 80
"""Blocks of each request where tenants have shares."""
HASHED, PROMPTS = 512, 4
"""Blocks of each request whose construction is timed (8,192 tokens), requests of one repetition."""
_LOOKUP_GROWTH = _GROUPS_GROWTH = 1.5
_MANY_GROWTH, _SIX_GROWTH, _ODD_GROWTH = 3, 2.5, 8
"""Time per block with several groups over that with one, at most; time of a decode step with 6 and with 46 groups."""
MANY_LONG = 512
"""Blocks of the long request in each of 64 groups."""


class _Decoding:
    """A batch of running requests that decode `STEPS` tokens each; every run starts afresh."""

    def __init__(self, side: Side) -> None:
        tokens = Tokens()
        self.side = side
        self.manager = side.manager(BATCH * ((PROMPT + 16 + STEPS) // BLOCK_SIZE + 1) + 1, MAX_MODEL_LEN)
        self.prompts = [PROMPT + i % BLOCK_SIZE for i in range(BATCH)]
        self.requests = [side.request(f"r{i}", tokens.draw(n)) for i, n in enumerate(self.prompts)]
        for request in self.requests:
            request.append_output_token_ids(tokens.draw(STEPS))
            side.hash_filled(request)

    def start(self) -> None:
        for request in self.requests:
            self.manager.free(request)
        require(self.manager.reset_prefix_cache())
        for request, prompt in zip(self.requests, self.prompts, strict=True):
            request.num_computed_tokens = 0
            require(self.manager.allocate_slots(request, prompt) is not None)
            request.num_computed_tokens = prompt
            self.side.mark_running(request)

    def advance(self) -> None:
        for request in self.requests:
            request.num_computed_tokens += 1

    def finish(self) -> None:
        for request, prompt in zip(self.requests, self.prompts, strict=True):
            (table,) = self.manager.get_block_ids(request.request_id)
            require(len(table) == -(-(prompt + STEPS) // BLOCK_SIZE))


def decode_each(side: Side) -> Sample:
    return groups.each_call(_Decoding(side))


def decode_batch(side: Side) -> Sample:
    return groups.one_call(_Decoding(side))


def append_token(side: Side) -> Sample:
    tokens = Tokens()
    prompts = [tokens.draw(PROMPT + i % BLOCK_SIZE) for i in range(BATCH)]
    outputs = [tokens.draw(BATCH) for _ in range(STEPS)]

    def sample() -> float:
        requests = [side.request(f"r{i}", prompt) for i, prompt in enumerate(prompts)]
        begin = now()
        for output in outputs:
            side.advance(requests, output)
        for request in requests:
            side.hash_filled(request)
        spent = since(begin)
        require(all(request.num_tokens == len(prompts[i]) + STEPS for i, request in enumerate(requests)))
        return spent / (STEPS * BATCH)

    return sample


class _LongHit:
    """A long prefix that is cached and held by nobody, and a request that hits all of it."""

    def __init__(self, side: Side) -> None:
        ids = Tokens().draw(LONG * BLOCK_SIZE + 1)
        self.manager = side.manager(LONG + 16, MAX_MODEL_LEN)
        self.request = side.request("reader", ids)
        self._side, self._ids = side, ids
        writer = side.request("writer", ids)
        require(self.manager.allocate_slots(writer, LONG * BLOCK_SIZE) is not None)
        writer.num_computed_tokens = LONG * BLOCK_SIZE  # else its step was given up, and nothing of it is cached
        self.manager.free(writer)

    def readers(self) -> list[Any]:
        """Return new requests: a request that is looked up again is answered without a lookup."""
        return [self._side.request(f"reader {at}", self._ids) for at in range(4)]

    def lookup(self) -> tuple[Any, int]:
        hit, length = self.manager.get_computed_blocks(self.request)[:2]
        require(length == LONG * BLOCK_SIZE)
        return hit, length


def lookup(side: Side) -> Sample:
    run = _LongHit(side)

    def sample() -> float:
        readers = run.readers()
        begin = now()
        for request in readers:
            found = run.manager.get_computed_blocks(request)
        spent = since(begin)
        require(found[1] == LONG * BLOCK_SIZE)
        return spent / (4 * LONG)

    return sample


def adopt(side: Side) -> Sample:
    run = _LongHit(side)

    def sample() -> float:
        spent = 0
        for _ in range(4):
            hit, length = run.lookup()
            begin = now()
            new = run.manager.allocate_slots(run.request, 1, length, hit)
            spent += since(begin)
            require(new is not None and len(run.manager.get_block_ids("reader")[0]) == LONG + 1)
            run.manager.free(run.request)
        return spent / (4 * LONG)

    return sample


def release(side: Side) -> Sample:
    run = _LongHit(side)

    def sample() -> float:
        spent = 0
        for _ in range(4):
            hit, length = run.lookup()
            require(run.manager.allocate_slots(run.request, 1, length, hit) is not None)
            begin = now()
            run.manager.free(run.request)
            spent += since(begin)
        require(run.manager.usage == 0)
        return spent / (4 * LONG)

    return sample


def prefill(side: Side) -> Sample:
    request = side.request("long", Tokens().draw(LONG * BLOCK_SIZE))
    manager = side.manager(LONG + 16, MAX_MODEL_LEN)

    def sample() -> float:
        manager.free(request)
        require(manager.reset_prefix_cache())
        begin = now()
        new = manager.allocate_slots(request, LONG * BLOCK_SIZE)
        spent = since(begin)
        require(new is not None and manager.get_computed_blocks(request)[1] == (LONG - 1) * BLOCK_SIZE)
        return spent / LONG

    return sample


def lookup_beside_parts(side: Ours) -> Sample:
    """Look up a prompt whose whole blocks are cached, beside parts of blocks, none of which it hits."""
    size = LONG * side.block_size
    ids = Tokens().draw(size + 1)
    manager = side.manager(LONG + 16, MAX_MODEL_LEN)
    writer = side.request("writer", [*ids, 0, 0])
    require(manager.allocate_slots(writer, size) is not None)
    writer.num_computed_tokens = size
    manager.free(writer)

    def sample() -> float:
        readers = [side.request(f"reader {at}", ids) for at in range(4)]
        begin = now()
        for request in readers:
            found = manager.get_computed_blocks(request)
        spent = since(begin)
        require(found[1] == size)
        return spent / (4 * LONG)

    return sample


def churn(side: Side, block_size: int = BLOCK_SIZE) -> Sample:
    tokens = Tokens()
    size = CHURN_LONG * block_size
    requests = [side.request(f"r{i}", tokens.draw(size)) for i in range(CHURN_REQUESTS)]
    manager = side.manager(CHURN_POOL + 1, MAX_MODEL_LEN)

    def admit_and_release() -> None:
        for request in requests:
            hit, length = manager.get_computed_blocks(request)[:2]
            manager.allocate_slots(request, size - length, length, hit)
            request.num_computed_tokens = size
            manager.free(request)
            request.num_computed_tokens = 0

    admit_and_release()

    def sample() -> float:
        begin = now()
        admit_and_release()
        spent = since(begin)
        cached = [manager.get_computed_blocks(request)[1] > 0 for request in requests]
        require(cached == [i >= CHURN_REQUESTS // 2 for i in range(CHURN_REQUESTS)])
        return spent / (CHURN_REQUESTS * CHURN_LONG)

    return sample


def churn_shared(side: Side) -> Sample:
    tokens = Tokens()
    requests = [side.request(f"r{i}", tokens.draw(SHARED_LONG * BLOCK_SIZE)) for i in range(2 * TENANTS)]
    manager = side.manager(CHURN_POOL + 1, MAX_MODEL_LEN)

    def sample() -> float:
        begin = now()
        for request in requests:
            hit, length = manager.get_computed_blocks(request)[:2]
            manager.allocate_slots(request, SHARED_LONG * BLOCK_SIZE - length, length, hit)
            request.num_computed_tokens = SHARED_LONG * BLOCK_SIZE
            manager.free(request)
            request.num_computed_tokens = 0
        spent = since(begin)
        require(manager.get_computed_blocks(requests[-1])[1] == (SHARED_LONG - 1) * BLOCK_SIZE)
        return spent / (2 * TENANTS * SHARED_LONG)

    sample()
    return sample


def hashing(side: Side, convert: Callable[[list[int]], Any]) -> Sample:
    tokens = Tokens()

    def sample() -> float:
        prompts = [
            convert(tokens.draw(HASHED * BLOCK_SIZE)) for _ in range(PROMPTS)
        ]  # each new, so that none is recalled
        begin = now()
        requests = [side.request("hashed", prompt) for prompt in prompts]
        spent = since(begin)
        require(all(len(request.block_hashes) == HASHED for request in requests))
        return spent / (PROMPTS * HASHED)

    return sample


def _of(make: Callable[[Side], Sample]) -> Callable[[], Sample]:
    return lambda: make(Ours())


def _hash(name: str, title: str, target: float, convert: Callable[[list[int]], Any], side: Callable[[], Side]) -> Path:
    return Path(
        name, title, "block", target, lambda: hashing(side(), convert), lambda peer: hashing(peer, as_list), None
    )


def _groups(name: str, title: str, target: float | None, overlap_steps: bool) -> Path:
    path = Path(
        name, title, "request", target, lambda: groups.decode_batch(Ours(), overlap_steps), groups.decode_each, None
    )
    if not overlap_steps:
        alone = _over_one(groups.WINDOWS)
        return replace(path, base=alone.base, growth=(alone.growth[0], _SIX_GROWTH))
    return replace(path, base=lambda: groups.decode_batch(Ours()), growth=("of the time without steps in flight", None))


def _over_one(windows: Windows) -> Path:
    """Return a decode step in several groups over that of the same requests in one."""
    return Path(
        f"decode-{len(windows)}",
        f"decode step, 1 full + {len(windows) - 1} sliding groups",
        "request",
        None,
        lambda: groups.decode_batch(Ours(), windows=windows),
        None,
        base=lambda: groups.decode_batch(Ours(), windows=windows[:1]),
        growth=("of the time with one group", _ODD_GROWTH),
    )


_COSTS: dict[str, tuple[str, str, Callable[[Ours], Sample]]] = {
    "lookup": ("prefix lookup", "block", lookup_beside_parts),
    "decode": ("decode step, 1 full + 5 sliding", "request", groups.decode_batch),
    "churn": ("admit, release", "block", lambda side: churn(side, side.block_size)),
}


def _cost(
    name: str, title: str, side: Callable[[], Ours], off: Callable[[], Ours], most: dict[str, float | None]
) -> list[Path]:
    """Return what something costs, and may cost at most: in lookups, decode steps, or where each block evicts one."""
    return [
        Path(
            f"{kind}-{name}",
            f"{what}, {title}",
            unit,
            None,
            lambda make=make: make(side()),  # type: ignore[misc]
            None,
            base=lambda make=make: make(off()),  # type: ignore[misc]
            growth=("of the time without", most[kind]),
        )
        for kind, (what, unit, make) in _COSTS.items()
        if kind in most
    ]


def _lookup_groups(name: str, windows: Windows) -> Path:
    return Path(
        name,
        f"prefix lookup, 1 full + {len(windows) - 1} sliding",
        "needed block",
        None,
        lambda: groups.lookup(Ours(), windows, LONG),
        lambda peer: groups.lookup(peer, windows, LONG),
        base=lambda: groups.lookup(Ours(), windows[:1], LONG),
        growth=("of the time per needed block with one group", _LOOKUP_GROWTH),
    )


def _many_groups(
    name: str,
    title: str,
    unit: str,
    of: Callable[[Ours, Windows, int], Sample],
    num_blocks: int,
    alone: int,
    most: float | None,
) -> Path:
    return Path(
        name,
        title,
        unit,
        None,
        lambda: of(Ours(), groups.MANY, num_blocks),
        None,
        base=lambda: of(Ours(), groups.MANY[-1:], alone),
        growth=("of the time with one group", most),
    )


def all_paths() -> list[Path]:
    to_numpy = as_numpy()
    return [
        Path("decode", "decode step, one call each", "request", 40, _of(decode_each), decode_each),
        Path(
            "decode-batch",
            "decode step, all in one call",
            "request",
            150,
            _of(decode_batch),
            decode_each,
            "decode",
            most_of_floor=7,
        ),
        _groups("decode-groups", "decode step, 1 full + 5 sliding groups", 60, overlap_steps=False),
        _over_one(groups.ODD),
        *_cost(
            "keep", "keep_wanted", lambda: With(keep_wanted=True), lambda: With(keep_wanted=False), {"decode": None}
        ),
        *_cost(
            "units",
            "blocks of 64, prefix_match_unit=16",
            lambda: With(block_size=64, prefix_match_unit=16),
            lambda: With(block_size=64),
            {"lookup": 1.05, "decode": 1.05, "churn": None},
        ),
        *_cost("journal", "a journal", lambda: With(journal=True), Ours, {"decode": None, "churn": None}),
        _groups("decode-flight", "the same, one more step in flight", None, overlap_steps=True),
        Path("lookup", "prefix lookup", "block", 50, _of(lookup), lookup, "lookup"),
        _lookup_groups("lookup-2", groups.WINDOWS[:2]),
        _lookup_groups("lookup-6", groups.WINDOWS),
        _many_groups(
            "lookup-64", "prefix lookup, 64 groups", "needed block", groups.lookup, MANY_LONG, MANY_LONG, _MANY_GROWTH
        ),
        _many_groups(
            "lookup-64-long", "the same, 131,072 tokens", "needed block", groups.lookup, LONG, LONG, _MANY_GROWTH
        ),
        _many_groups(
            "prefill-64", "cold prefill, 64 groups", "block", groups.prefill, MANY_LONG, 64 * MANY_LONG, _GROUPS_GROWTH
        ),
        _many_groups("miss-64", "new prompt, not cached, 64 groups", "block", groups.miss, LONG, LONG, _GROUPS_GROWTH),
        Path("adopt", "adopting a hit", "block", 25, _of(adopt), adopt, "adopt"),
        Path("prefill", "cold prefill (allocate, publish)", "block", 25, _of(prefill), prefill, "prefill"),
        Path("release", "release", "block", 50, _of(release), release, "release"),
        Path("churn", "admit, release, each block evicting", "block", 20, _of(churn), churn, "churn"),
        Path(
            "churn-shares",
            f"the same, shares of {TENANTS} tenants",
            "block",
            15,
            lambda: churn_shared(SharedOurs(CHURN_POOL // 2)),
            churn_shared,
        ),
        _hash("hash-list", "hash 16 tokens: list of ints", 12, as_list, Ours),
        _hash("hash-array", "hash 16 tokens: array('i')", 30, as_array, Ours),
        *([_hash("hash-numpy", "hash 16 tokens: numpy int32", 30, to_numpy, Ours)] if to_numpy else []),
        _hash("hash-sha256", "hash 16 tokens: list, SHA-256", 4, as_list, ours_sha256),
        Path("append", "append a token, count it", "request", None, _of(append_token), append_token),
        *token_paths.all_paths(),
        *step_paths.all_paths(),
        *loop_paths.all_paths(),
        *paging_paths.all_paths(),
        *offload_paths.all_paths(),
    ]
