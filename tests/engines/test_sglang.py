"""Property: requests that run over SGLang's own prefix tree and over ours hit, hold and free the same.

How: its published files (`make bench-peers`, or BLOCKWRIGHT_PEERS; skipped without, and without torch or msgspec) and
ours, driven by the same random schedules in the way SGLang's scheduler does it: hits, evictable and locked tokens and
free slots are equal after every call. Evictions are compared with a tree whose nodes are single pages, since SGLang
evicts whole nodes. Not covered: a server. SGLang does not run on a CPU from published packages.
"""

import os
import sys
import tomllib
from array import array
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")
pytest.importorskip("blockwright_lab", reason="of a checkout: PYTHONPATH=conformance:spec")

from blockwright.engines.sglang import plugin
from blockwright.errors import UnsupportedError
from blockwright_lab.peers import sglang_engine
from blockwright_lab.peers.sglang_engine import SglangEngine
from blockwright_lab.peers.sglang_radix import Do, RadixEngine, RadixScope

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")
pytestmark = [
    pytest.mark.without_vllm,
    pytest.mark.skipif(not (PEERS / "sglang").is_dir(), reason="the engine's files are not there: make bench-peers"),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[SglangEngine]:
    engine = sglang_engine.load(PEERS)
    with engine.imported():  # and what is imported meanwhile is forgotten again, our tree included
        sys.modules["sglang.version"] = SimpleNamespace(__version__=engine.version)  # type: ignore[assignment]
        yield engine


def ours(engine: SglangEngine, allocator: Any, pool: Any = None) -> Any:
    """Return our tree, as the plug-in makes it."""
    page = allocator.page_size
    params = engine.params.CacheInitParams(False, pool, allocator, page)
    context = SimpleNamespace(
        params=params, is_hybrid_swa=False, is_hybrid_ssm=False, enable_hierarchical_cache=False, server_args=None
    )
    return plugin.create(context)


class Ours(RadixEngine):
    """The same engine around our tree, whose checkpoints are SGLang's own code."""

    def __init__(self, engine: SglangEngine, scope: RadixScope) -> None:
        super().__init__(engine, scope)
        self.row = engine.tensor([0] * 64)[None, :]
        pool = SimpleNamespace(req_to_token=self.row, write=lambda at, slots: self.row.__setitem__(at, slots))
        self.cache = ours(engine, self.slots, pool)

    def checkpoint(self, name: str, finished: bool = False) -> bool:
        """Keep what is complete, as SGLang does for a request of its own."""
        run, tokens = self.runs[name], self.tokens(name)
        self.row[0, : len(run.table)] = self.engine.tensor(run.table)
        kv = SimpleNamespace(req_pool_idx=0, cache_inserted_len=0, cache_protected_len=run.tree, swa_evict_floor=0)
        told = {"full_untruncated_fill_ids": array("q", tokens), "origin_input_ids": array("q", self.prompt(name))}
        names = {"extra_key": None, "cache_salt": None, "priority": None}
        request = SimpleNamespace(kv=kv, lock=run.lock, **told, **names)
        self.cache.checkpoint(request, up_to=run.computed)
        run.lock, run.tree, run.dead = request.lock, kv.cache_protected_len, kv.cache_protected_len
        run.table = self.row[0, : len(run.table)].tolist()
        return True


def seen(side: RadixEngine) -> tuple[Any, ...]:
    """What SGLang's scheduler and its checks for leaks read."""
    cache, runs = side.cache, side.runs
    held = {name: (run.computed, run.hit, run.tree, len(run.table)) for name, run in runs.items()}
    return cache.evictable_size(), cache.protected_size(), side.slots.available_size(), held


def requests(random: Random, count: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Requests with shared heads."""
    heads = [tuple(random.choices(range(5), k=12)) for _ in range(3)]
    made = []
    for _ in range(count):
        tail = tuple(random.choices(range(3), k=random.randrange(2, 9)))
        tokens = random.choice(heads)[: random.randrange(13)] + tail
        made.append((tokens, random.randrange(2, len(tokens) + 1)))
    return tuple(made)


def moves(random: Random, side: RadixEngine, count: int) -> Iterator[Do]:
    """What requests do next, at random."""
    for _ in range(count):
        name = str(random.randrange(len(side.scope.requests)))
        if name not in side.runs:
            yield Do(random.choice(["admit", "admit", "match"]), name)
            continue
        grows = side.runs[name].computed < len(side.tokens(name))
        yield Do(random.choice([*["grow"] * (3 * grows), "checkpoint", "finish", "abort"]), name)


def assert_contents(side: RadixEngine) -> None:
    """Every request reads what was written for its own tokens."""
    for name, run in side.runs.items():
        for position in range(run.computed):
            assert side.ghosts.full[run.table[position]] == side.tokens(name)[: position + 1]


@pytest.mark.parametrize("page", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_requests_run_alike(engine: SglangEngine, seed: int, page: int) -> None:
    random = Random(seed)
    scope = RadixScope("alike", 480, requests(random, 12), page)
    theirs, mine = RadixEngine(engine, scope), Ours(engine, scope)
    for number, move in enumerate(moves(random, theirs, 250)):
        assert bool(theirs.do(move)) == bool(mine.do(move))
        if number % 60 == 59:
            assert theirs.evict(10**6) == mine.evict(10**6)
        assert seen(theirs) == seen(mine)
        assert_contents(mine)
    assert len(set(mine.cache.all_values_flatten().tolist())) == mine.cache.total_size() == theirs.cache.total_size()[0]
    mine.cache.pretty_print()
    mine.slots.clear()
    mine.cache.reset()
    assert (mine.cache.total_size(), mine.cache.evictable_size(), mine.cache.protected_size()) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_pool_that_is_too_small(engine: SglangEngine, seed: int) -> None:
    """Evictions in the middle: nobody reads what is not his, nothing leaks, and about as much is hit."""
    random = Random(seed)
    scope = RadixScope("tight", 60, requests(random, 12), 2)
    sides = [RadixEngine(engine, scope), Ours(engine, scope)]
    hits = [0, 0]
    for move in moves(random, sides[0], 500):
        for at, side in enumerate(sides):
            if (move.what == "admit") == (move.name in side.runs) and move.what != "match":
                continue  # one was admitted on one side alone
            if side.do(move) and move.what == "admit":
                hits[at] += side.runs[move.name].hit
            assert_contents(side)
            own = sum(len(run.table) - run.tree for run in side.runs.values())
            kept = side.cache.evictable_size() + side.cache.protected_size()
            assert side.slots.available_size() + kept + own == 60
    assert hits[1] > 0.9 * hits[0] > 0


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_evictions_go_alike(engine: SglangEngine, seed: int, page: int) -> None:
    """Where its nodes are single pages, SGLang's tree evicts the same pages in the same order."""
    random, base = Random(seed), engine.base
    sides: list[tuple[Any, Any, dict[int, Any]]] = []
    for make in (lambda slots: engine.keys.RadixCache(engine.params.CacheInitParams(False, None, slots, page)), None):
        scope = RadixScope("evictions", 40 * page, (), page)
        slots = RadixEngine(engine, scope).slots
        sides.append((slots, make(slots) if make else ours(engine, slots), {}))

    def key(prompt: tuple[Any, ...], count: int) -> Any:
        name, salt, tokens = prompt
        return engine.keys.RadixKey(array("q", tokens[:count]), name, cache_salt=salt)

    def found(cache: Any, prompt: tuple[Any, ...]) -> Any:
        return cache.match_prefix(base.MatchPrefixParams(key(prompt, len(prompt[2]))))

    def insert(slots: Any, cache: Any, prompt: tuple[Any, ...]) -> None:
        """Page after page, so that no node is longer."""
        hit = found(cache, prompt)
        held = cache.path_device_indices(hit.last_device_node).tolist()
        while len(held) + page <= len(prompt[2]):
            new = slots.alloc(page)
            if new is None:
                return
            held += new.tolist()
            cache.insert(base.InsertParams(key(prompt, len(held)), engine.tensor(held)))

    for number in range(400):
        tokens = tuple(random.choices(range(2), k=random.randrange(1, 8) * page + random.randrange(page)))
        prompt = random.choice([None, "adapter"]), random.choice([None, "tenant"]), tokens
        what, count = random.choice(["match", "insert", "lock", "unlock", "evict"]), random.randrange(1, 9)
        told = []
        for slots, cache, locks in sides:
            if what == "insert":
                insert(slots, cache, prompt)
            elif what == "lock" and len(locks) < 4:
                locks[number] = cache.lock(found(cache, prompt).last_device_node), prompt
            elif what == "unlock" and locks:
                lock, locked = locks.pop(min(locks))
                cache.unlock(lock)
                found(cache, locked)  # as SGLang's requests, which insert what they have before they let it go
            elif what == "evict":
                told.append(cache.evict(base.EvictParams(num_tokens=count * page)).num_tokens_evicted)
            told.append(found(cache, prompt).device_prefix_len)
            told += [cache.evictable_size(), cache.protected_size(), cache.total_size(), slots.available_size()]
        assert told[: len(told) // 2] == told[len(told) // 2 :]


REFUSED: dict[str, dict[str, Any]] = {
    "0.5.22 was not tried": {"version": "0.5.22"},
    "sliding window": {"is_hybrid_swa": True},
    "recurrent layers": {"is_hybrid_ssm": True},
    "start without --enable-hierarchical-cache": {"enable_hierarchical_cache": True},
    "without a prefix cache": {"disable": True},
    "EAGLE": {"is_eagle": True},
    "no events": {"enable_kv_cache_events": True},
    "not by 'lfu': take --radix-eviction-policy lru": {"eviction_policy": "lfu"},
    "take --schedule-policy lpm": {"schedule_policy": "dfs-weight"},
    "pages in order": {"page_size": 2},
    "another cache beside it: start without enable_lmcache": {"enable_lmcache": True},
    "no host pool": {"disaggregation_decode_retraction_backup": "host_pool"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_served_is_refused_at_start(
    engine: SglangEngine, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = REFUSED[reason]
    slots = RadixEngine(engine, RadixScope("refused", 8, ())).slots
    params = engine.params.CacheInitParams(False, None, slots, 1)
    names = ("is_hybrid_swa", "is_hybrid_ssm", "enable_hierarchical_cache")
    context = SimpleNamespace(params=params, server_args=SimpleNamespace(), **dict.fromkeys(names, False))
    for name, value in other.items():
        home = context if name in names else params if hasattr(params, name) else context.server_args
        setattr(home, name, value)
    monkeypatch.setattr(sys.modules["sglang.version"], "__version__", other.get("version", engine.version))
    with pytest.raises(UnsupportedError, match=f"--radix-cache-backend blockwright: .*{reason}.*; or leave"):
        plugin.create(context)


def test_the_plug_in_names_the_tree(engine: SglangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, Any] = {}
    registry = SimpleNamespace(register_radix_cache_backend=named.__setitem__)
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.registry", registry)
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["sglang.srt.plugins"]["blockwright"]
    EntryPoint("blockwright", value, "sglang.srt.plugins").load()()
    assert named == {"blockwright": plugin.create}
