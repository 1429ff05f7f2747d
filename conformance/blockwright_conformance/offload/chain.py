"""The world of a chain of tiers: what engines do with it, and every landing of a transfer.

The engine computes a key's content into the key's blocks of the device, stores and loads slices of its requests, and
hears of transfers in every order. Blocks of the device are named; transfers are by their number under way. Contents of
blocks are the specification's; a history with real bytes moves them (`blockwright_lab.data_movement`).
"""

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import combinations
from typing import Any, ClassVar, NamedTuple

from blockwright_spec.law import Law
from blockwright_spec.offload import chain_calls as calls
from blockwright_spec.offload.chain_effects import parts_of
from blockwright_spec.offload.chain_laws import CHAIN_LAWS, CHAIN_STEP_LAWS
from blockwright_spec.offload.chain_outcomes import ChainDone, ChainOutcome, ChainReason, ChainRefusal
from blockwright_spec.offload.chain_state import Chain, Kind, chain, chain_lookup
from blockwright_spec.offload.tier_events import TOLD_LAWS
from blockwright_spec.offload.tier_laws import TIER_LAWS
from blockwright_spec.offload.tier_resizing import resize_chain, waits_for
from blockwright_spec.offload.tier_state import Key, beyond

from ..checker.lockstep import differing
from ..checker.world import Arguments, Outcome, World
from ..rows import Exploration
from .chain_adapter import ASKED, ChainShown, ChainUnderTest, chain_expected
from .scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, Slice, TierScope, said_in
from .tier import TIER_EVERYTHING, TierWorld, hints, misfound, misrefused
from .tier_adapter import shown_by


class ChainReply(NamedTuple):
    """A chain's answer, or its refusal, and its names of the transfers under way before the call."""

    answer: Any
    error: Exception | None
    jobs: tuple[int | None, ...]


class ChainCall(NamedTuple):
    """One thing that an engine does: most kinds are one call (`KINDS`), whose meaning takes the same arguments."""

    kind: str
    arguments: tuple[Any, ...] = ()

    def outcome(self, state: Chain) -> ChainOutcome:
        match self:
            case "Compute", (block, key, part):
                return calls.overwrite(state, block, (key, part))
            case "Store", (keys, device, said):
                return calls.store(state, keys, device, said_in(said))
        outcome: ChainOutcome = MEANINGS[self.kind](state, *self.arguments)
        return outcome

    def call(self, model: ChainUnderTest) -> Any:
        name = KINDS[self.kind][0]
        match self:
            case "Compute", (block, *_):  # what the engine writes is no call
                return block not in model.chain.pins()
            case "Take", _:
                return model.hand_out()
            case "Store", (keys, device, said):
                told = hints(said_in(said), keys, model.package.offload.BlockHint)
                started = model.call(name, list(keys), list(device), *([told] if told else []))
                if started is not None:
                    model.name(keys)
                return started
            case (("Land" | "Cancel"), (at, *rest)):
                return model.call(name, model.job_at(at), *rest)
        return model.call(name, *[list(each) if isinstance(each, tuple) else each for each in self.arguments])

    def begun(self, answer: Any) -> int | None:
        """Return the chain's own name of the transfer that the call has begun."""
        if self.kind == "Store":
            return None if answer is None else answer.job_id
        return answer if self.kind == "Load" else None

    def answered(self, done: ChainDone, answer: Any) -> Iterator[str]:
        if self.kind == "Store":
            want = bool(done.keys), done.keys, tuple(key for at, key in done.evicted if at == 0)
            found = answer and (answer.job_id is not None, *map(tuple, answer[1:]))
            yield from () if want == found else (f"store: expected {want}, found {found}",)
        elif self.kind == "Resize":
            tier = done.state.tiers[0]
            resized = tier.end, len(beyond(tier)), len(waits_for(done.state))
            found = (*answer[:2], len(answer.transfers))
            yield from () if resized == found else (f"resize: expected {resized}, found {found}",)
        elif answer is False:
            yield "expected success, found False"


def compute(scope: ChainScope, state: Chain) -> Arguments:
    """Yield the parts of keys' contents that the engine may write, each into its block of the device."""
    for key, blocks in dict.fromkeys(pair for each in scope.stores for pair in each):
        for part, block in enumerate(blocks):
            if state.device[block] != (key, part):
                yield block, key, part


def store(scope: ChainScope, state: Chain) -> Arguments:
    """Yield the stores of computed blocks; an engine that does not know of a load tries to store under it, too."""
    if asked(state) < scope.under_way:
        known = (each for each in scope.stores if is_computed(state, each) or loads(state, each))
        yield from ((*sliced(each), scope.said) for each in known)
    if scope.misuse:
        yield from ((*each, ()) for each in wrongly_named(scope))


def load(scope: ChainScope, state: Chain) -> Arguments:
    if asked(state) < scope.under_way:
        yield from map(sliced, scope.loads)
    if scope.misuse:
        yield from wrongly_named(scope)
        keys, device = sliced(scope.loads[0])
        yield keys, device[:1] * len(device)


def wrongly_named(scope: ChainScope) -> Arguments:
    keys, device = sliced(scope.loads[0])
    yield keys[:1] * 2, device[: scope.config.span] * 2
    yield keys, device[1:]


def land(scope: ChainScope, state: Chain) -> Arguments:
    for at, transfer in enumerate(state.transfers):
        if transfer.started or scope.misuse:
            yield from ((at, True), (at, False))
    if scope.misuse:
        yield len(state.transfers), True


def cancel(scope: ChainScope, state: Chain) -> Arguments:
    for at, transfer in enumerate(state.transfers):
        if not scope.eager or (scope.misuse and transfer.started):
            yield (at,)
    if scope.misuse:
        yield (len(state.transfers),)


KINDS: dict[str, tuple[str, Callable[[ChainScope, Chain], Iterable[tuple[Any, ...]]]]] = {
    "Compute": ("", compute),
    "Store": ("store", store),
    "Load": ("load", load),
    "Land": ("finish", land),
    "Cancel": ("cancel", cancel),
    "Touch": ("touch", lambda scope, state: zip(scope.touched)),
    "MakeRoom": ("make_room", lambda scope, state: zip(scope.rooms)),
    "Take": ("", lambda scope, state: () if scope.eager else ((),)),
    "Forget": ("forget", lambda scope, state: zip(scope.forgets)),
    "Resize": ("resize", lambda scope, state: zip(scope.sizes)),
}
"""What an engine does, in the order in which it is tried: the call, and with which arguments a scope allows it."""

MEANINGS: dict[str, Callable[..., ChainOutcome]] = {
    "Load": calls.load, "Land": calls.finish, "Cancel": calls.cancel, "Touch": calls.chain_touch,
    "MakeRoom": calls.make_room, "Take": calls.hand_out, "Forget": calls.forget, "Resize": resize_chain,
}  # fmt: skip


def sliced(each: Slice) -> tuple[tuple[Key, ...], tuple[int, ...]]:
    return tuple(key for key, _ in each), tuple(block for _, blocks in each for block in blocks)


def asked(state: Chain) -> int:
    return sum(each.kind in ASKED for each in state.transfers)


def is_computed(state: Chain, each: Slice) -> bool:
    """Return whether the blocks of a slice hold what its keys name: the engine stores nothing else."""
    return all(tuple(state.device[block] for block in blocks) == parts_of(state, key) for key, blocks in each)


def loads(state: Chain, each: Slice) -> bool:
    device = set(sliced(each)[1])
    return any(other.kind is Kind.LOAD and device & set(other.device) for other in state.transfers)


class ChainWorld(World[Chain, ChainUnderTest]):
    table, action = KINDS, ChainCall
    laws = CHAIN_LAWS
    step_laws = CHAIN_STEP_LAWS
    weights: ClassVar[dict[str, int]] = {
        "Store": 5, "Load": 5, "Land": 6, "Compute": 5, "Cancel": 1, "Touch": 2, "MakeRoom": 2, "Take": 2, "Forget": 2,
        "Resize": 2,
    }  # fmt: skip
    scope: ChainScope
    keys: Sequence[Key]

    def __init__(self, scope: ChainScope, factory: Callable[..., ChainUnderTest] = ChainUnderTest) -> None:
        super().__init__(scope)
        self.factory, self.alike, self.keys = factory, list(alike(scope)), scope.keys
        self.last: tuple[Any, Any, Any] = (None, None, None)
        self.requests = tuple(sliced(each)[0] for each in scope.loads)
        self.asked = [sliced(each)[0] for each in scope.loads] + [(key,) for key in scope.keys]

    def initial(self) -> Chain:
        return chain(self.scope.config)

    def made(self) -> tuple[Any, ...]:
        media = (self.scope.media, self.requests) if self.scope.media else ()
        return self.factory, self.scope.config, *media

    def meaning(self, state: Chain, action: ChainCall, choice: Any = None) -> Outcome[Chain]:
        """Return what comes of an action, and of handing out what may start after it, if that is done at once.

        The last one is remembered, since performing the action asks for it, too.
        """
        if self.last[0] is not state or self.last[1] is not action:
            self.last = state, action, self.outcome(state, action)
        return self.last[2]  # type: ignore[no-any-return]

    def outcome(self, state: Chain, action: ChainCall) -> Outcome[Chain]:
        outcome = action.outcome(state)
        if isinstance(outcome, ChainRefusal):
            return Outcome(state, (), outcome)
        if not self.scope.eager:
            return Outcome(outcome.state, ((state, outcome),))
        taken = calls.hand_out(outcome.state)
        return Outcome(taken.state, ((state, outcome), (outcome.state, taken)))

    def digest(self, state: Chain) -> bytes:
        """Return a name of a state, the same for those that differ in names of keys which are alike in the scope."""
        named = marshal.dumps(plain(state, {}), 2)
        return blake2b(min([named, *(marshal.dumps(plain(state, each), 2) for each in self.alike)])).digest()

    def broken(self, state: Chain) -> list[Law]:
        own = super().broken(state)
        return own + [law for law in TIER_LAWS if not all(law.holds(tier) for tier in state.tiers)]

    def happened(self, state: Chain, action: ChainCall, outcome: Outcome[Chain]) -> Iterator[str]:
        yield f"chain: {outcome.refusal.reason.name if outcome.refusal else action.kind}"
        for _, done in outcome.steps:
            yield from ended(done)

    def perform(self, model: ChainUnderTest, action: ChainCall, state: Chain) -> ChainReply:
        jobs, answer, error = model.begin(), None, None
        try:
            answer = action.call(model)
        except model.package.errors.BlockwrightError as refused:
            error = refused
        reply, outcome = ChainReply(answer, error, jobs), self.meaning(state, action)
        if not any(self.answered(model, action, outcome, reply)):
            for at, (before, done) in enumerate(outcome.steps):
                if at:
                    model.hand_out()
                model.renamed(before, done, action.begun(answer))
        return reply

    def observe(self, model: ChainUnderTest, state: Chain) -> ChainShown:
        return model.shown(self.keys)

    def differences(
        self, model: ChainUnderTest, action: ChainCall, outcome: Outcome[Chain], reply: ChainReply, shown: ChainShown
    ) -> list[str]:
        if faults := list(self.answered(model, action, outcome, reply)):
            return faults
        before = outcome.steps[0][0] if outcome.steps else outcome.state
        expected = chain_expected(before, as_one(outcome), reply.jobs, self.keys)
        if shown.told is None:
            return differing(expected, shown)
        told = shown.told
        wrong = [law for law in TOLD_LAWS if not law.holds(outcome.state, told)]
        faults = [f"{law.id}: {law.statement}: an index of the events says {told}" for law in wrong]
        return faults + differing(expected._replace(events=()), shown._replace(events=(), told=None))

    def answered(
        self, model: ChainUnderTest, action: ChainCall, outcome: Outcome[Chain], reply: ChainReply
    ) -> Iterator[str]:
        answer, error, _ = reply
        if (refusal := outcome.refusal) is not None:
            yield from misrefused(refusal.reason, model.errors, answer, error)
        elif error is not None:
            yield f"refused ({type(error).__name__}: {error}); expected success"
        else:
            yield from action.answered(outcome.steps[0][1], answer)

    def examine(self, model: ChainUnderTest, state: Chain) -> list[str]:
        model.chain.check()
        shown = lambda: [shown_by(each, self.keys) for each in model.chain.tiers]  # noqa: E731  # said of both
        faults: list[str] = []
        for room_made in (False, True):
            wanted = {keys: chain_lookup(state, keys, room_made) for keys in self.asked}
            faults += misfound(partial(model.chain.lookup, room_made=room_made), wanted, shown)
        return faults


def alike(scope: ChainScope) -> Iterator[dict[Key, Key]]:
    """Yield the exchanges of two keys by which the scope stays as it is."""

    def exchanged(slices: Iterable[Slice], names: dict[Key, Key]) -> set[Slice]:
        return {tuple((names.get(key, key), blocks) for key, blocks in each) for each in slices}

    for one, other in combinations(() if scope.said else scope.keys, 2):
        names = {one: other, other: one}
        if all(
            {tuple(names.get(key, key) for key in each) for each in named} == set(named)
            for named in (scope.touched, scope.forgets)
        ) and all(exchanged(slices, names) == set(slices) for slices in (scope.stores, scope.loads)):
            yield names


def plain(state: Chain, names: dict[Key, Key]) -> tuple[Any, ...]:
    """Return a state with other names, without contents and announcements, which laws derive from the rest."""
    called = names.get
    tiers = [
        (
            [(called(each.key, each.key), each.place, each.phase.name, each.readers) for each in tier.entries],
            (tier.freed, tier.end, tier.fresh),
        )
        for tier in state.tiers
    ]
    device = [None if part is None else (called(part[0], part[0]), part[1]) for part in state.device]
    transfers = [
        (each.kind.name, [called(key, key) for key in each.keys], each.source, each.target, each.device, each.started)
        for each in state.transfers
    ]
    stuck = sorted((at, called(key, key)) for at, key in state.stuck)
    return tiers, device, transfers, stuck, sorted(called(key, key) for key in state.forgotten)


def ended(outcome: ChainDone) -> Iterator[str]:
    for each, success in outcome.ended:
        how = "landed" if success else "failed" if each.started else "dropped"
        yield f"chain: {each.kind.name.lower()} {how}"
    yield from (f"chain: evicted from tier {at}" for at, _ in outcome.evicted)
    yield from ("chain: block dropped" for _ in outcome.dropped)


CHAIN_EVERYTHING = (
    frozenset(f"chain: {reason.name}" for reason in ChainReason)
    | frozenset(f"chain: {kind}" for kind in KINDS)
    | frozenset(f"chain: {kind.name.lower()} {how}" for kind in Kind for how in ("landed", "failed"))
    | {"chain: store dropped", "chain: load dropped", "chain: block dropped"}
    | {"chain: evicted from tier 0", "chain: evicted from tier 1"}
)


def as_one(outcome: Outcome[Chain]) -> ChainDone:
    """Return what came of a call, and of handing out what may start after it, as one step."""
    done: list[ChainDone] = [each for _, each in outcome.steps] or [ChainDone(outcome.state)]
    return replace(done[0], state=outcome.state, handed=done[-1].handed)


def world(scope: TierScope | ChainScope) -> World[Any, Any]:
    return TierWorld(scope) if isinstance(scope, TierScope) else ChainWorld(scope)


GATE = Exploration(
    __name__, "offload", "all scopes of offloading",
    lambda profile: (*TIER_PROFILES[profile], *CHAIN_PROFILES[profile]), world, TIER_EVERYTHING | CHAIN_EVERYTHING,
    lambda scope: isinstance(scope, ChainScope),  # those of chains are larger
)  # fmt: skip
