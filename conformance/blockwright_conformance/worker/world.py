"""The world of a worker: its rows, and everything that a step hands to the kernels."""

import marshal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

from blockwright_spec.law import Law
from blockwright_spec.manager.outcomes import Reason
from blockwright_spec.manager.state import NULL, initial
from blockwright_spec.reads import Cross, Mamba
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed
from blockwright_spec.worker.inputs import Inputs, slot_at
from blockwright_spec.worker.rows import RowRefusal

from ..checker.history import History, walks
from ..checker.world import Outcome, Reply, World, kind_of
from ..gates import GateResult, Profile
from ..kv_cache.actions import NAMES
from ..kv_cache.symmetry import Names, slot_form
from ..rows import Exploration, ran
from .actions import KINDS, Choice, Places, Serving, WorkerCall, tables_of
from .scopes import LARGE, PROFILES, WorkerScope

SERVED = ("Admit", "Grow", "Append", "Trim", "Preempt", "Release", "FinishLoad", "Fork", "Start", "Settle")
LAW_OF = {
    "tables": "ROW-1", "slots": "SLOT-1", "states_read": "STATE-1", "states_written": "STATE-2", "copies": "COPY-3",
    "positions": "LEN-2", "starts": "LEN-2", "computed": "LEN-2", "lengths": "LEN-2", "encoder": "CROSS-2",
}  # fmt: skip
"""The law that a wrong field of what is handed out breaks."""


class WorkerWorld(World[Serving, Any]):
    table, action = KINDS, WorkerCall
    kinds = (*(kind for kind in KINDS if kind != "Serve"), *(name for name in NAMES if name in SERVED))
    weights: ClassVar[dict[str, int]] = {
        "HandOut": 6, "Batch": 8, "Apply": 3, "Misuse": 4, "Append": 8, "Admit": 6, "Grow": 3, "Start": 12, "Settle": 6,
        "FinishLoad": 3, "Fork": 2,
    }  # fmt: skip
    copied_every: ClassVar[int] = 0
    scope: WorkerScope

    def __init__(self, scope: WorkerScope) -> None:
        super().__init__(scope)
        self.names = Names()

    def initial(self) -> Serving:
        scope = self.scope.engine
        return Serving(initial(scope.config, scope.slots), (None,) * self.scope.rows)

    def kind(self, action: Any) -> str:
        return kind_of(action.arguments[0] if action.kind == "Serve" else action)

    def digest(self, state: Serving) -> bytes:
        """Return a name that is equal for states that differ in the names of blocks only.

        Rows are the manager's tables except for the report of the last batch, of which its target suffices.
        """
        rows = [row and (row.slot, row.certain) for row in state.rows]
        result = [(slot, [len(table) for table in done.new], done.nulled, done.copied) for slot, done in state.result]
        found = [
            [part.found[block] for table in tables_of(state.manager, part.work.slot) for block in table]
            for part in state.parts
        ]
        works = [(work.slot, work.begin, work.new, work.drafts) for work, _ in state.parts]
        named = slot_form(state.manager, self.names), rows, result, works, found
        return blake2b(marshal.dumps(named, 2), digest_size=16).digest()

    def broken_by(self, outcome: Outcome[Serving]) -> list[Law]:
        laws: dict[bool, tuple[Law, ...]] = {True: INPUT_LAWS, False: ROW_LAWS}
        return [law for _, done in outcome.steps for law in laws[isinstance(done, Handed)] if not law.holds(done)]

    def happened(self, state: Serving, action: Any, outcome: Any) -> Iterator[str]:
        yield outcome.refusal.reason.name if outcome.refusal else self.kind(action)
        yield from outcome.events

    def made(self) -> tuple[Any, ...]:
        from .blockwright import BlockwrightWorker  # it imports torch

        return BlockwrightWorker, self.scope

    def perform(self, model: Any, action: Any, state: Serving) -> Reply:
        try:
            return Reply(action.perform(model, state))
        except model.errors as error:
            return Reply(error=error)

    def choices(self, model: Any, state: Serving, action: Any, reply: Reply, shown: Places) -> tuple[Choice]:
        return (Choice(shown, reply.answer if action.kind == "Compact" and reply.answer else ()),)

    def observe(self, model: Any, state: Serving) -> Any:
        return model.places()

    def differences(self, model: Any, action: Any, outcome: Outcome[Serving], reply: Reply, shown: Places) -> list[str]:
        refusal, error = outcome.refusal, reply.error
        places = tuple(None if row is None else row.slot for row in outcome.state.rows)
        if refusal is not None and error is None:
            illegal = refusal.reason in (RowRefusal.ILLEGAL_ORDER, RowRefusal.TAKEN) and action.kind != "Misuse"
            return [f"ROW-2: {shown}: {refusal.reason.value}" if illegal else f"accepted; expected {refusal.reason}"]
        left = refusal is not None and refusal.reason is RowRefusal.ILLEGAL_ORDER and action.kind == "HandOut"
        if error is not None and (refusal is None or left):  # where a step was refused, its rows were left as they were
            return [f"refused ({type(error).__name__}: {error}); expected success"]
        if places != shown:
            law = "ROW-2" if refusal is None else "ROW-3: a refused call changed something"
            return [f"{law}: places of rows: expected {places}, found {shown}"]
        return list(unlike(outcome, reply.answer)) if action.kind == "HandOut" else []

    def examine(self, model: Any, state: Serving) -> list[str]:
        """Run the self-check, and ask for the slots of all positions; those without a block are refused."""
        model.check()
        rows = () if state.result else filter(None, state.rows)
        return [fault for row in rows for fault in self.misplaced(model, state, row)]

    def misplaced(self, model: Any, state: Serving, row: Any) -> Iterator[str]:
        config = state.manager.config
        for at, group in enumerate(config.groups):
            if isinstance(group.kind, Mamba):
                continue
            size, table = group.block_size, row.tables[at]
            stop = min(len(table) * size, row.encoder if isinstance(group.kind, Cross) else config.max_model_len)
            wanted = [slot_at(size, table, position) for position in range(stop)]
            first = max((place + 1 for place in range(stop) if wanted[place] is None), default=0)
            found = model.slots(row.slot, at, first, stop)
            if found != tuple(wanted[first:]):
                yield f"SLOT-1: group {at}: positions {first}..{stop}: expected {wanted[first:]}, found {found}"
            if first:
                with suppress(*model.errors):
                    yield f"SLOT-1: {first - 1} has no block: {model.slots(row.slot, at, 0, first)}"


def unlike(outcome: Outcome[Serving], found: Inputs) -> Iterator[str]:
    """Yield the fields in which the inputs differ, and the laws that those break."""
    wanted, rows = outcome.steps[-1][1].inputs, outcome.state.rows
    for at, (one, other) in enumerate(zip(wanted.groups, found.groups, strict=True)):
        for place, row in enumerate(rows):
            own, shown = row.tables[at] if row else (), other.tables[place]
            if shown != own + (NULL,) * (len(shown) - len(own)):
                yield f"ROW-1: group {at}, row {place}: expected {own}, found {shown}"
        for name in one.__dataclass_fields__:
            if name != "tables" and getattr(one, name) != getattr(other, name):
                yield f"{LAW_OF[name]}: group {at}: {name}: expected {getattr(one, name)}, found {getattr(other, name)}"
    for name in wanted.__dataclass_fields__:
        if name != "groups" and getattr(wanted, name) != getattr(found, name):
            yield f"{LAW_OF[name]}: {name}: expected {getattr(wanted, name)}, found {getattr(found, name)}"


EVENTS = (
    "hit of the step", "left the step", "accepted", "rejected", "second batch", "copies", "copies in a batch",
    "followed with the step", "nothing of a request", Reason.NO_FREE_BLOCKS.name,
)  # fmt: skip
EVERYTHING = frozenset((*SERVED, *EVENTS, *(kind for kind in KINDS if kind not in ("Serve", "Misuse")))) | {
    each.name for each in RowRefusal if each is not RowRefusal.ILLEGAL_ORDER
}


LENGTHS: dict[str, Any] = {"quick": (1, 40), "pr": (6, 120), "nightly": (300, 200)}


def scopes(profile: str) -> tuple[WorkerScope, ...]:
    return (*PROFILES[profile], *LARGE.values())


class WorkerGate(Exploration):
    def row(self, scope: WorkerScope, profile: Profile) -> GateResult:
        if scope.name not in LARGE:
            return Exploration.row(self, scope, profile)
        world = WorkerWorld(scope)
        taken = partial(walks, partial(History, world), *LENGTHS[profile.name])
        return ran("inputs machine", scope.name, [taken], lambda what: what not in EVENTS, world.script)


GATE = WorkerGate(__name__, "worker", "all scopes of inputs", scopes, WorkerWorld, EVERYTHING)
