"""Property: a plan of memory is right exactly if every law of chapter `storage_laws` says so.

How: a plan by hand, of a model with every kind of layer, that keeps every law; each law notices what breaks it, in each
of its parts; what a request holds is compared with the manager's own count.
Not covered: how a plan is found (tests/device/test_plan.py checks those of random models).
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from blockwright_spec.law import Law
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Sliding, peak
from blockwright_spec.worker.storage import (
    Layer,
    Limits,
    PlannedGroup,
    StoragePlan,
    config_of,
    held,
    held_in_all,
    may_hold,
    page,
    plain_plans,
)
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS, STORAGE_LAWS

BY_ID = {law.id: law.holds for law in STORAGE_LAWS}

LAYERS = (
    Layer(Full(), 4, 8),
    Layer(Full(), 4, 8),
    Layer(Sliding(5), 2, 8),
    Layer(Mamba(1), 8, 25),
    Layer(Mamba(1), 8, 30),
    Layer(Chunked(8), 4, 4),
)
LIMITS = Limits(tokens=20, step=6)
GROUPS = (
    PlannedGroup((0, 1), 4, 0),
    PlannedGroup((2,), 4, 32),
    PlannedGroup((4, 3), 8, 9),
    PlannedGroup((5,), 8, 32),
)
"""Two tensors of pages of 32 bytes; the windows have twice as many tokens per block as declared, as has the chunk."""
NEEDED = 5 + 4 + 3 + 2
PLAN = StoragePlan(LAYERS, LIMITS, 64 * 20 + 63, 16, Fraction(1, 4), GROUPS, (32, 32), 20, NEEDED)
SPLIT = StoragePlan(
    LAYERS[:2], LIMITS, 640, 16, Fraction(0), (PlannedGroup((0,), 4, 0), PlannedGroup((1,), 4, 0)), (32,), 20, 10
)
"""Two full layers in groups of their own; in one they would hold almost as much, in half of the time."""
PACKED = StoragePlan(
    LAYERS[:3],
    LIMITS,
    64 * 20,
    16,
    Fraction(0),
    (PlannedGroup((0, 1), 4, 0, (0, 32)), PlannedGroup((2,), 8, 0, (0,))),
    (64,),
    20,
    5 + 3,
    Fraction(1, 10),
)
"""Two full layers, with four tokens per block, take as many bytes as one window with eight."""


@pytest.mark.parametrize("law", STORAGE_LAWS, ids=lambda law: law.id)
def test_law_holds(law: Law) -> None:
    assert law.holds(PLAN)
    assert law.holds(SPLIT)
    assert law.holds(PACKED)


def packed(at: int, **fields: Any) -> StoragePlan:
    groups = list(PACKED.groups)
    groups[at] = replace(groups[at], **fields)
    return replace(PACKED, groups=tuple(groups))


def of_group(at: int, **fields: Any) -> StoragePlan:
    return replace(PLAN, groups=(*GROUPS[:at], replace(GROUPS[at], **fields), *GROUPS[at + 1 :]))


BROKEN: list[tuple[str, StoragePlan]] = [
    ("LAYOUT-1", of_group(0, layers=(0,))),
    ("LAYOUT-1", of_group(1, layers=(2, 1))),
    ("LAYOUT-1", of_group(0, layers=(0, 0))),
    ("LAYOUT-1", replace(PLAN, groups=(*GROUPS, PlannedGroup((), 4, 64)))),
    ("LAYOUT-3", replace(PLAN, pages=(64,))),
    ("LAYOUT-1", packed(0, offsets=(0, 31))),
    ("LAYOUT-1", packed(0, offsets=(16, 0))),
    ("LAYOUT-2", of_group(1, layers=(2, 5))),
    ("LAYOUT-2", replace(PLAN, layers=(replace(LAYERS[0], block_size=2), *LAYERS[1:]))),
    ("LAYOUT-2", of_group(1, block_size=3)),
    ("LAYOUT-2", of_group(2, block_size=16)),
    ("LAYOUT-2", of_group(3, block_size=16)),
    ("LAYOUT-3", replace(PLAN, pages=(32, 31))),
    ("LAYOUT-3", of_group(1, block_size=8)),
    ("LAYOUT-3", replace(PLAN, pages=(32, 32, 32))),
    ("LAYOUT-3", packed(0, offsets=(0, 48))),
    ("LAYOUT-4", replace(PLAN, memory=64 * 20 - 1)),
    ("LAYOUT-5", replace(PLAN, memory=64 * 21)),
    ("LAYOUT-6", replace(PLAN, num_blocks=NEEDED)),
    ("LAYOUT-6", replace(PLAN, request_blocks=NEEDED + 1)),
    ("LAYOUT-6", replace(PLAN, request_blocks=NEEDED - 1)),
    ("LAYOUT-7", of_group(2, waste=8)),
    ("LAYOUT-7", replace(PLAN, pages=(16, 32))),
    ("LAYOUT-8", replace(PLAN, pages=(32, 40))),
    ("LAYOUT-8", packed(1, offsets=(8,))),
    ("LAYOUT-9", replace(PLAN, pages=(64, 64), num_blocks=NEEDED + 1)),
    ("LAYOUT-9", replace(PLAN, loss=Fraction(0), num_blocks=NEEDED + 1)),
    ("LAYOUT-9", replace(SPLIT, group_cost=Fraction(1))),
    ("LAYOUT-10", replace(PLAN, padding=Fraction(1, 5))),
    ("LAYOUT-11", replace(PACKED, pages=(64, 16))),
    ("LAYOUT-11", replace(PACKED, groups=(*PACKED.groups, PlannedGroup((1,), 4, 32, (0,))))),
]
"""Plans that break each law, in each of its parts."""


@pytest.mark.parametrize(("name", "plan"), BROKEN)
def test_law_notices_what_breaks_it(name: str, plan: StoragePlan) -> None:
    assert not BY_ID[name](plan)


def test_a_plain_plan_that_wastes_too_much_is_no_rival() -> None:
    """Three groups on one tensor waste nothing; two groups on two waste half of the window's 4 of 9 blocks."""
    plan = replace(PLAN, layers=(*LAYERS[:2], replace(LAYERS[2], block_size=4)), groups=GROUPS[:2])
    within = [
        list(plain_plans(replace(plan, padding=part))) for part in (Fraction(0), Fraction(21, 100), Fraction(2, 9))
    ]
    assert within == [[(32, 14, 3)], [(32, 14, 3)], [(32, 14, 3), (64, 9, 2)]]


def test_every_law_is_broken_once() -> None:
    assert {name for name, _ in BROKEN} == BY_ID.keys()
    assert {law.id for law in PART_FOUR_LAWS} > BY_ID.keys()


def test_what_a_plan_comes_to() -> None:
    config = config_of(replace(PLAN, num_blocks=21))
    assert config.groups == (Group(Full(), 4), Group(Sliding(5), 4), Group(Mamba(1), 8), Group(Chunked(8), 8))
    assert (config.num_blocks, config.max_model_len) == (21, 20)
    assert held_in_all(PLAN) == NEEDED
    assert (page(LAYERS[0], 4), page(LAYERS[3], 8)) == (32, 25)


def test_tokens_per_block_that_a_layer_can_do_with() -> None:
    kinds: tuple[Kind, ...] = (Full(), Sliding(3), Chunked(12), Mamba(), Cross())
    can = [[size for size in (1, 2, 3, 4, 6, 8) if may_hold(Layer(kind, 2, 1), size)] for kind in kinds]
    assert can == [[2, 4, 6, 8], [2, 4, 6, 8], [2, 4, 6], [2], [2, 4, 6, 8]]


@pytest.mark.parametrize("kind", [Full(), Sliding(3), Sliding(7), Chunked(4)])
def test_with_steps_in_flight_what_the_oldest_reads_is_kept(kind: Kind) -> None:
    group = Group(kind, 2)
    limits = Limits(24, 3, lookahead=1, flights=2)
    assert held(config_of(PLAN), group, limits) == peak(kind, 2, 24, 8)


def test_a_recurrent_layer_keeps_a_state_for_each_step_in_flight() -> None:
    config, group = replace(config_of(PLAN), max_model_len=24), Group(Mamba(1), 8)
    assert [held(config, group, Limits(24, 3, flights=count)) for count in (1, 2, 3)] == [3, 4, 4]
    bare = replace(config, caching=False)
    assert [held(bare, group, Limits(24, 3, flights=count, caching=False)) for count in (1, 2)] == [2, 2]


def test_an_encoder_takes_blocks_for_its_own_tokens() -> None:
    assert held(config_of(PLAN), Group(Cross(), 4), Limits(24, 3, encoder=9)) == 3
