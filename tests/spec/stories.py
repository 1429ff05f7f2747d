"""What the tests of the specification share: managers, and requests that come as far as a story needs them."""

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Reason, Refusal, Step
from blockwright_spec.manager.state import Config, Content, Hit, Running, State, Table, Waiting, initial
from blockwright_spec.reads import Full, Group, Kind, Prefix, Sliding


def done(outcome: Outcome) -> Done:
    assert isinstance(outcome, Done), outcome
    return outcome


def why(outcome: Outcome) -> Reason:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason


def prompt(*tokens: int) -> Prefix:
    return 0, tokens


def running(state: State, slot: int = 0) -> Running:
    request = state.requests[slot]
    assert isinstance(request, Running)
    return request


def hit_of(state: State, slot: int) -> Hit:
    request = state.requests[slot]
    assert isinstance(request, Waiting)
    return request.hit


def sent(state: State, slot: int, prefix: Prefix) -> State:
    return done(t.find(done(t.arrive(state, slot, prefix)).state, slot, LRU)).state


def admitted(state: State, slot: int, prefix: Prefix) -> State:
    state = sent(state, slot, prefix)
    hit = hit_of(state, slot)
    return done(t.admit(state, slot, hit, Step(len(prefix[1]) - hit.length), LRU)).state


def manager(
    kind: Kind | None = None, size: int = 2, blocks: int = 8, caching: bool = True, eagle: bool = False
) -> State:
    return initial(Config((Group(kind or Full(), size),), blocks, 12, caching, eagle), 3)


def held(*tokens: int, group: int = 0) -> Content:
    return group, prompt(*tokens)


def table_of(state: State, slot: int = 0) -> Table:
    (table,) = running(state, slot).tables
    return table


def both(blocks: int = 12, caching: bool = True) -> State:
    """A manager of two groups over one pool: full attention in blocks of 1, a window of 3 in blocks of 2."""
    return initial(Config((Group(Full(), 1), Group(Sliding(3), 2)), blocks, 12, caching), 3)
