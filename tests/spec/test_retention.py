"""Property: what a tenant hits beside others is at least what it hits alone in a pool of its floor, whatever others do
and hint, as long as the floors can be left (SHARE-2); hits under any hints are at least those of plain LRU in a pool of
the guarded blocks (HINT-3).

How: every history of requests served one after another, up to a depth, on the specification's own transitions, together
and apart, where states that differ in names only are visited once; and random histories in which requests run beside
one another, of prompts that often end on a block and are asked again, while others hold what the condition lets them.
Laws of single states and steps are those of the scopes. Not covered: windows and recurrent layers, which the law
leaves out: a history below shows why.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from blockwright_conformance.kv_cache.symmetry import Names
from blockwright_spec.hints import Wish
from blockwright_spec.manager import retention
from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.laws import POLICY_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.marks import memory_of
from blockwright_spec.manager.outcomes import Done, Outcome, Step
from blockwright_spec.manager.retention import Retention, leaves_floors
from blockwright_spec.manager.retention_laws import (
    alone,
    law_share_is_as_if_alone,
    law_wrong_hints_are_bounded,
)
from blockwright_spec.manager.state import Absent, Config, Hit, Running, State, initial
from blockwright_spec.reads import Chunked, Full, Group, Prefix, Sliding

LATER = 10_000


def done(outcome: Outcome) -> State:
    assert isinstance(outcome, Done), outcome
    return outcome.state


def served(state: State, prefix: Prefix, wish: Wish = Wish()) -> State:  # noqa: B008
    """Serve one request whole, and say something of it before it ends."""
    state = done(t.arrive(state, 0, prefix))
    hit: Hit = found(state, prefix, LRU)
    outcome = t.admit(state, 0, hit, Step(len(prefix[1]) - hit.length), LRU)
    if not isinstance(outcome, Done):
        return done(t.release(state, 0, LRU))
    state = outcome.state
    if wish.priority and retention.retention_of(state.config):
        state = done(retention.retain(state, 0, wish.tokens, wish.priority, memory_of(state).now + wish.until))
    if wish.first is not None and retention.retention_of(state.config):
        state = done(retention.release_prefix(state, 0, wish.first))
    return done(t.release(state, 0, LRU))


WISHES = (Wish(), Wish(first=0), Wish(2, 1, LATER))
TOKENS = ((0, 0), (0, 1), (1, 1))


def histories(
    config: Config, floor: int, extras: tuple[int, ...], ours: int, depth: int
) -> Iterator[tuple[State, State]]:
    """Yield every pair of states: together, with all hints of the others; apart, without hints, in a pool of the floor.

    `ours` is the tenant whose hits are compared; it hints only if it is alone.
    """
    names = Names()
    pairs = {b"": (initial(config, 1), alone(config, floor))}
    seen: set[bytes] = set()
    for _ in range(depth):
        after: dict[bytes, tuple[State, State]] = {}
        for together, apart in pairs.values():
            yield together, apart
            for extra, tokens, wish in product(extras, TOKENS, WISHES):
                if extra == ours and len(extras) > 1 and wish != Wish():
                    continue
                prefix = (extra, tokens)
                pair = served(together, prefix, wish), served(apart, prefix) if extra == ours else apart
                name = names.digest(pair[0]) + names.digest(pair[1])
                if name not in seen:
                    seen.add(name)
                    after[name] = pair
        pairs = after


def test_share_is_as_if_alone() -> None:
    """SHARE-2."""
    config = Config((Group(Full(), 1),), 6, 2, chapters=(Retention(floors=((1, 3), (4, 2))),))
    for together, apart in histories(config, 3, (1, 4), 1, 4):
        assert all(law_share_is_as_if_alone(together, apart, (1, (*tokens, 0))) for tokens in TOKENS)
        assert [law.id for law in POLICY_LAWS if not law.holds(together)] == []


@pytest.mark.parametrize("guard", [2, 3])
def test_wrong_hints_are_bounded(guard: int) -> None:
    """HINT-3."""
    config = Config((Group(Full(), 1),), 5, 2, chapters=(Retention(guard=guard),))
    for hinted, plain in histories(config, guard, (0,), 0, 5):
        assert all(law_wrong_hints_are_bounded(hinted, plain, (0, (*tokens, 0))) for tokens in TOKENS)


def test_without_a_guard_wrong_hints_do_harm() -> None:
    """So the bound is the guard's doing."""
    config = Config((Group(Full(), 1),), 5, 2, chapters=(Retention(),))
    pairs = histories(config, 4, (0,), 0, 5)
    assert any(not law_wrong_hints_are_bounded(*pair, (0, (*tokens, 0))) for pair in pairs for tokens in TOKENS)


def test_a_share_is_not_left_without_floors() -> None:
    """So SHARE-2 is the floors' doing."""
    config = Config((Group(Full(), 1),), 6, 2, chapters=(Retention(floors=()),))
    pairs = histories(replace(config), 3, (1, 4), 1, 4)
    assert any(not law_share_is_as_if_alone(*pair, (1, (*tokens, 0))) for pair in pairs for tokens in TOKENS)


def test_floors_must_fit() -> None:
    """SHARE-1."""
    config = Config((Group(Full(), 1),), 6, 2, chapters=(Retention(floors=((1, 3), (4, 3))),))
    assert [law.id for law in POLICY_LAWS if not law.holds(initial(config, 1))] == ["SHARE-1"]


class Beside:
    """A random history of a tenant, 1, that runs beside another, 4, and the same requests of the first alone."""

    def __init__(self, group: Group, floors: tuple[int, int], num_blocks: int, random: Random) -> None:
        shares = ((1, floors[0]), (4, floors[1]))
        longest = 3 * group.block_size
        config = Config((group,), num_blocks + 1, longest + 2, chapters=(Retention(floors=shares),))
        self.random, self.longest = random, longest
        self.together = initial(config, 4)
        self.apart = initial(alone(config, floors[0]).config, 4)
        self.asked: list[tuple[int, ...]] = []

    def step(self) -> None:
        """Admit a request, let one go on, or end one: together, and alone too if it is the tenant's."""
        slot = self.random.randrange(4)
        request = self.together.requests[slot]
        if isinstance(request, Absent):
            extra: Hashable = self.random.choice((1, 4))
            prefix = extra, self.prompt()
            outcomes = [admitted(state, slot, prefix) for state in (self.together, self.apart)]
        else:
            assert isinstance(request, Running)
            extra, token, ends = request.prefix[0], self.random.randrange(2), self.random.random() < 0.6
            ends = ends or len(request.prefix[1]) == self.together.config.max_model_len
            states = (self.together, self.apart) if extra == 1 else (self.together,)
            outcomes = [t.release(state, slot, LRU) if ends else grown(state, slot, token) for state in states]
        if all(isinstance(each, Done) for each in outcomes) and leaves_floors(done(outcomes[0])):
            self.together = done(outcomes[0])
            self.apart = done(outcomes[1]) if extra == 1 else self.apart

    def prompt(self) -> tuple[int, ...]:
        """Return a new prompt, or the beginning of an old one: often all of it."""
        if self.asked and self.random.random() < 0.6:
            old = self.random.choice(self.asked)
            return old[: self.random.choice((len(old), self.random.randint(1, len(old))))]
        length = self.random.randint(1, self.longest)
        self.asked.append(tuple(self.random.randrange(2) for _ in range(length)))
        return self.asked[-1]

    def is_kept(self) -> bool:
        return all(law_share_is_as_if_alone(self.together, self.apart, (1, (*tokens, 0))) for tokens in self.asked[-9:])


def admitted(state: State, slot: int, prefix: Prefix) -> Outcome:
    ready, hit = done(t.arrive(state, slot, prefix)), found(state, prefix, LRU)
    return t.admit(ready, slot, hit, Step(len(prefix[1]) - hit.length), LRU)


def grown(state: State, slot: int, token: int) -> Outcome:
    longer = done(t.append_output(state, slot, (token,)))
    request = longer.requests[slot]
    assert isinstance(request, Running)
    return t.grow(longer, slot, request.computed, Step(1), LRU)


@pytest.mark.parametrize("group", [Group(Full(), 1), Group(Full(), 2), Group(Chunked(2), 1)], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_share_is_as_if_alone_where_requests_run_beside_one_another(group: Group, seed: int) -> None:
    """SHARE-2."""
    random = Random(seed)
    beside = Beside(group, (random.choice((3, 4)), random.choice((0, 2))), 9, random)
    for _ in range(80):
        beside.step()
        assert beside.is_kept()
        assert [law.id for law in POLICY_LAWS if not law.holds(beside.together)] == []


def test_a_prompt_that_is_asked_again_costs_no_share() -> None:
    """SHARE-4: charged for its duplicates, the tenant lost a block that it needed (known bug D60)."""
    config = Config((Group(Full(), 1),), 11, 4, chapters=(Retention(floors=((1, 3),)),))
    together, apart = initial(config, 1), alone(config, 3)
    for extra, tokens in ((1, (5,)), (1, (4, 6)), (1, (5,)), (4, (4, 1, 0, 8)), (1, (5, 6)), (4, (5, 0, 5))):
        together = served(together, (extra, tokens))
        apart = served(apart, (extra, tokens)) if extra == 1 else apart
    assert law_share_is_as_if_alone(together, apart, (1, (4, 6)))


def test_with_windows_more_blocks_may_mean_fewer_hits() -> None:
    """So SHARE-2 leaves them out: shares have no part in it, since both pools are of one tenant and plain LRU."""
    config = Config((Group(Sliding(2), 1),), 2, 4)
    larger, smaller = alone(config, 6), alone(config, 5)
    for tokens in ((1, 0, 0, 0), (1,), (0, 0, 2), (1, 0, 0, 0)):
        larger, smaller = served(larger, (0, tokens)), served(smaller, (0, tokens))
    assert not law_share_is_as_if_alone(larger, smaller, (0, (1, 0)))
