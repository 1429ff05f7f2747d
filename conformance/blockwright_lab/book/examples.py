"""Worked examples: the shortest way to something worth seeing, found by search, with the state after each call."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from blockwright_conformance.checker.counterexample import script
from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.kv_cache.actions import Action, Admit, FinishLoad, Fork, Grow, Settle, meaning
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.parts import ManagerOutcome
from blockwright_conformance.kv_cache.scopes import EVERY, Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.outcomes import Reason
from blockwright_spec.manager.state import NULL, Running, State, holders, key

Record = dict[str, Any]
AnyNode = Node[State, ManagerAdapter]
Goal = Callable[[State, Action, ManagerOutcome], bool]
"""Tells from the state before, the action and what came of it whether this is what was looked for."""


class Example(NamedTuple):
    """What to look for, in which scope of the gates, and what to say of it."""

    id: str
    title: str
    text: str
    laws: str
    scope: str
    goal: Goal


def is_refused(reason: Reason) -> Goal:
    return lambda before, action, told: told.refusal is not None and told.refusal.reason is reason


def is_shared(before: State, action: Action, told: ManagerOutcome) -> bool:
    return any(holders(told.state, block) > 1 for block in range(1, before.config.num_blocks))


def is_found_again(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for an admission on a block that nobody held any more."""
    after = told.state.requests[action.slot] if isinstance(action, Admit) else None
    return isinstance(after, Running) and any(block in before.queue and key(before, block) for block in after.tables[0])


def is_evicted(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for a step that takes a block with the last copy of a content."""
    return any(step.evicted for step in told.done)


def is_nulled(before: State, action: Action, told: ManagerOutcome) -> bool:
    return isinstance(action, Grow) and any(entries for step in told.done for entries in step.nulled)


def is_hit_with_a_null(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for a hit of two groups of which one need not have everything."""
    after = told.state.requests[action.slot] if isinstance(action, Admit) else None
    return isinstance(after, Running) and any(NULL in table for table in after.tables)


def is_copied(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for a step that writes to a block that another request holds."""
    return isinstance(action, Grow) and len(told.state.copies) > len(before.copies)


def is_fenced(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for blocks that were given up while a step in flight touches them."""
    return bool(told.state.fences) and not before.fences


def is_rejected(before: State, action: Action, told: ManagerOutcome) -> bool:
    return isinstance(action, Settle) and bool(action.rejected) and told.refusal is None


def is_part_of_a_load(before: State, action: Action, told: ManagerOutcome) -> bool:
    return isinstance(action, FinishLoad) and action.came > 0 and any(loads(before, action.came)) and not told.refusal


def loads(state: State, came: int) -> Iterator[bool]:
    """Tell of each request whether more of it is being loaded than came."""
    yield from (isinstance(each, Running) and each.loading > came for each in state.requests)


def is_carried(before: State, action: Action, told: ManagerOutcome) -> bool:
    """Look for a recurrent layer whose state went on to a new block."""
    after = [each for each in told.state.requests if isinstance(each, Running)]
    return isinstance(action, Grow) and any(each.tables[0].count(NULL) for each in after)


EXAMPLES: tuple[Example, ...] = (
    Example(
        "shared",
        "Two requests share a block",
        "The second request has the same first token. Its lookup finds the block that the first one filled, and its "
        "table begins with that block: two holders, one copy in memory.",
        "REF-1 HIT-1 READ-1",
        "full, block 1: life",
        is_shared,
    ),
    Example(
        "found-again",
        "A block outlives its request",
        "When the request ends its full block goes to the end of the free queue and stays published. A later request "
        "with the same beginning takes it out of the queue again, content and all.",
        "GHOST-1 STEP-3",
        "full, block 1: life",
        is_found_again,
    ),
    Example(
        "evicted",
        "Taking a block is what evicts",
        "Nothing is evicted ahead of time. A published block loses its key at the moment it is taken for something "
        "else, and blocks without content go first.",
        "QUEUE-1 STEP-2",
        "full, block 1: life",
        is_evicted,
    ),
    Example(
        "trimmed",
        "A window leaves an entry behind",
        "The next token of a sliding layer does not read the first block any more: its entry becomes null before new "
        "blocks are counted, so the freed block can serve the very step that freed it.",
        "TRIM-1 TRIM-2 PLAN-1",
        "sliding 2, block 1: life",
        is_nulled,
    ),
    Example(
        "two-groups",
        "One hit for two groups",
        "A full layer needs every block of the prefix; the sliding layer beside it only those that the next token "
        "reads. The hit is the longest length that suits both, and the sliding head is null where nobody will read.",
        "HIT-1 HIT-2 TRIM-2",
        "full, block 1 + sliding 2, block 1: life",
        is_hit_with_a_null,
    ),
    Example(
        "not-now",
        "Refused: not now",
        "The blocks are held by another request. Nothing has changed after the refusal, so the same call succeeds once "
        "the other one is gone.",
        "LIVE-1",
        "full, block 1: life",
        is_refused(Reason.NO_FREE_BLOCKS),
    ),
    Example(
        "never",
        "Refused: never",
        "The request alone would hold more blocks than the pool has. To wait would be to wait for ever, so the answer "
        "is another one.",
        "LIVE-1",
        "full, block 1: two symbols",
        is_refused(Reason.POOL_TOO_SMALL),
    ),
    Example(
        "stale",
        "A hit goes stale",
        "A lookup protects nothing. Between the lookup and the call that uses it the cache may be reset, or another "
        "request may take the block; the manager notices that it no longer carries the prefix.",
        "HIT-1",
        "full, block 1: held hits",
        is_refused(Reason.HIT_STALE),
    ),
    Example(
        "carried",
        "A recurrent layer moves on",
        "A token of a mamba layer reads only the state after the token before it. The state goes on to a new block, "
        "and the entries before it are null.",
        "MAMBA-1 STATE-1",
        "mamba, block 1: life",
        is_carried,
    ),
    Example(
        "copied",
        "A fork copies on write",
        "Parent and child share a block that is not full. Whoever goes on first gets a block of its own; the pair to "
        "copy is reported, and the other one keeps what it had.",
        "WRITE-2 COPY-1 COPY-2",
        "full, block 2: forks",
        is_copied,
    ),
    Example(
        "fenced",
        "A step in flight keeps what a request gave up",
        "The request is gone, the step that computes its token is not. Its blocks wait behind a fence until that step "
        "is settled; given out at once they would be written by two.",
        "FLIGHT-1 FENCE-1",
        "full, block 1: in flight, eager",
        is_fenced,
    ),
    Example(
        "rejected",
        "Drafts are taken back",
        "The step carried a draft token that the model did not confirm. The request goes back to what is certain; what "
        "was trimmed in between was trimmed on settled tokens only.",
        "SETTLE-1 TRIM-2",
        "sliding 2, block 1: two in flight, eager",
        is_rejected,
    ),
    Example(
        "part-of-a-load",
        "A load comes in part",
        "Tokens were to come from elsewhere and only some came. What came whole is published; nothing of the rest can "
        "be found by anyone.",
        "LOAD-1",
        "full, block 1: loading",
        is_part_of_a_load,
    ),
)
"""The examples, in the order in which they are shown."""


class Seeker(Explorer[State, ManagerAdapter]):
    """Explores a scope up to the first action that is looked for."""

    def __init__(self, each: Scope, goal: Goal) -> None:
        super().__init__(KVCacheWorld(each, laws=()), alone=True)
        self.goal = goal

    def arrived(self, node: AnyNode, action: Any, outcome: Any, after: AnyNode) -> AnyNode | None:
        if self.goal(node.state, action, outcome):
            self.fail("GOAL", "", after.trail)
        return super().arrived(node, action, outcome, after)


@cache
def data() -> Record:
    return {each.id: found(each) for each in EXAMPLES}


def found(example: Example) -> Record:
    each = next((each for each in EVERY if each.name == example.scope), None)
    result = Seeker(each, example.goal).run() if each else None
    if each is None or result is None or result.violation is None:
        raise LookupError(f"example {example.id!r}: {'nothing such in' if each else 'no'} scope {example.scope!r}")
    actions = result.violation.actions
    return {
        "title": example.title,
        "text": example.text,
        "laws": example.laws.split(),
        "scope": example.scope,
        "trace": script(KVCacheWorld(each), actions).splitlines(),
        "steps": list(steps(each, actions)),
    }


def steps(each: Scope, actions: tuple[Action, ...]) -> Iterator[Record]:
    """Return what each action is called and what the state is after it."""
    state = KVCacheWorld(each).initial()
    for action in actions:
        told = meaning(state, action)
        state = told.state
        yield {
            "action": told_action(action),
            "refused": told.refusal.reason.value[1] if told.refusal else None,
        } | after(state)


def told_action(action: Action) -> str:
    """Name an action in a word, and the request that it is about."""
    names = "ABCDEFG"
    slot = getattr(action, "slot", None)
    other = f" to {names[action.child]}" if isinstance(action, Fork) else ""
    return f"{type(action).__name__}{'' if slot is None else f' {names[slot]}'}{other}"


def after(state: State) -> Record:
    return {
        "free": list(state.queue),
        "published": sorted(block for block, _ in state.keys),
        "tables": [
            {"request": "ABCDEFG"[slot], "groups": [list(table) for table in each.tables]}
            for slot, each in enumerate(state.requests)
            if isinstance(each, Running)
        ],
        "fenced": sorted(block for fence in state.fences for table in fence.tables for block in table if block),
        "copies": [[source, target] for _, source, target in state.copies],
    }
