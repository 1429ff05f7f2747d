"""Property: a plan counts exactly what the step then takes, says exactly what is missing, and lets a request in only if
it can go to its end.

How: plans of many steps compared with what the step takes from the queue; blocks put behind a fence until a plan no
longer fits, one by one; `peak` against requests that run to their end in steps of every size, and the whole-sequence
gate against the smallest pool in which they do.
Not covered: plans in every state (the explorer asks them all).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from tests.spec.stories import admitted, done, hit_of, prompt, running, sent

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Fits, Outcome, Plan, Reason, Refusal, Step, When
from blockwright_spec.manager.plans import plan_admission, plan_growth, spare, whole_demand
from blockwright_spec.manager.preconditions import starting
from blockwright_spec.manager.state import NULL, Config, Fence, Hit, Running, State, initial, owned
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Sliding, peak

GROUPS: dict[str, tuple[Group, ...]] = {
    "full": (Group(Full(), 2),),
    "sliding": (Group(Sliding(3), 2),),
    "chunked": (Group(Chunked(4), 2),),
    "mamba": (Group(Mamba(1), 2),),
    "full, sliding": (Group(Full(), 2), Group(Sliding(3), 1)),
    "full, mamba": (Group(Full(), 1), Group(Mamba(2), 2)),
    "full, cross": (Group(Full(), 2), Group(Cross(), 3)),
}
every_groups = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())


def over(groups: tuple[Group, ...], blocks: int = 20, watermark: int = 0, caching: bool = True) -> State:
    caching = caching and not any(isinstance(group.kind, Cross) for group in groups)
    return initial(Config(groups, blocks, 40, caching, watermark=watermark), 3)


def encoded(groups: tuple[Group, ...]) -> int:
    """The encoder tokens of a request, where there is an encoder."""
    return 4 if any(isinstance(group.kind, Cross) for group in groups) else 0


Ask = tuple[State, Hit, Plan, Outcome]


def asks(groups: tuple[Group, ...], blocks: int = 20) -> Iterator[Ask]:
    """Steps of requests that wait and that run: the state, the hit, the plan and what the step comes to."""
    encoder = encoded(groups)
    for caching, length in product((True, False), (3, 4, 7)):
        state = sent(over(groups, blocks, caching=caching), 0, prompt(*range(length)))
        for new, external in ((length, 0), (1, 0), (0, 2)):
            step = Step(new, added=StepAdded(external=external, encoder=encoder))
            yield state, Hit(), plan_admission(state, 0, Hit(), step), t.admit(state, 0, Hit(), step, LRU)
        outcome = t.admit(state, 0, Hit(), Step(length, added=StepAdded(encoder=encoder)), LRU)
        if not isinstance(outcome, Done):
            continue
        ran = done(t.append_output(outcome.state, 0, (8, 9, 8))).state
        for new in (1, 2, 3):
            step = Step(new)
            yield ran, Hit(), plan_growth(ran, 0, length, step), t.grow(ran, 0, length, step, LRU)
        for held in (ran, done(t.release(ran, 0, LRU)).state):
            again = sent(held, 1, prompt(*range(length), 8, 9, 7))
            step, hit = Step(1, added=StepAdded(encoder=encoder)), hit_of(again, 1)
            yield again, hit, plan_admission(again, 1, hit, step), t.admit(again, 1, hit, step, LRU)


@every_groups
def test_demand_is_what_is_taken(groups: tuple[Group, ...]) -> None:
    fitted = 0
    for state, hit, plan, outcome in asks(groups):
        assert isinstance(plan, Fits) == isinstance(outcome, Done)
        if isinstance(plan, Fits) and isinstance(outcome, Done):
            new = sum(block != NULL for table in outcome.new for block in table) + sum(plan.states)
            free = sum(block in state.queue for table in hit.tables for block in table)
            assert plan.demand == new + free
            assert plan.gone == outcome.nulled
            fitted += 1
    assert fitted > 20


def fenced(state: State, count: int) -> State:
    """The state with the last `count` free blocks out of reach."""
    cut = len(state.queue) - count
    return replace(state, queue=state.queue[:cut], fences=(Fence(None, 2, (state.queue[cut:],)),))


@every_groups
def test_what_is_missing_is_exact(groups: tuple[Group, ...]) -> None:
    """Exactly so many blocks must become free, whatever is refused now."""
    state = sent(over(groups), 0, prompt(*range(7)))
    step = Step(7, added=StepAdded(encoder=encoded(groups)))
    fits = plan_admission(state, 0, Hit(), step)
    assert isinstance(fits, Fits)
    for count in range(20):
        tight = fenced(state, count)
        plan = plan_admission(tight, 0, Hit(), step)
        lacks = fits.demand + count - 19
        assert isinstance(plan, Fits) == (lacks <= 0)
        if isinstance(plan, Refusal):
            assert plan == Refusal(Reason.NO_FREE_BLOCKS, lacks, waiting=count)
            assert t.admit(tight, 0, Hit(), step, LRU) == plan


def test_a_running_request_counts_what_it_gives_back() -> None:
    state = admitted(over((Group(Sliding(2), 2),), blocks=5), 0, prompt(1, 2, 3, 4, 5, 6, 7))
    state = done(t.append_output(state, 0, (8, 9, 8, 9, 8))).state
    assert state.queue == ()
    plans = [plan_growth(state, 0, 7, Step(new)) for new in (1, 3, 5)]
    assert [plan.demand if isinstance(plan, Fits) else plan.missing for plan in plans] == [0, 1, 2]
    shared = sent(over((Group(Sliding(2), 2),), blocks=8), 0, prompt(1, 2, 3, 4, 5))
    assert isinstance(plan_admission(shared, 0, Hit(), Step(5)), Fits)


def test_never_is_said_from_the_start() -> None:
    state = sent(over((Group(Full(), 2),), blocks=4), 0, prompt(*range(7)))
    for plan, reason in (
        (plan_admission(state, 0, Hit(), Step(7)), Reason.POOL_TOO_SMALL),
        (plan_admission(state, 0, Hit(), Step(1, whole=True)), Reason.POOL_TOO_SMALL),
        (plan_admission(state, 0, Hit(), Step(41)), Reason.TOO_LONG),
    ):
        assert isinstance(plan, Refusal)
        assert (plan.reason, plan.reason.value[0]) == (reason, When.NEVER)
    assert isinstance(plan_admission(state, 0, Hit(), Step(6)), Fits)


def test_watermark_and_reserve_stay_free_beside_others() -> None:
    state = sent(over((Group(Full(), 2),), blocks=10, watermark=2), 1, prompt(1, 2))
    step = Step(2, reserve=4)
    assert spare(state, step, True) == 0, "the pool is idle"
    beside = admitted(state, 0, prompt(5))
    assert (spare(beside, step, True), spare(beside, step, False)) == (6, 0)
    assert isinstance(plan_admission(beside, 1, Hit(), step), Fits)
    assert plan_admission(beside, 1, Hit(), replace(step, reserve=7)) == Refusal(Reason.NO_FREE_BLOCKS, 2)
    longer = done(t.append_output(beside, 0, tuple(range(17)))).state
    assert isinstance(plan_growth(longer, 0, 1, replace(step, new=17)), Fits), "who runs may take them"


# ---------------------------------------------------------------------- the whole sequence


def steps(tokens: int, first: int, size: int) -> Iterator[int]:
    """Sizes of steps over some tokens: a first one, and then all as large as can be."""
    yield min(first, tokens)
    for start in range(first, tokens, size):
        yield min(size, tokens - start)


def most_held(groups: tuple[Group, ...], tokens: int, first: int, size: int, caching: bool) -> int:
    """The most blocks that a request holds at once on its way to its end."""
    state = sent(over(groups, 60, caching=caching), 0, prompt(*range(tokens)))
    most = computed = 0
    for new in steps(tokens, first, size):
        step = Step(new, added=StepAdded(encoder=encoded(groups) if not computed else 0))
        outcome = t.grow(state, 0, computed, step, LRU) if computed else t.admit(state, 0, Hit(), step, LRU)
        state = done(outcome).state
        computed += new
        held = (block for table in owned(running(state)) for block in table)
        most = max(most, sum(block != NULL for block in held))
    return most


KINDS: tuple[Kind, ...] = (Full(), Sliding(1), Sliding(2), Sliding(5), Chunked(2), Chunked(6), Mamba(), Mamba(2))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_peak_is_the_most_that_is_ever_held(kind: Kind, size: int) -> None:
    """Over all ways to cut the tokens into steps of that size: the first may be smaller."""
    for tokens, step in product((1, 2, 5, 9, 14), (1, 2, 3, 5, 20)):
        held = max(most_held((Group(kind, size),), tokens, first, step, True) for first in range(1, step + 1))
        drafts = kind.drafts if isinstance(kind, Mamba) else 0
        assert peak(kind, size, tokens, step) + drafts == held


@every_groups
@pytest.mark.parametrize("caching", [True, False])
def test_whoever_passes_the_gate_goes_to_the_end(groups: tuple[Group, ...], caching: bool) -> None:
    for tokens, size in product((1, 4, 9), (1, 2, 4)):
        state = sent(over(groups, caching=caching), 0, prompt(*range(tokens)))
        new, encoder = min(size, tokens), encoded(groups)
        step = Step(new, added=StepAdded(encoder=encoder), whole=True)
        start = starting(state, 0, Hit(), step)
        assert isinstance(start, Running)
        demand = whole_demand(state, start, 0, step)
        assert demand == most_held(groups, tokens, new, new, caching)
        for blocks in range(2, 20):
            pool = replace(state.config, num_blocks=blocks)
            plan = plan_admission(replace(state, queue=tuple(range(1, blocks)), config=pool), 0, Hit(), step)
            assert plan == Refusal(Reason.POOL_TOO_SMALL) if demand > blocks - 1 else isinstance(plan, Fits)


def test_hits_that_others_hold_need_no_room() -> None:
    state = admitted(over((Group(Full(), 2),), blocks=7), 0, prompt(1, 2, 3, 4, 5))
    state = sent(state, 1, prompt(1, 2, 3, 4, 6, 7, 8, 9, 8, 9))
    step = Step(1, whole=True)
    assert isinstance(plan_admission(state, 1, hit_of(state, 1), step), Fits)
    assert plan_admission(state, 1, Hit(), step) == Refusal(Reason.NO_FREE_BLOCKS, 2)


def test_states_of_drafts_count_among_what_is_held() -> None:
    """Alone in the pool and refused, a request could never go on: nobody else could release what it lacks."""
    state = admitted(over((Group(Full(), 2), Group(Mamba(2), 2)), blocks=6), 0, prompt(1, 2, 3, 4))
    state = done(t.append_output(state, 0, (5,))).state
    assert state.queue == ()
    plan = plan_growth(state, 0, 4, Step(1))
    assert isinstance(plan, Refusal)
    assert plan.reason is Reason.POOL_TOO_SMALL


def test_what_lies_before_a_hit_or_a_load_needs_no_room() -> None:
    """The steps begin behind both, so that a window's layer holds no more than its window and a step."""
    state = sent(over((Group(Sliding(3), 1),), blocks=5), 0, prompt(*range(9)))
    for step in (
        Step(2, whole=True),
        Step(0, added=StepAdded(external=8), whole=True),
        Step(0, added=StepAdded(external=9), whole=True),
    ):
        assert isinstance(plan_admission(state, 0, Hit(), step), Fits)
    assert plan_admission(state, 0, Hit(), Step(3, whole=True)) == Refusal(Reason.POOL_TOO_SMALL)
    behind = sent(over((Group(Full(), 1), Group(Chunked(4), 1)), blocks=40), 0, prompt(*range(9)))
    behind = done(t.admit(behind, 0, Hit(), Step(9), LRU)).state
    again = sent(behind, 1, prompt(*range(8), 9))
    start = starting(again, 1, hit_of(again, 1), Step(1, whole=True))
    assert isinstance(start, Running)
    assert (start.trimmed, whole_demand(again, start, 8, Step(1, whole=True))) == (8, 9 + 1)


def test_lookahead_needs_room_at_every_step() -> None:
    state = sent(over((Group(Sliding(2), 1),), blocks=5), 0, prompt(*range(9)))
    assert isinstance(plan_admission(state, 0, Hit(), Step(1, 2, whole=True)), Fits)
    assert plan_admission(state, 0, Hit(), Step(1, 3, whole=True)) == Refusal(Reason.POOL_TOO_SMALL)
