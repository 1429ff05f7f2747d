"""Property: in transformers' own continuous batching, Blockwright's cache gives the tokens of transformers' own.

How: tiny models with random weights run on the CPU (`transformers_bed`), under each cache; faults that are planted in
Blockwright's must be noticed.
Not covered: a GPU, asynchronous batching, graphs, flash attention, several devices: most of these are refused.
"""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("transformers is not installed; make test-transformers", allow_module_level=True)

import torch
import transformers

if not transformers.__version__.startswith("5.24."):
    pytest.skip("another transformers is installed; make test-transformers", allow_module_level=True)

from tests.engines import transformers_bed as bed

from blockwright import Request
from blockwright.engines import transformers as engine
from blockwright.engines.transformers.served import refuse
from blockwright.errors import BlockwrightError, UnsupportedError

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


FOR_ALL = ("roomy", "tight", "forks")
TRIED = [(name, kind) for name in CASES for kind in (bed.KINDS if name in FOR_ALL else ("Llama", "Gemma 3, 3:1"))]


@pytest.mark.parametrize(("name", "kind"), TRIED)
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


@pytest.mark.parametrize("kind", ["Llama", "Gemma 3, 3:1"])
def test_a_tight_pool_takes_no_more_steps(kind: str) -> None:
    """In the sum of walks: a block more or less sends each of them another way."""
    cases = [Case(kind, blocks=20, seed=seed) for seed in range(5)]
    steps = [(bed.run(case).steps, own(case).steps) for case in cases]
    print(f"{kind}, steps of ours and of theirs: {steps}")
    assert sum(ours for ours, _ in steps) <= sum(theirs for _, theirs in steps)


@pytest.mark.parametrize("kind", ["Llama", "Gemma 3, 3:1", "Mistral, all windows"])
def test_forks_that_part_read_their_own(kind: str) -> None:
    """Sampled from all tokens: the log-probabilities of each answer are those of a computation without a cache."""
    seen = bed.run(Case(kind, blocks=60, forks=3, requests=8, samples=True))
    assert len(seen.answers) == 24
    assert len({tuple(answer) for answer in seen.answers.values()}) > 16
    assert (seen.wrong, seen.errors, seen.left) == ([], {}, "")


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_with_everything(seed: int) -> None:
    """Requests that fork, come while others run, and are cancelled, in pools of different sizes."""
    case = Case(
        list(bed.KINDS)[seed % len(bed.KINDS)],
        blocks=24 + 3 * seed,
        page=(4, 8, 16)[seed % 3],
        forks=1 + seed % 3,
        requests=24,
        budget=(24, 64)[seed % 2],
        cancels=0.15,
        gap=seed % 3,
        samples=True,
        seed=seed,
    )
    seen = bed.run(case)
    assert len(seen.answers) > 10
    assert (seen.wrong, seen.errors, seen.left) == ([], {}, "")


# ---- faults


def blocks_exchanged(cache: Any) -> None:
    """The table of a group with a window is read in the wrong order."""
    tables = cache.groups[0]
    reads = tables.get_read_indices

    def exchanged(name: str, past: int, query: int) -> Any:
        table = tables.block_table[name]
        tables.block_table[name] = [*table[1::-1], *table[:1:-1]]
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


def windows_one_short(cache: Any) -> None:
    tables = next(each for each in cache.groups if each.window is not None)
    first = tables.first_read
    tables.get_read_indices = lambda name, past, query: [
        index + (number == 0 and first(past) > 0)
        for number, index in enumerate(type(tables).get_read_indices(tables, name, past, query))
    ]


PARTING = Case(forks=3, requests=4, samples=True)
FAULTS: dict[Callable[[Any], None], Case] = {
    blocks_exchanged: Case("Gemma 3, 3:1", requests=6, samples=True),
    another_request_s_table: Case(requests=6),
    nothing_given_back: Case(requests=6),
    copies_forgotten: PARTING,
    tables_of_forks_as_they_were: PARTING,
    hits_not_held: Case(gap=2),
    windows_one_short: Case("Gemma 3, 1:1", requests=6, samples=True),
}


def noticed(case: Any, spoil: Callable[[Any], None]) -> str:
    """Return what came of a case with something broken; nothing, if it ran as if nothing were."""
    try:
        seen = bed.run(case, spoil=spoil)
    except (AssertionError, BlockwrightError, RuntimeError, ValueError, IndexError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    if case.samples:
        return seen.left or ", ".join(seen.wrong)
    return seen.left or ("" if same(seen, own(case)) else "other tokens")


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_a_planted_fault_is_noticed(spoil: Callable[[Any], None]) -> None:
    what = noticed(FAULTS[spoil], spoil)
    print(f"{spoil.__name__}: {what}")
    assert what


@pytest.mark.parametrize("case", dict.fromkeys(FAULTS.values()), ids=str)
def test_without_a_fault_nothing_is(case: Any) -> None:
    assert noticed(case, lambda cache: None) == ""


# ---- what is refused, and how it starts


def outputs_of(kind: str, warmup: bool = True, **options: Any) -> Any:
    """Call what a user calls."""
    case = Case(kind, requests=3)
    generation, batching = bed.settings(case, **options)
    prompts = [each.prompt for each in bed.coming(case)]
    with torch.no_grad():
        outputs = bed.model(kind).generate_batch(prompts, generation, batching, warmup=warmup)
    return [(output.generated_tokens, output.error) for output in outputs.values()]


@pytest.mark.parametrize("kind", ["Llama", "Gemma 3, 3:1"])
def test_generate_batch_as_a_user_calls_it(kind: str) -> None:
    engine.unregister()
    theirs = outputs_of(kind)
    engine.register()
    ours = outputs_of(kind)
    assert ours == theirs
    assert all(len(tokens) == 30 and error is None for tokens, error in ours)


def test_a_manager_that_is_kept_keeps_what_is_cached() -> None:
    engine.register()
    served, (generation, batching) = bed.model("Gemma 3, 1:1"), bed.settings(Case())
    prompts = [each.prompt for each in bed.coming(Case(requests=3))]
    answers = []
    with torch.no_grad():
        for _ in range(2):
            outputs = served.generate_batch(prompts, generation, batching, persistent_manager=True)
            answers.append([output.generated_tokens for output in outputs.values()])
            cache = served._cached_continuous_batching_manager.batch_processor.cache
            hit = cache.manager.get_computed_blocks(Request("again", prompts[0]))[1]
            assert hit == (len(prompts[0]) - 1) // 2 * 2
            assert bed.left(cache) == ""
    served.destroy_cached_continuous_batching_manager()
    assert answers[0] == answers[1]


OPTIONS: dict[str, Any] = {
    "use_async_batching=True": {"use_async_batching": True},
    "use_cuda_graph=True": {"use_cuda_graph": True},
    "cpu_offload_space": {"cpu_offload_space": 0.001},
    "default_compile_level": {"default_compile_level": 1},
}


@pytest.mark.parametrize("what", OPTIONS)
def test_what_is_not_served_is_refused_by_name(what: str) -> None:
    config = bed.settings(Case(), **OPTIONS[what])[1]
    with pytest.raises(UnsupportedError, match=f"{what} is not served; pass {what.split('=')[0]}="):
        refuse(config, SimpleNamespace(tp_size=1))


def test_tensor_parallelism_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="tensor parallelism is not served"):
        refuse(bed.settings(Case())[1], SimpleNamespace(tp_size=2))


def test_a_refusal_comes_at_the_start() -> None:
    engine.register()
    with pytest.raises(UnsupportedError, match="cpu_offload_space is not served"):
        outputs_of("Llama", cpu_offload_space=0.001)


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SERVED", "5.23")
    with pytest.raises(UnsupportedError, match=r"transformers 5\.24\.\d+ is not served; install transformers==5\.23"):
        engine.register()
