"""Property: every law holds in states that transitions reach, and every law can fail.

How: a good state of each kind is reached by transitions, steps in flight and loads among them; then one thing in it is
broken by hand, once for each law, and that law must notice; so must the laws that tell groups apart, of two groups over
one pool. Laws of steps are shown steps whose outcome was altered.
Not covered: that no transition breaks a law (the explorer), and that every broken state breaks one (the mutants).
"""

from dataclasses import replace
from typing import Any

import pytest

from blockwright_spec.manager import plans, pool_laws
from blockwright_spec.manager.added import ConfigAdded, StepAdded
from blockwright_spec.manager.in_time.forks import fork
from blockwright_spec.manager.in_time.in_flight import begin
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Step
from blockwright_spec.manager.state import Config, Content, Fence, Hit, Running, State, Waiting, initial
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.manager.transitions import admit, append_output, arrive, find, grow, preempt, release
from blockwright_spec.reads import Cross, Full, Group, Kind, Mamba, Prefix, Sliding, cut

PROMPT: Prefix = (0, (7, 8, 9, 7, 8))
BY_ID = {law.id: law.holds for law in LAWS}
STEPS_BY_ID = {law.id: law.holds for law in STEP_LAWS}


def after(outcome: Outcome) -> State:
    """The state after a step that must happen."""
    assert isinstance(outcome, Done), outcome
    return outcome.state


def admitted(state: State, slot: int, new: int | None = None) -> State:
    """The state after `slot` has sent PROMPT, looked it up, and been admitted, whole unless told."""
    state = after(find(after(arrive(state, slot, PROMPT)), slot, LRU))
    request = state.requests[slot]
    assert isinstance(request, Waiting)
    hit: Hit = request.hit
    return after(admit(state, slot, hit, Step(new or len(PROMPT[1]) - hit.length), LRU))


def put_out(state: State, slot: int, token: int) -> State:
    """The state after one more token and its step."""
    state = after(append_output(state, slot, (token,)))
    request = state.requests[slot]
    assert isinstance(request, Running)
    return after(grow(state, slot, request.computed, Step(1), LRU))


def manager(*groups: tuple[Kind, int], caching: bool = True) -> State:
    """The state of a new manager with these kinds and block sizes."""
    return initial(Config(tuple(Group(*group) for group in groups), 8 * len(groups), 12, caching), 2)


FULL = admitted(admitted(manager((Full(), 2)), 0), 1)
SLIDING = put_out(admitted(manager((Sliding(2), 2)), 0), 0, 1)
MAMBA = put_out(admitted(manager((Mamba(), 2)), 0), 0, 1)
UNCACHED = admitted(manager((Mamba(), 2), caching=False), 0)
BOTH = put_out(admitted(admitted(manager((Full(), 1), (Sliding(3), 2)), 0), 1), 0, 1)
DRAFTED = admitted(manager((Mamba(2), 2)), 0)
ENCODED = after(
    admit(
        after(arrive(manager((Full(), 2), (Cross(), 2), caching=False), 0, PROMPT)),
        0,
        Hit(),
        Step(5, added=StepAdded(encoder=3)),
        LRU,
    )
)


def timed(settles: bool) -> State:
    """A step in flight for a request that has ended and one that runs, and another step for the latter."""
    config = Config((Group(Full(), 2), Group(Sliding(2), 2)), 16, 12, added=ConfigAdded(overlaps=True, settles=settles))
    state = admitted(admitted(after(begin(initial(config, 2))), 0, 4), 1, 5)
    state = after(begin(after(release(state, 1, LRU))))
    return after(grow(state, 0, 4, Step(2), LRU))


EAGER, SETTLED = timed(False), timed(True)
FORKED = after(fork(after(arrive(admitted(manager((Full(), 2)), 0), 1, PROMPT)), 0, 1, LRU))
PARTED = put_out(FORKED, 0, 1)
LOADING = after(
    admit(after(arrive(manager((Full(), 2)), 0, PROMPT)), 0, Hit(), Step(0, added=StepAdded(external=4)), LRU)
)
FENCED = after(preempt(LOADING, 0, LRU))
GOOD = (FULL, SLIDING, MAMBA, UNCACHED, BOTH, DRAFTED, ENCODED, EAGER, SETTLED, LOADING, FENCED, FORKED, PARTED)


def request_of(state: State, slot: int = 0) -> Running:
    """The running request of a slot."""
    request = state.requests[slot]
    assert isinstance(request, Running)
    return request


def request_changed(state: State, slot: int = 0, **fields: object) -> State:
    """The state with fields of a running request changed."""
    requests = list(state.requests)
    requests[slot] = replace(request_of(state, slot), **fields)  # type: ignore[arg-type]
    return replace(state, requests=tuple(requests))


def added_changed(state: State, **fields: Any) -> State:
    """The state with fields changed of what a second reading adds to the first request."""
    return request_changed(state, added=replace(request_of(state).added, **fields))


def content_changed(state: State, block: int, prefix: Prefix | None, group: int = 0) -> State:
    """The state with another content in a block."""
    contents = list(state.contents)
    contents[block] = prefix and (group, prefix)
    return replace(state, contents=tuple(contents))


def whole(end: int, group: int = 0) -> Content:
    """What a block of a group holds that ends after `end` tokens of PROMPT."""
    return group, cut(PROMPT, end)


BROKEN: dict[str, State] = {
    "REF-1": replace(FULL, queue=(*FULL.queue, 1)),
    "QUEUE-1": replace(FULL, queue=(*FULL.queue, FULL.queue[0])),
    "NULL-1": replace(FULL, queue=(*FULL.queue, 0)),
    "KEY-1": replace(FULL, keys=(*FULL.keys, (1, whole(4)))),
    "PUB-1": content_changed(FULL, 1, (0, (7, 7))),
    "GHOST-1": content_changed(FULL, FULL.queue[0], cut(PROMPT, 2)),
    "HIT-1": content_changed(FULL, 2, (0, (7, 8, 9, 9))),
    "HIT-2": replace(FULL, keys=((1, (0, (1, (7, 8)))), *FULL.keys[1:])),
    "READ-1": content_changed(FULL, 2, None),
    "TRIM-1": request_changed(SLIDING, settled=6, tables=((1, 2, 3),)),
    "TRIM-2": request_changed(FULL, tables=((0, 2, 3),)),
    "WRITE-1": content_changed(FORKED, 3, (0, (*PROMPT[1], 1))),
    "COPY-1": replace(PARTED, copies=((0, 3, 4), (0, 2, 4))),
    "PUB-2": replace(FULL, keys=FULL.keys[:1]),
    "TABLE-1": request_changed(FULL, tables=((1, 2),)),
    "TABLE-2": request_changed(FULL, tables=((1, 1, 3),)),
    "COMMON-1": request_changed(FULL, 1, tables=((2, 1, 4),)),
    "MAMBA-1": request_changed(MAMBA, tables=((1, 2, 3),)),
    "MAMBA-2": request_changed(UNCACHED, tables=((1, 2),)),
    "LEN-1": request_changed(FULL, computed=6),
    "MAMBA-3": added_changed(DRAFTED, states=((2,),)),
    "MAMBA-4": content_changed(DRAFTED, request_of(DRAFTED).added.states[0][1], cut(PROMPT, 4)),
    "MAMBA-5": replace(MAMBA, keys=((1, whole(6)),)),
    "CROSS-1": request_changed(ENCODED, tables=((1, 2, 3), (4,))),
    "FLIGHT-1": replace(EAGER, queue=(*EAGER.queue, EAGER.flights[0][0].tables[0][0])),
    "SETTLE-1": request_changed(EAGER, settled=4),
    "FENCE-1": replace(EAGER, fences=(replace(EAGER.fences[0], step=2),)),
    "PUB-3": replace(SETTLED, keys=((SETTLED.flights[0][0].tables[0][0], whole(2)),)),
    "LOAD-1": request_changed(LOADING, published=(1,)),
    "LIVE-1": replace(FENCED, queue=FENCED.queue[1:]),
    "LIVE-2": replace(EAGER, fences=(replace(EAGER.fences[0], step=9),)),
    "EXPLAIN-1": replace(FULL, keys=((1, (0, (1, (7, 8)))), *FULL.keys[1:])),
}
"""A state that breaks each law; HIT-3 is about the lookup alone, which no state can make too long."""


def test_the_good_states_are_what_the_broken_ones_are_made_of() -> None:
    tables = [request.tables for state in GOOD for request in state.requests if isinstance(request, Running)]
    assert tables[:5] == [((1, 2, 3),), ((1, 2, 4),), ((0, 0, 3),), ((0, 0, 1),), ((1,),)]
    assert tables[5:7] == [((1, 2, 3, 4, 5, 11), (0, 7, 8)), ((1, 2, 3, 4, 9), (0, 7, 10))]
    assert tables[7:] == [
        ((0, 0, 1),),
        ((1, 2, 3), (4, 5)),
        *[((1, 2, 11), (3, 4, 12))] * 2,
        ((1, 2),),
        *[((1, 2, 3),)] * 2,
        *[((1, 2, block),) for block in (4, 3)],
    ]
    assert [len(state.fences) for state in GOOD] == [0] * 7 + [1, 1, 0, 1, 0, 0]
    assert [state.copies for state in GOOD] == [()] * 12 + [((0, 3, 4),)]


STATES = "full sliding mamba uncached both drafted encoded eager settled loading fenced forked parted".split()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
@pytest.mark.parametrize("state", GOOD, ids=STATES)
def test_law_holds_in_reached_states(law: object, state: State) -> None:
    assert law.holds(state)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BROKEN)
def test_law_fails_in_a_broken_state(name: str) -> None:
    assert not BY_ID[name](BROKEN[name])


def test_every_law_is_seen_to_fail() -> None:
    assert set(BROKEN) | {"HIT-3"} == set(BY_ID)


def test_only_requests_that_compute_have_a_common_prefix() -> None:
    """Two that share two blocks; then one of them is gone behind a fence, or waits for a load that takes them."""
    assert [common_prefix_blocks(FULL, slot, 0, count) for slot in (0, 1) for count in (1, 2)] == [0, 2] * 2
    assert EAGER.fences
    assert [common_prefix_blocks(EAGER, 0, 0, count) for count in (1, 2)] == [3, 0]
    prompt: Prefix = (0, (*PROMPT[1], 7, 8))
    state = after(find(after(arrive(admitted(manager((Full(), 2)), 0), 1, prompt)), 1, LRU))
    hit = state.requests[1].hit  # type: ignore[union-attr]
    state = after(admit(state, 1, hit, Step(0, added=StepAdded(external=2)), LRU))
    for one in (state, after(preempt(state, 1, LRU))):
        assert [common_prefix_blocks(one, slot, 0, count) for slot in (0, 1) for count in (1, 2)] == [3, 0, 0, 0]


def test_a_lookup_that_leaves_no_token_breaks_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_laws, "found", lambda state, prefix, choice: Hit(len(prefix[1])))
    assert not BY_ID["HIT-3"](FULL)


def test_more_ways_to_break_a_law() -> None:
    assert not BY_ID["REF-1"](replace(FULL, queue=FULL.queue[1:])), "a block is lost"
    assert not BY_ID["QUEUE-1"](replace(FULL, keys=(*FULL.keys, (FULL.queue[0], whole(2))))), "a candidate first"
    assert not BY_ID["NULL-1"](replace(FULL, keys=((0, whole(2)),))), "null is published"
    assert not BY_ID["KEY-1"](replace(FULL, config=replace(FULL.config, caching=False))), "keys without caching"
    assert not BY_ID["PUB-1"](replace(content_changed(FULL, 3, PROMPT), keys=((3, whole(5)),))), "a partial block"
    assert not BY_ID["READ-1"](content_changed(MAMBA, held_state(MAMBA), PROMPT)), "a state of another token"
    assert not BY_ID["LEN-1"](request_changed(FULL, published=(3,))), "a block published before it is full"
    behind = request_changed(SLIDING, computed=4, published=(0,))
    assert not BY_ID["LEN-1"](behind), "tokens are known and settled, and not computed"
    assert not BY_ID["REF-1"](replace(EAGER, fences=())), "blocks behind a fence are lost"
    assert not BY_ID["FLIGHT-1"](replace(EAGER, queue=(*EAGER.queue, *EAGER.fences[0].tables[0]))), "of one that ended"
    assert not BY_ID["SETTLE-1"](replace(EAGER, flights=EAGER.flights[1:])), "a step has not been settled"
    assert not BY_ID["FENCE-1"](replace(FENCED, fences=FENCED.fences * 2)), "two loads of one request"
    assert not BY_ID["FENCE-1"](replace(FENCED, fences=(Fence(0, 0, ((1, 2),)),))), "no such step"
    assert not BY_ID["MAMBA-3"](added_changed(DRAFTED, drafts=3)), "more drafts than states"
    assert not BY_ID["WRITE-1"](replace(DRAFTED, keys=((2, whole(5)),))), "a draft's state is published"
    assert not BY_ID["WRITE-1"](replace(FORKED, keys=(*FORKED.keys, (3, whole(5))))), "a partial block is published"
    assert not BY_ID["WRITE-1"](request_changed(FULL, slot=1, computed=4, tables=((1, 2, 3),))), "one has gone on"
    twice = replace(DRAFTED, requests=(DRAFTED.requests[0],) * 2)
    assert not BY_ID["WRITE-1"](twice), "the states of drafts are shared"
    assert not BY_ID["REF-1"](replace(PARTED, requests=(), queue=(*PARTED.queue, 1, 2, 3))), "an end of a copy is free"
    for copies in (((0, 3, 4), (0, 4, 5)), ((0, 4, 4),), ((0, 3, 0),), ((0, 0, 4),)):
        assert not BY_ID["COPY-1"](replace(PARTED, copies=copies)), copies
    assert BY_ID["COPY-1"](replace(PARTED, copies=((0, 3, 4), (0, 3, 5)))), "a block may be copied twice"
    assert not BY_ID["CROSS-1"](request_changed(ENCODED, tables=((1, 2, 3), (0, 5)))), "what an encoder left dies"
    flying = replace(LOADING, flights=((replace(EAGER.flights[0][0], tables=((1, 2),)),),))
    assert not BY_ID["LOAD-1"](flying), "a step computes beyond what is loaded"


def test_a_watermark_that_holds_in_an_idle_pool_breaks_the_law_of_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BY_ID["LIVE-1"](FENCED)
    monkeypatch.setattr(plans, "spare", lambda state, step, is_new: state.config.watermark + step.reserve)
    assert not BY_ID["LIVE-1"](FENCED)


def held_state(state: State) -> int:
    """The block of the last state of the first request."""
    request = state.requests[0]
    assert isinstance(request, Running)
    return request.tables[0][-1]


APART: dict[str, State] = {
    "PUB-1": replace(BOTH, keys=((1, whole(1, 1)), *BOTH.keys[1:])),
    "HIT-1": content_changed(BOTH, 7, cut(PROMPT, 4), group=0),
    "HIT-2": replace(BOTH, keys=tuple((block, (0, prefix)) for block, (_, prefix) in BOTH.keys)),
    "READ-1": content_changed(BOTH, 8, (0, (*PROMPT[1], 1)), group=0),
    "TABLE-2": request_changed(BOTH, tables=((1, 2, 3, 4, 5, 11), (0, 7, 11))),
    "TABLE-1": request_changed(BOTH, tables=((1, 2, 3, 4, 5, 11), (0, 7))),
    "TRIM-1": request_changed(BOTH, tables=((1, 2, 3, 4, 5, 11), (6, 7, 8))),
    "TRIM-2": request_changed(BOTH, tables=((0, 2, 3, 4, 5, 11), (0, 7, 8))),
    "PUB-2": replace(BOTH, keys=tuple((block, content) for block, content in BOTH.keys if content[0] == 0)),
    "LEN-1": request_changed(BOTH, published=(6, 4)),
}
"""A state that breaks each law in one of two groups only."""


@pytest.mark.parametrize("name", APART)
def test_laws_tell_groups_apart(name: str) -> None:
    assert not BY_ID[name](APART[name])


def stepped() -> tuple[State, Done]:
    """A step that trims, takes and publishes: the state before, and its outcome."""
    state = after(append_output(admitted(initial(SLIDING.config, 2), 0), 0, (1, 2)))
    outcome = grow(state, 0, 5, Step(2), LRU)
    assert isinstance(outcome, Done)
    assert outcome.new
    assert outcome.nulled
    return state, outcome


def test_laws_of_steps_hold_of_a_step() -> None:
    assert all(law.holds(*stepped()) for law in STEP_LAWS)


def test_laws_of_steps_can_fail() -> None:
    state, done = stepped()
    table, taken = done.new[0], done.new[0][0]
    lost = replace(done.state, keys=done.state.keys[1:])
    leaked = replace(done.state, queue=done.state.queue[1:])
    assert not STEPS_BY_ID["STEP-1"](state, replace(done, nulled=()))
    assert not STEPS_BY_ID["STEP-1"](state, replace(done, state=request_changed(done.state, tables=((*table, 9, 9),))))
    assert not STEPS_BY_ID["STEP-2"](state, replace(done, state=lost))
    assert not STEPS_BY_ID["STEP-3"](state, replace(done, state=leaked))
    assert not STEPS_BY_ID["STEP-3"](state, replace(done, new=((taken, *done.state.queue[:1]),)))
    assert not STEPS_BY_ID["PLAN-1"](state, replace(done, demand=done.demand + 1))
    assert not STEPS_BY_ID["PLAN-1"](state, replace(done, state=leaked))
    assert len(STEPS_BY_ID) == 8


def test_a_step_tells_what_it_took_the_last_block_of() -> None:
    """Of two blocks of one content the last is told; a content that another block carries is not, nor another order."""
    state = after(arrive(initial(Config((Group(Full(), 1),), 4, 4), 1), 0, PROMPT))
    ends = [(0, cut(PROMPT, end)) for end in (1, 2)]
    twice = replace(state, keys=((1, ends[0]), (2, ends[0]), (3, ends[1])), contents=(None, ends[0], ends[0], ends[1]))
    done = admit(twice, 0, Hit(), Step(3), LRU)
    assert isinstance(done, Done)
    both = ((2, ends[0]), (3, ends[1]))
    assert done.evicted == both
    holds = STEPS_BY_ID["STEP-4"]
    assert holds(twice, done)
    for wrong in ((), both[:1], both[::-1], (*both, both[1]), ((1, ends[0]), both[1]), ((2, ends[1]), both[1])):
        assert not holds(twice, replace(done, evicted=wrong))
    one = admit(twice, 0, Hit(), Step(1), LRU)
    assert isinstance(one, Done)
    assert one.evicted == ()
    assert holds(twice, one)
    assert not holds(twice, replace(one, evicted=((1, ends[0]),))), "block 2 carries it"


def test_laws_of_copies_can_fail() -> None:
    state = after(append_output(FORKED, 0, (1,)))
    done = grow(state, 0, 5, Step(1), LRU)
    assert isinstance(done, Done)
    assert [law.id for law in STEP_LAWS if not law.holds(state, done)] == []
    in_place = request_changed(done.state, tables=((1, 2, 3),))
    alone = replace(done.state, requests=done.state.requests[:1])
    undone = replace(done, copied=())
    assert not STEPS_BY_ID["WRITE-2"](state, replace(done, state=in_place)), "the other reads it"
    assert not STEPS_BY_ID["COPY-2"](state, replace(done, state=content_changed(done.state, 3, (*PROMPT[:1], (7,)))))
    assert not STEPS_BY_ID["COPY-2"](state, replace(done, state=alone)), "nobody keeps the source"
    assert not STEPS_BY_ID["STEP-1"](state, undone), "an entry was replaced, and the outcome does not tell"
    elsewhere = request_changed(done.state, tables=((1, 2, 5),))
    assert not STEPS_BY_ID["STEP-1"](state, replace(done, state=elsewhere)), "not what was copied to"


def test_a_step_that_writes_again_what_another_has_found_breaks_its_law() -> None:
    """Two drafts were accepted, and are taken back, though another request holds their block."""
    state = after(append_output(admitted(manager((Full(), 2)), 0), 0, (1,)))
    state = after(append_output(after(grow(state, 0, 5, Step(3), LRU)), 0, (2, 3), 2))
    for computed, holds in ((8, True), (7, False), (6, False)):
        done = grow(state, 0, computed, Step(1), LRU)
        assert isinstance(done, Done)
        assert STEPS_BY_ID["WRITE-2"](state, done)
        one = done.state.requests[0]
        assert isinstance(one, Running)
        found = replace(done, state=replace(done.state, requests=(one, replace(one, tables=((0, 0, 0, 4),)))))
        assert STEPS_BY_ID["WRITE-2"](state, found) is holds


def test_a_newcomer_that_takes_the_watermark_breaks_its_law() -> None:
    before = after(arrive(admitted(manager((Full(), 2)), 0), 1, PROMPT))
    outcome = admit(before, 1, Hit(), Step(1), LRU)
    assert isinstance(outcome, Done)
    left = len(outcome.state.queue)
    for watermark, holds in ((left, True), (left + 1, False)):
        high = replace(before, config=replace(before.config, watermark=watermark))
        assert STEPS_BY_ID["PLAN-2"](high, outcome) is holds
        assert isinstance(admit(high, 1, Hit(), Step(1), LRU), Done) is holds
        assert STEPS_BY_ID["PLAN-2"](replace(high, queue=tuple(range(1, 8))), outcome), "the pool was idle"
