"""Property: a shared prompt that is shorter than a block is soon hit beside recurrent layers, as long as it is shared.

How: questions behind one system prompt, one after another, in blocks of attention that are as large as those of the
states. Each prefill ends a step at the junction and at the prompt's last unit, as the guide says. Bounds are stated
from the rule of halves (law: UNIT-6), and met with and without `keep_wanted`. Recurrent layers alone learn it
from the last prompts, exactly (law: UNIT-9).
"""

import pytest

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)

UNIT = 16


def hits(specs: list[KVCacheSpec], system: int, keeps: bool, count: int = 12) -> list[int]:
    """Serve questions of 200 tokens behind a system prompt of so many; return the hit of each."""
    config = KVCacheConfig(400, [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)])
    manager = KVCacheManager(config, 8192, prefix_match_unit=UNIT, keep_wanted=keeps)
    found = []
    for number in range(count):
        tokens = [*range(system), *[9000 + number] * 200]
        request = Request(f"r{number}", tokens, block_size=UNIT)
        manager.new_step_starts()
        hit, begin = manager.get_computed_blocks(request)
        found.append(begin)
        stops, blocks = (request.junction, len(tokens) // UNIT * UNIT, len(tokens)), hit
        for stop in sorted({stop for stop in stops if stop > begin}):
            manager.new_step_starts()
            first = begin if blocks is hit and begin == found[-1] else 0
            assert manager.allocate_slots(request, stop - begin, first, hit if first else None) is not None
            manager.take_copies()
            begin = request.num_computed_tokens = stop
        manager.free(request)
        manager.check()
    return found


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("system", [624, 2000])
@pytest.mark.parametrize("size", [64, 1024])
def test_the_rest_of_what_is_shared_halves_with_every_second_question(size: int, system: int, keeps: bool) -> None:
    attention = FullAttentionSpec(size, 1, 16, "float32")
    found = hits([attention, MambaSpec(1024, ((1,),), ("float32",))], system, keeps)
    assert found == sorted(found)
    rest = [system - system // 1024 * 1024 if at < 2 else system - length for at, length in enumerate(found)]
    assert all(later <= earlier // 2 for earlier, later in zip(rest[::2], rest[2::2], strict=False) if earlier >= UNIT)
    assert found[-1] == system // UNIT * UNIT


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("system", [624, 2000])
def test_recurrent_layers_alone_learn_from_the_second_question(system: int, keeps: bool) -> None:
    states, window = MambaSpec(1024, ((1,),), ("float32",)), SlidingWindowSpec(16, 1, 16, "float32", sliding_window=64)
    layers: tuple[list[KVCacheSpec], ...] = [states], [window, states]
    for specs in layers:
        assert hits(specs, system, keeps, 4) == [0, 0, system // UNIT * UNIT, system // UNIT * UNIT]


@pytest.mark.parametrize(("others", "found"), [(31, 624), (32, 0)])
def test_questions_learn_from_each_other_across_31_other_prompts(others: int, found: int) -> None:
    config = KVCacheConfig(400, [KVCacheGroupSpec(["layers.0"], MambaSpec(1024, ((1,),), ("float32",)))])
    manager = KVCacheManager(config, 8192, prefix_match_unit=UNIT)
    junctions = []
    for number in range(others + 2):
        beginning = range(624) if number in (0, others + 1) else range(10_000 * number, 10_000 * number + 624)
        request = Request(f"r{number}", [*beginning, *[9000 + number] * 200], block_size=UNIT)
        manager.get_computed_blocks(request)
        junctions.append(request.junction)
        manager.allocate_slots(request, request.num_tokens)
        manager.free(request)
    assert junctions == [0] * (others + 1) + [found]


def test_a_copy_and_everything_forgotten_learn_by_themselves() -> None:
    config = KVCacheConfig(400, [KVCacheGroupSpec(["layers.0"], MambaSpec(1024, ((1,),), ("float32",)))])
    manager = KVCacheManager(config, 8192, prefix_match_unit=UNIT)
    first, second = (
        Request(name, [*range(64), *[token] * 64], block_size=UNIT) for name, token in (("a", 1), ("b", 2))
    )
    twin = manager.copy()
    manager.allocate_slots(first, 128)
    for each, junction in ((twin, 0), (manager, 64)):
        each.get_computed_blocks(second)
        assert second.junction == junction
    manager.free(first)
    assert manager.forget() == 0
    manager.get_computed_blocks(second)
    assert second.junction == 0


@pytest.mark.parametrize(
    ("options", "found"),
    [({"keep_wanted": True, "wanted_interval": 16, "passing_spares": 0}, 48), ({"keep_wanted": False}, 0)],
)
def test_states_that_an_output_passes_go_before_those_of_prompts(options: dict[str, int], found: int) -> None:
    """By age alone the older prompt goes, as its blocks were let go of first."""
    specs: list[KVCacheSpec] = [FullAttentionSpec(16, 1, 16, "float32"), MambaSpec(16, ((1,),), ("float32",))]
    config = KVCacheConfig(60, [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)])
    manager = KVCacheManager(config, 8192, **options)  # type: ignore[arg-type]
    prompt, other = Request("prompt", range(48)), Request("long output", range(500, 516))
    for request, stop in ((prompt, 48), (other, 16)):
        manager.allocate_slots(request, stop)
        request.num_computed_tokens = stop
        manager.new_step_starts()
    manager.free(prompt)
    for token in range(64):
        other.append_output_token_ids([token])
        manager.new_step_starts()
        manager.allocate_slots(other, 1)
        other.num_computed_tokens += 1
    manager.free(other)
    count = manager.block_pool.num_free - sum(manager.block_pool.published()) + 1
    assert manager.allocate_slots(Request("next", range(1000, 1000 + 16 * count)), 16 * count) is not None
    assert manager.get_computed_blocks(Request("asks", range(64)))[1] == found
