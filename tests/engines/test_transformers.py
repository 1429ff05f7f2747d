"""Property: in transformers' own continuous batching, Blockwright's cache gives the tokens of transformers' own.

How: tiny models with random weights run on the CPU (`transformers_bed`), under each cache; faults that are planted in
Blockwright's must be noticed.
Not covered: a GPU, asynchronous batching, graphs, flash attention, several devices: most of these are refused.
"""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("transformers is not installed; make test-transformers", allow_module_level=True)

import torch
import transformers

if not transformers.__version__.startswith("5.24."):
    pytest.skip("another transformers is installed; make test-transformers", allow_module_level=True)

from tests.engines import transformers_bed as bed

from blockwright.engines import transformers as engine
from blockwright.errors import BlockwrightError

pytestmark = pytest.mark.without_vllm
Case = bed.Case

CASES = {
    "roomy": Case(),
    "tight": Case(blocks=20),
    "forks": Case(forks=3, requests=8),
    "forks in a tight pool": Case(forks=3, requests=8, blocks=30),
    "cancelled": Case(blocks=30, cancels=0.3, gap=1),
    "prompts first": Case(blocks=30, scheduler="prefill_first", gap=2),
    "a margin": Case(blocks=30, margin=0.2, longest=60),
    "no sharing": Case(blocks=40, shares=False, forks=2, requests=8),
    "small steps": Case(blocks=40, budget=24, page=4),
}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    yield
    engine.unregister()
    torch.set_num_threads(threads)


@functools.cache
def own(case: Any) -> Any:
    return bed.run(case, ours=False)


def same(ours: Any, theirs: Any) -> bool:
    """Whether all answers that both have are the same, and nothing failed: a cancelled request may end before it is."""
    both = ours.answers.keys() & theirs.answers.keys()
    equal = all(ours.answers[name] == theirs.answers[name] for name in both)
    return bool(both) and equal and not ours.errors and not theirs.errors


@pytest.mark.parametrize("kind", bed.KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_tokens_are_those_of_transformers(name: str, kind: str) -> None:
    case = replace(CASES[name], kind=kind)
    ours, theirs = bed.run(case), own(case)
    assert same(ours, theirs)
    assert case.cancels or ours.answers.keys() == theirs.answers.keys()
    assert ours.left == ""


@pytest.mark.parametrize("kind", [kind for kind in bed.KINDS if kind not in ("Llama", "Qwen3")])
def test_windows_share_prefixes(kind: str) -> None:
    """transformers switches sharing off where any layer slides."""
    case = Case(kind=kind)
    assert own(case).hits == 0
    assert bed.run(case).hits > 0


@pytest.mark.parametrize("kind", bed.KINDS)
def test_a_tight_pool_takes_no_more_steps(kind: str) -> None:
    """Six walks in 20 blocks and six in 40: in sum, and nearly each. One page more or less sends them other ways."""
    for blocks in (20, 40):
        cases = [Case(kind=kind, blocks=blocks, seed=seed) for seed in range(6)]
        steps = [(bed.run(case).steps, own(case).steps) for case in cases]
        print(f"{kind}, {blocks} blocks: {steps}")
        assert sum(ours for ours, _ in steps) <= sum(theirs for _, theirs in steps)


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_with_everything(seed: int) -> None:
    kinds = list(bed.KINDS)
    case = Case(
        kinds[seed % len(kinds)],
        blocks=24 + 3 * seed,
        page=(4, 8, 16)[seed % 3],
        forks=1 + seed % 3,
        requests=24,
        budget=(24, 64)[seed % 2],
        cancels=0.15,
        gap=seed % 3,
        seed=seed,
    )
    ours = bed.run(case)
    assert same(ours, own(case))
    assert ours.left == ""


# ---- faults


def blocks_exchanged(cache: Any) -> None:
    """The table of the last group names its first two blocks in the wrong order, once they are written."""
    tables = cache.groups[-1]
    reads = tables.get_read_indices

    def exchanged(name: str, past: int, query: int) -> Any:
        table = tables.block_table[name]
        if len(table) > 2:
            tables.block_table[name] = [table[0], *table[-1:0:-1]]
        try:
            return reads(name, past, query)
        finally:
            tables.block_table[name] = table

    tables.get_read_indices = exchanged


def another_request_s_table(cache: Any) -> None:
    """What a request reads is taken from the table of the one that came first."""
    tables = cache.groups[0]
    reads = tables.get_read_indices

    def others(name: str, past: int, query: int) -> Any:
        first = next(iter(tables.block_table))
        fits = len(tables.block_table[first]) >= len(tables.block_table[name])
        return reads(first if fits else name, past, query)

    tables.get_read_indices = others


def nothing_given_back(cache: Any) -> None:
    def kept(request_id: str, no_cache: bool = False) -> None:
        cache.requests.pop(request_id, None)
        for tables in cache.groups:
            tables.block_table.pop(request_id, None)

    cache.free_blocks = kept


def copies_forgotten(cache: Any) -> None:
    for tables in cache.groups:
        tables.copy_blocks = lambda sources, targets: None


def tables_of_forks_as_they_were(cache: Any) -> None:
    """A fork goes on writing into the block that it shares, though the manager has given it one of its own."""
    cache._copy = lambda name: cache.manager.take_copies()


def published_too_early(cache: Any) -> None:
    """A block is published under tokens that the step after this one computes."""
    count = cache.count_new_complete_blocks

    def early(state: Any, request_len: int) -> Any:
        fills = count(state, request_len)
        if not fills:
            return fills
        request, (reached,) = cache.requests[state.request_id], fills.values()
        cache.manager.cache_blocks(request, reached)
        for tables in cache.groups:
            first = tables.block_table[state.request_id][0]
            tables._copy_view[first].zero_()
        return {}

    cache.count_new_complete_blocks = early


def hits_not_held(cache: Any) -> None:
    """The blocks of a hit are given back as soon as they are in the table."""
    search = cache.search_prefix_match

    def loose(request_id: str, prompt: list[int]) -> int:
        length: int = search(request_id, prompt)
        if length:
            request = cache.requests[request_id]
            cache.manager.free(request)
            request.num_computed_tokens = 0
        return length

    cache.search_prefix_match = loose


def prompts_one_token_off(cache: Any) -> None:
    """A hit is said to reach one token further than it does."""
    search = cache.search_prefix_match
    cache.search_prefix_match = lambda request_id, prompt: (search(request_id, prompt) and search.__self__ and 0) or 0


def windows_one_short(cache: Any) -> None:
    tables = next(each for each in cache.groups if each.window is not None)
    first = tables.first_read
    tables.get_read_indices = lambda name, past, query: [
        index + (number == 0 and first(past) > 0)
        for number, index in enumerate(type(tables).get_read_indices(tables, name, past, query))
    ]


FAULTS: dict[Callable[[Any], None], Case] = {
    blocks_exchanged: Case("Gemma 3, 3:1"),
    another_request_s_table: Case(),
    nothing_given_back: Case(),
    copies_forgotten: Case(forks=3, requests=6),
    tables_of_forks_as_they_were: Case(forks=3, requests=6),
    published_too_early: Case("Qwen3", gap=2),
    hits_not_held: Case(gap=2),
    windows_one_short: Case("Gemma 3, 1:1"),
}


def noticed(case: Any, spoil: Callable[[Any], None]) -> str:
    """Return what came of a case with something broken; nothing, if it ran as if nothing were."""
    try:
        seen = bed.run(case, spoil=spoil)
    except (AssertionError, BlockwrightError, RuntimeError, ValueError, IndexError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return seen.left or ("" if same(seen, own(case)) else "other tokens")


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_a_planted_fault_is_noticed(spoil: Callable[[Any], None]) -> None:
    what = noticed(FAULTS[spoil], spoil)
    print(f"{spoil.__name__}: {what}")
    assert what


@pytest.mark.parametrize("case", dict.fromkeys(FAULTS.values()), ids=str)
def test_without_a_fault_nothing_is(case: Any) -> None:
    assert noticed(case, lambda cache: None) == ""
