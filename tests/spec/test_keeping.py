"""Property: while it fits, a next turn hits what its last one left, however many windows others trim (KEEP-1).

How: every history of requests served one after another, up to a depth, on the specification's own transitions, in pools
of three sizes; and random histories of longer prompts in larger pools, computed in steps of random lengths. Laws of
single states and steps (POLICY-4, POLICY-5) are those of the scopes. Not covered: requests that run beside one another,
which only hold more, and recurrent layers with steps that stop anywhere: they leave no state there.
"""

from dataclasses import dataclass, replace
from itertools import product
from random import Random

import pytest

from blockwright_spec import hints
from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.facts import key
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.keeping import Keeping, spares_of
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.marks import memory_of
from blockwright_spec.manager.outcomes import Done, Outcome, Step
from blockwright_spec.manager.retention_laws import law_next_turn_hits
from blockwright_spec.manager.state import NULL, Config, Running, State, initial
from blockwright_spec.manager.wanted import leaving_at_end, left
from blockwright_spec.reads import Chunked, Full, Group, Kind, Prefix, Sinks, Sliding

KEEPS = Keeping(spares=1)
LEARNS = Keeping(parts=(8, 1, 6), every=4)


def done(outcome: Outcome) -> State:
    assert isinstance(outcome, Done), outcome
    return outcome.state


@dataclass(frozen=True)
class Turn:
    """A turn that has ended: what it left, and how many blocks were let go of as ordinary ones since its beginning."""

    prefix: Prefix
    length: int
    ordinary: int
    hit: int = 0
    held: int = 0


def served(state: State, prefix: Prefix, steps: tuple[int, ...]) -> tuple[State, Turn, int]:
    """Serve a request in steps; return the state, what it left, and the blocks that were held and spared at most."""
    state = done(t.arrive(state, 0, prefix))
    state = done(t.find(state, 0, LRU))
    hit, computed, held = state.requests[0].hit, 0, 0  # type: ignore[union-attr]
    ordinary: set[int] = set()
    for size in steps:
        new = min(size, len(prefix[1]) - max(computed, hit.length))
        before = state
        if computed == 0:
            state, computed = done(t.admit(state, 0, hit, Step(new), LRU)), hit.length + new
        elif new > 0:
            state, computed = done(t.grow(state, 0, computed, Step(new), LRU)), computed + new
        held = max(held, state.config.num_blocks - 1 - len(state.queue) + spares_of(state))
        ordinary |= {block for block in set(state.queue) - set(before.queue) if is_ordinary(state, block)}
    request = state.requests[0]
    assert isinstance(request, Running)
    length, leaving = left(state.config, request), leaving_at_end(state.config, request).passing
    own = {block for table in request.tables for block in table if block != NULL and key(state, block)}
    count = len(own - leaving) + len(ordinary)
    return done(t.release(state, 0, LRU)), Turn((prefix[0], (*prefix[1], 9)), length, count, hit.length), held


def is_ordinary(state: State, block: int) -> bool:
    return key(state, block) is not None and not memory_of(state).marks[block].passing


def after(turns: tuple[Turn, ...], new: Turn, held: int) -> tuple[Turn, ...]:
    """Count what one more request has let go of and held, for each turn that it has not gone on from."""
    kept = tuple(replace(turn, ordinary=turn.ordinary + new.ordinary, held=max(turn.held, held)) for turn in turns)
    return (*(turn for turn in kept if turn.prefix != new.prefix and not goes_on(new, turn)), new)


def goes_on(new: Turn, turn: Turn) -> bool:
    return new.hit == turn.length and new.prefix[1][: new.hit] == turn.prefix[1][: turn.length]


def broken(state: State, turns: tuple[Turn, ...]) -> list[Turn]:
    sums = ((turn, turn.ordinary + turn.held) for turn in turns)
    return [turn for turn, most in sums if not law_next_turn_hits(state, turn.prefix, turn.length, most)]


def promised(state: State, turns: tuple[Turn, ...]) -> int:
    return sum(turn.ordinary + turn.held < state.config.num_blocks for turn in turns)


NO_TURNS: tuple[Turn, ...] = ()
LAYERS = [(Group(Full(), 1), Group(Sliding(2), 1)), (Group(Full(), 2), Group(Chunked(2), 1))]


def explored(config: Config, depth: int) -> tuple[int, int]:
    """Serve every history of prompts; return how often a promise was kept, and how often it was broken."""
    prompts: tuple[Prefix, ...] = ((0, (0, 0, 0)), (0, (0, 1, 0, 0)), (0, (0, 1, 1, 1)), (0, (1, 1, 1, 1)))
    states: list[tuple[State, tuple[Turn, ...]]] = [(initial(config, 1), ())]
    kept = lost = 0
    for _ in range(depth):
        states = [
            (state, after(turns, turn, held))
            for before, turns in states
            for prefix, steps in product(prompts, ((4,), (2, 2)))
            for state, turn, held in (served(before, prefix, steps),)
        ]
        kept += sum(promised(state, turns) for state, turns in states)
        lost += sum(len(broken(state, turns)) for state, turns in states)
    return kept, lost


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize(("keeping", "blocks"), [(KEEPS, 10), (KEEPS, 12), (KEEPS, 14), (LEARNS, 16)])
def test_next_turn_hits(layers: tuple[Group, ...], keeping: Keeping, blocks: int) -> None:
    """KEEP-1."""
    kept, lost = explored(Config(layers, blocks, 5, chapters=(keeping,)), 3)
    assert lost == 0
    assert blocks < 14 or kept > 100


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_promise_is_the_rule_s_doing(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where passing blocks go by age as all others do, it is broken: trimmed windows push others out."""
    if not is_kept:
        monkeypatch.setattr(hints, "PASSING", hints.PLAIN)
    state, turns = initial(Config(LAYERS[0], 76, 13, chapters=(KEEPS,)), 1), NO_TURNS
    for first in range(4):
        state, turn, held = served(state, (0, (first,) * 12), (2,) * 6)
        turns = after(turns, turn, held)
    assert promised(state, turns) == 4
    assert (broken(state, turns) == []) == is_kept


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int) -> None:
    """KEEP-1, in longer histories."""
    random = Random(seed)
    kinds: list[Kind] = [Sliding(random.randint(2, 6)), Chunked(random.choice([2, 4])), Sinks(1, 3)]
    windows = random.choice(kinds)
    size = random.choice([1, 2])
    groups = (Group(Full(), size), Group(windows, size), Group(Sliding(3), size))
    parts = random.choice([None, (8, 1, 6)])
    keeping = Keeping(spares=random.randint(0, 3), parts=parts, every=random.choice([0, 4]))
    state, turns = initial(Config(groups, random.randint(40, 90) // size, 24, chapters=(keeping,)), 1), NO_TURNS
    known = [tuple(random.choices((0, 1), k=random.randint(3, 8))) for _ in range(3)]
    for _ in range(25):
        tokens = random.choice(known)[: random.randint(2, 12)] + tuple(random.choices((0, 1), k=random.randint(1, 4)))
        known = [*known[-4:], tokens[:14]]
        steps = tuple(random.randint(1, 6) for _ in range(24))
        state, turn, held = served(state, (0, tokens[:16]), steps)
        turns = after(turns, turn, held)
        assert broken(state, turns) == []
    assert found(state, turns[-1].prefix, LRU).length >= turns[-1].length
