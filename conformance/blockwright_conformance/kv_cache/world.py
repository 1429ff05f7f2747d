"""The world of the manager: one scope of it, with the manager that is put through it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from blockwright_spec.law import Law
from blockwright_spec.manager.laws import LAWS, POLICY_LAWS, POLICY_STEP_LAWS, STEP_LAWS
from blockwright_spec.manager.outcomes import Reason
from blockwright_spec.manager.retention import Marking
from blockwright_spec.manager.state import Config, Running, State, Waiting, initial

from ..checker.lockstep import Compared
from ..checker.world import World
from . import lockstep
from .actions import NAMES, call_of, enabled, perform
from .adapter import ManagerAdapter, Observation
from .blockwright import BlockwrightAdapter
from .counterexample import diagnose
from .counterexample.adapter_calls import AdapterCalls
from .fitting import reached
from .parts import Reply, ends_of, names_of
from .requests import GrowEach
from .scopes import Scope
from .symmetry import Names
from .ways import followed

Factory = Callable[[Config], ManagerAdapter]

LOOKUP_LAWS = frozenset(("HIT-1", "HIT-2", "HIT-3", "EXPLAIN-1", "PUB-4"))

WEIGHTS = {"Append": 20, "Grow": 8, "GrowEach": 8, "Admit": 6, "Start": 8, "Settle": 8, "Fork": 2}
"""How often a walk takes an action, others counting 1: requests must grow for blocks to run short."""

View = tuple[frozenset[object], ...]


def lookup_view(state: State) -> View:
    """Return all that the laws of lookups read of a state: keys with the contents under them, and requests' prefixes.

    It does not matter which of several blocks with equal key and content is older. Equal keys over different contents
    break PUB-1, which is judged in every state.
    """
    return (
        frozenset((prefix, state.contents[block]) for block, prefix in state.keys),
        frozenset(request.prefix for request in state.requests if isinstance(request, Running | Waiting)),
    )


class KVCacheWorld(World[State, ManagerAdapter]):
    """One scope; `factory` makes the manager under test.

    In a long history (`is_long`) the manager checks itself after every action, and the report of a batch must be enough
    to keep block tables up to date (REPLICA-1).
    """

    kinds = NAMES
    laws: tuple[Law, ...] = LAWS
    step_laws: tuple[Law, ...] = STEP_LAWS
    weights = WEIGHTS
    examined_every = 16
    scope: Scope

    def __init__(self, scope: Scope, factory: Factory = BlockwrightAdapter, is_long: bool = False) -> None:
        super().__init__(scope)
        self.factory, self.is_long = factory, is_long
        self.declares = getattr(factory, "capabilities", None) is not None
        marked = any(isinstance(each, Marking) for each in scope.config.chapters)
        if marked or hasattr(factory, "policy"):
            kept = "POLICY-" if hasattr(factory, "policy") else ""  # what a policy says of blocks, nobody else knows
            self.laws += tuple([law for law in POLICY_LAWS if law.id.startswith(kept)])
            own = "POLICY-4" if getattr(factory, "chooses", False) else ""  # an order of its own may keep passing ones
            self.step_laws += tuple([law for law in POLICY_STEP_LAWS if law.id.startswith(kept) and law.id != own])
        ends = ends_of(len(self.initial().contents)) if "resize" in scope.calls else ()
        self.names = Names(gives_up=not scope.calls.isdisjoint(("abort", "shorten")), ends=ends)
        self.lookups: dict[tuple[View, bool, int], list[Law]] = {}
        self.of_view = LOOKUP_LAWS if marked else LOOKUP_LAWS | {"LIVE-3"}  # which reads an idle pool as well

    def initial(self) -> State:
        return initial(self.scope.config, self.scope.slots)

    def enabled(self, state: State) -> Iterator[Any]:
        return enabled(self.scope, state)

    def digest(self, state: State) -> bytes:
        return self.names.digest(state)

    def broken(self, state: State) -> list[Law]:
        size = state.config.num_blocks
        seen = lookup_view(state), len(state.queue) == size - 1, size
        if (hits := self.lookups.get(seen)) is None:
            hits = self.lookups[seen] = [law for law in self.laws if law.id in self.of_view and not law.holds(state)]
        return [law for law in self.laws if law.id not in self.of_view and not law.holds(state)] + hits

    def made(self) -> tuple[Any, ...]:
        return self.factory, self.scope.config

    def happened(self, state: State, action: Any, outcome: Any) -> Iterator[str]:
        yield from super().happened(state, action, outcome)
        if self.declares:
            yield from reached(self.scope, state, action, outcome)

    def perform(self, model: ManagerAdapter, action: Any, state: State) -> Reply:
        return perform(model, action, state)

    def choices(self, model: ManagerAdapter, state: State, action: Any, reply: Reply, shown: Any) -> Any:
        slots = [slot for slot, _ in action.asks] if isinstance(action, GrowEach) else range(len(state.requests))
        looks = "deduplicates" not in self.scope.ways  # a block that was replaced is in no table
        return ((lockstep.choice_of(model, state, reply, shown, tuple(slots) if looks else ()), reply, shown),)

    def meaning(self, state: State, action: Any, choice: Any = None) -> Any:
        made, *by = choice or (None,)
        outcome: Any = super().meaning(state, action, made)
        return followed(self.scope.ways, state, outcome, *by) if self.scope.ways and by else outcome

    def observe(self, model: ManagerAdapter, state: State) -> Observation:
        if self.is_long:
            model.check()
        return model.observe(names_of(state))

    def differences(
        self, model: ManagerAdapter, action: Any, outcome: Any, reply: Reply, shown: Observation
    ) -> list[str]:
        faults = lockstep.compare(outcome, reply, model, shown)
        faults += lockstep.miscounted(outcome, call_of(action), shown) + lockstep.mistold(outcome, shown.told)
        if self.is_long and isinstance(action, GrowEach):
            faults += lockstep.unlike_deltas(outcome, action.asks, reply, shown)
        return faults

    def examine(self, model: ManagerAdapter, state: State) -> list[str]:
        model.check()
        return lockstep.examine(model, state, self.scope.prompts, self.scope.calls)

    def script(self, actions: Sequence[Any], fault: str = "") -> str:
        return AdapterCalls(self).way(actions, fault)

    def symptoms(self, model: ManagerAdapter, state: State, action: Any, compared: Compared) -> Iterator[str]:
        return diagnose.symptoms(model, state, action, compared)

    def misanswered(self, model: ManagerAdapter, state: State) -> Iterator[str]:
        return diagnose.misanswered(model, state, self.scope.prompts)


EVERYTHING = frozenset(reason.name for reason in Reason if reason is not Reason.ILLEGAL_CHOICE) | frozenset(
    name for name in NAMES if not name.startswith(("Wrong", "Late"))
)
