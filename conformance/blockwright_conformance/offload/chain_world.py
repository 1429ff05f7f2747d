"""The explorer of chains: every reachable state of a scope, every call and every landing in lock-step.

Contents of blocks are the specification's; `offload_histories` moves real bytes.
"""

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import combinations
from typing import Any

from blockwright_spec.offload.chain_laws import CHAIN_LAWS, CHAIN_STEP_LAWS
from blockwright_spec.offload.chain_outcomes import ChainDone, ChainOutcome, ChainReason, ChainRefusal
from blockwright_spec.offload.chain_state import Chain, Kind, chain, chain_lookup
from blockwright_spec.offload.tier_laws import TIER_LAWS
from blockwright_spec.offload.tier_state import Key

from ..checker.search import Node, Search
from .actions import (
    Cancel,
    ChainAction,
    ChainTold,
    Compute,
    Land,
    Load,
    Store,
    Take,
    Touch,
    chain_enabled,
    chain_told,
    sliced,
)
from .chain_adapter import ChainUnderTest, chain_expected
from .scopes import ChainScope, Slice


def chain_perform(adapter: ChainUnderTest, action: ChainAction) -> tuple[Any, Exception | None]:
    """Make the call of an action, and give its answer or its refusal; what the engine writes is no call."""
    under_test = adapter.chain
    adapter.handed = ()
    try:
        match action:
            case Compute(block):
                return block not in under_test.pins(), None
            case Store(keys, device):
                return under_test.store(list(keys), list(device)), None
            case Load(keys, device):
                return under_test.load(list(keys), list(device)), None
            case Take():
                return adapter.hand_out(), None  # type: ignore[func-returns-value]
            case Land(at, success):
                return under_test.finish(adapter.job_at(at), success), None
            case Cancel(at):
                return under_test.cancel(adapter.job_at(at)), None
            case Touch(keys):
                return under_test.touch(list(keys)), None
    except adapter.package.errors.BlockwrightError as error:
        return None, error


def chain_act(
    adapter: ChainUnderTest, state: Chain, action: ChainAction, keys: Sequence[Key], eager: bool
) -> tuple[ChainTold, list[str]]:
    """Perform an action on a chain and on the specification, and name all differences; the chain moves on."""
    told, jobs = chain_told(state, action, eager), adapter.jobs
    answer, error = chain_perform(adapter, action)
    faults = list(chain_answer_faults(adapter, action, told.steps[0][1], answer, error))
    if faults:
        return told, faults
    done = ChainDone(state)
    for at, (before, outcome) in enumerate(told.steps):
        if at:
            adapter.hand_out()
        if isinstance(outcome, ChainDone):
            adapter.renamed(before, outcome, job_of(action, answer))
            done = replace(done if at else outcome, state=outcome.state, handed=outcome.handed)
    wanted, shown = chain_expected(state, done, jobs, keys), adapter.shown(keys)
    return told, [
        f"{name}: expected {want}, found {found}"
        for name, want, found in zip(wanted._fields, wanted, shown, strict=True)
        if want != found
    ]


def job_of(action: ChainAction, answer: Any) -> int | None:
    """Give the name of the transfer that a call has begun."""
    if isinstance(action, Store):
        return None if answer is None else answer.job_id
    return answer if isinstance(action, Load) else None


def chain_answer_faults(
    adapter: ChainUnderTest, action: ChainAction, outcome: ChainOutcome, answer: Any, error: Exception | None
) -> Iterator[str]:
    """Name the differences in what a call answered."""
    if isinstance(outcome, ChainRefusal):
        wanted = adapter.errors.get(outcome.reason)
        if wanted is None and (error is not None or answer):
            yield f"{outcome.reason.name}: expected None or False, found {error or answer}"
        elif wanted is not None and type(error) is not wanted:
            yield f"expected {wanted.__name__}, found {type(error).__name__}: {error}"
    elif error is not None:
        yield f"refused ({type(error).__name__}: {error}); expected success"
    elif isinstance(action, Compute | Cancel) and answer is not True:
        yield f"expected success, found {answer}"
    elif isinstance(action, Store):
        evicted = tuple(key for at, key in outcome.evicted if at == 0)
        want = (bool(outcome.keys), outcome.keys, evicted)
        if answer is None or want != (
            found := (
                answer.job_id is not None,
                tuple(answer.block_hashes_to_store),
                tuple(answer.block_hashes_evicted),
            )
        ):
            yield f"store: expected {want}, found {answer and found}"


def alike(scope: ChainScope) -> Iterator[dict[Key, Key]]:
    """Give the exchanges of two keys by which the scope stays as it is."""

    def exchanged(slices: Iterable[Slice], names: dict[Key, Key]) -> set[Slice]:
        return {tuple((names.get(key, key), blocks) for key, blocks in each) for each in slices}

    for one, other in combinations(scope.keys, 2):
        names = {one: other, other: one}
        touched = {tuple(names.get(key, key) for key in each) for each in scope.touched}
        if touched == set(scope.touched) and all(
            exchanged(slices, names) == set(slices) for slices in (scope.stores, scope.loads)
        ):
            yield names


def plain(state: Chain, names: dict[Key, Key]) -> tuple[Any, ...]:
    """Give a state with other names, but for contents of places and announcements, which laws derive from the rest."""
    called = names.get
    tiers = [
        ([(called(each.key, each.key), each.place, each.phase.name, each.readers) for each in tier.entries], tier.freed)
        for tier in state.tiers
    ]
    device = [None if part is None else (called(part[0], part[0]), part[1]) for part in state.device]
    transfers = [
        (each.kind.name, [called(key, key) for key in each.keys], each.source, each.target, each.device, each.started)
        for each in state.transfers
    ]
    return tiers, device, transfers


class ChainExplorer(Search[Chain, ChainAction, ChainUnderTest, ChainTold]):
    """Explores one scope, with a chain in lock-step or the specification alone (no factory)."""

    def __init__(
        self,
        scope: ChainScope,
        factory: Callable[..., ChainUnderTest] | None = ChainUnderTest,
        max_transitions: int | None = None,
    ) -> None:
        adapter = factory(scope.config) if factory else None
        super().__init__(scope, Node(chain(scope.config), adapter), max_transitions)
        self.scope, self.alike = scope, list(alike(scope))

    def enabled(self, state: Chain) -> Iterator[ChainAction]:
        """Give every action that the scope allows in a state."""
        return chain_enabled(self.scope, state)

    def reached(self, told: ChainTold) -> Chain:
        """Give the state that an action leads to."""
        return told.state

    def digest(self, state: Chain) -> bytes:
        """Give a name of a state, the same for those that differ in names of keys which are alike in the scope."""
        named = marshal.dumps(plain(state, {}), 2)
        return blake2b(min([named, *(marshal.dumps(plain(state, each), 2) for each in self.alike)])).digest()

    def act(self, adapter: ChainUnderTest | None, state: Chain, action: ChainAction) -> tuple[ChainTold, list[str]]:
        """Perform an action; a chain that fails in a way of its own has a fault."""
        if adapter is None:
            return chain_told(state, action, self.scope.eager), []
        try:
            return chain_act(adapter, state, action, self.scope.keys, self.scope.eager)
        except Exception as error:
            return chain_told(state, action, self.scope.eager), [f"{type(error).__name__}: {error}"]

    def count(self, action: ChainAction, told: ChainTold) -> None:
        """Record that an action happened, or why it did not; and which transfers ended, and how."""
        self.result.fired[f"chain: {told.refusal.reason.name if told.refusal else type(action).__name__}"] += 1
        for _, outcome in told.steps:
            if isinstance(outcome, ChainDone):
                self.result.fired.update(happened(outcome))

    def steps_fault(
        self, node: Node[Chain, ChainUnderTest], told: ChainTold, after: Node[Chain, ChainUnderTest]
    ) -> None:
        """Check the laws of calls."""
        for before, outcome in told.steps:
            for law in CHAIN_STEP_LAWS if isinstance(outcome, ChainDone) else ():
                if not law.holds(before, outcome):
                    self.fail(law.id, law.statement, after)

    def state_fault(self, node: Node[Chain, ChainUnderTest]) -> None:
        """Check the laws of states, of the chain and of each tier, the chain's self-check, and what it finds."""
        for law in CHAIN_LAWS:
            if not law.holds(node.state):
                self.fail(law.id, law.statement, node)
        for law in TIER_LAWS:
            if not all(law.holds(tier) for tier in node.state.tiers):
                self.fail(law.id, law.statement, node)
        if node.adapter is None:
            return
        try:
            node.adapter.chain.check()
            found = [node.adapter.chain.lookup(list(keys)) for keys in self.asked]
        except Exception as error:
            self.fail(getattr(error, "law", "REF-0"), f"{type(error).__name__}: {error}", node)
        else:
            if found != (wanted := [chain_lookup(node.state, keys) for keys in self.asked]):
                self.fail("REF-0", f"lookup: expected {wanted}, found {found}", node)

    @property
    def asked(self) -> list[tuple[Key, ...]]:
        """Give what is looked up in every state: what is loaded, and each key."""
        return [sliced(each)[0] for each in self.scope.loads] + [(key,) for key in self.scope.keys]


def happened(outcome: ChainDone) -> Iterator[str]:
    """Name what came about in a call."""
    for each, success in outcome.ended:
        how = "landed" if success else "failed" if each.started else "dropped"
        yield f"chain: {each.kind.name.lower()} {how}"
    yield from (f"chain: evicted from tier {at}" for at, _ in outcome.evicted)
    yield from ("chain: block dropped" for _ in outcome.dropped)


CHAIN_EVERYTHING = (
    frozenset(f"chain: {reason.name}" for reason in ChainReason)
    | frozenset(f"chain: {action.__name__}" for action in ChainAction.__args__)
    | frozenset(f"chain: {kind.name.lower()} {how}" for kind in Kind for how in ("landed", "failed"))
    | {"chain: store dropped", "chain: load dropped", "chain: block dropped"}
    | {"chain: evicted from tier 0", "chain: evicted from tier 1"}
)
"""What must happen in some scope of a profile: every action, every refusal, and every end of a transfer."""
