"""A state machine: histories that Hypothesis draws and shrinks, in lock-step, for every kind of layer.

Many small rules, each with a precondition and without branches, so that Hypothesis can leave whole rules out of a run.
A rule draws what it needs from what is possible, so that nothing is rejected.
"""

# ruff: noqa: D102  # the name of a rule says what it does

from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from blockwright_spec.manager.hits import found, sound
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Absent, Hit, Running, Waiting, draft_states, is_loading, recurrent
from blockwright_spec.reads import Prefix

from .actions import (
    Action,
    Admit,
    AdmitHeld,
    Append,
    Find,
    FinishLoad,
    Fork,
    Grow,
    GrowEach,
    LateHit,
    Preempt,
    Publish,
    Release,
    Reset,
    Settle,
    Start,
    TakeCopies,
    Trim,
    WrongHit,
    WrongStep,
    computed_of,
)
from .enabled import wanted
from .scopes import Scope
from .walk import History
from .world import Factory

PICKS = st.integers(0, 2**16)
"""Draws that pick one of the candidates there are."""


class LockstepMachine(RuleBasedStateMachine):
    """Requests of one scope on one manager; see `machine_of`."""

    scope: ClassVar[Scope]
    factory: ClassVar[Factory]
    fired: ClassVar[dict[str, int]]
    """How often what happened, in all runs."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(self.scope, type(self).factory)

    def act(self, action: Action) -> None:
        """Perform an action in lock-step."""
        self.history.act(action)

    def teardown(self) -> None:
        """Check the laws of the last state, and count what happened."""
        self.history.judge_state()
        for name, count in self.history.fired.items():
            self.fired[name] = self.fired.get(name, 0) + count

    # ---- what there is to pick from

    @property
    def absent(self) -> list[int]:
        """Slots whose request is not there."""
        return [slot for slot, request in enumerate(self.history.state.requests) if isinstance(request, Absent)]

    @property
    def waiting(self) -> list[tuple[int, Waiting]]:
        """Requests that wait."""
        return [(slot, each) for slot, each in enumerate(self.history.state.requests) if isinstance(each, Waiting)]

    @property
    def running(self) -> list[tuple[int, Running]]:
        """Requests that hold a table."""
        return [(slot, each) for slot, each in enumerate(self.history.state.requests) if isinstance(each, Running)]

    @property
    def is_open(self) -> bool:
        """Whether slots may be given: steps are not kept apart, or one has been started."""
        return not self.scope.config.overlaps or bool(self.history.state.flights)

    @property
    def hungry(self) -> list[tuple[int, int]]:
        """Running requests that may be given slots, and for how many tokens."""
        return [(slot, want) for slot, each in self.running if (want := wanted(self.history.state, slot, each))]

    @property
    def idle(self) -> list[tuple[int, Running]]:
        """Running requests whose tokens are all computed and that may put out another."""
        most, overlaps = self.scope.max_tokens, self.scope.config.overlaps
        return [
            (slot, each)
            for slot, each in self.running
            if len(each.prefix[1]) < (min(each.settled + 1, most) if overlaps else most)
            and (overlaps or each.computed == len(each.prefix[1]))
        ]

    @property
    def drafted(self) -> list[tuple[int, Running]]:
        """Idle requests whose last step computed drafts."""
        if self.scope.config.overlaps:
            return []
        return [(slot, each) for slot, each in self.idle if each.written > each.computed]

    def known(self, slot: int) -> Prefix:
        """Give the prefix of a running request."""
        return dict(self.running)[slot].prefix

    def admit(self, pick: int, part: int | None = None, **rest: Any) -> None:
        """Admit an absent request, whole or in part."""
        prefix = self.prompt(pick)
        whole = len(prefix[1]) - self.hit(prefix).length
        new = whole if part is None else 1 + part % whole
        self.act(Admit(self.absent[0], prefix, new, encoder=self.scope.encoder, **rest))

    def hit(self, prefix: Prefix) -> Hit:
        """Give what a lookup finds."""
        return found(self.history.state, prefix, LRU) if self.scope.config.caching else Hit()

    def prompt(self, pick: int) -> Prefix:
        """Pick a prompt."""
        return self.scope.prompts[pick % len(self.scope.prompts)]

    # ---- arriving

    @precondition(lambda self: self.absent and self.is_open)
    @rule(pick=PICKS)
    def admit_whole(self, pick: int) -> None:
        self.admit(pick)

    @precondition(lambda self: self.absent and self.is_open)
    @rule(pick=PICKS, part=PICKS)
    def admit_chunk(self, pick: int, part: int) -> None:
        self.admit(pick, part)

    @precondition(lambda self: self.absent and self.is_open)
    @rule(pick=PICKS, part=PICKS, reserve=st.integers(0, 5))
    def admit_planned_and_whole(self, pick: int, part: int, reserve: int) -> None:
        self.admit(pick, part, whole=True, reserve=reserve, planned=True)

    @precondition(lambda self: self.absent and self.is_open)
    @rule(pick=PICKS)
    def admit_unpublished(self, pick: int) -> None:
        self.admit(pick, later=True)

    @precondition(lambda self: self.absent and self.is_open)
    @rule(pick=PICKS)
    def admit_without_lookup(self, pick: int) -> None:
        prefix = self.prompt(pick)
        self.act(Admit(self.absent[0], prefix, len(prefix[1]), 0, False, False))

    @precondition(lambda self: self.absent and self.is_open and not recurrent(self.scope.config))
    @rule(pick=PICKS, ahead=st.integers(1, 5))
    def admit_with_lookahead(self, pick: int, ahead: int) -> None:
        self.admit(pick, lookahead=ahead)

    @precondition(lambda self: self.absent and self.loadable)
    @rule(pick=PICKS, part=PICKS)
    def load(self, pick: int, part: int) -> None:
        prefix, most = self.loadable[pick % len(self.loadable)]
        self.act(Admit(self.absent[0], prefix, 0, external=1 + part % most, encoder=self.scope.encoder))

    @property
    def loadable(self) -> list[tuple[Prefix, int]]:
        """Prompts of which tokens after the hit may be loaded, and how many at most."""
        if is_loading(self.history.state, self.absent[0]):
            return []
        pairs = [(prefix, len(prefix[1]) - 1 - self.hit(prefix).length) for prefix in self.scope.prompts]
        return [(prefix, most) for prefix, most in pairs if most > 0]

    @property
    def loading(self) -> list[tuple[int, int]]:
        """Requests with a load on its way, and how many tokens it is; of those that ended meanwhile, none count."""
        state = self.history.state
        return [
            (slot, each.loading if isinstance(each, Running) else 0)
            for slot, each in enumerate(state.requests)
            if is_loading(state, slot)
        ]

    @precondition(lambda self: self.loading)
    @rule(pick=PICKS)
    def finish_load(self, pick: int) -> None:
        self.act(FinishLoad(*self.loading[pick % len(self.loading)]))

    @precondition(lambda self: self.loading)
    @rule(pick=PICKS, part=PICKS)
    def finish_part_of_a_load(self, pick: int, part: int) -> None:
        slot, most = self.loading[pick % len(self.loading)]
        self.act(FinishLoad(slot, part % (most + 1)))

    # ---- time

    @precondition(lambda self: len(self.history.state.flights) < self.scope.in_flight)
    @rule()
    def start_step(self) -> None:
        self.act(Start())

    @precondition(lambda self: self.history.state.flights)
    @rule()
    def settle_step(self) -> None:
        self.act(Settle())

    @precondition(lambda self: self.history.state.flights)
    @rule(part=PICKS)
    def settle_with_rejections(self, part: int) -> None:
        step = self.history.state.flights[0]
        counts = ((flight.slot, part % (flight.drafts + 1)) for flight in step if flight.slot is not None)
        self.act(Settle(tuple((slot, count) for slot, count in counts if count)))

    @precondition(lambda self: self.history.state.flights)
    @rule()
    def reject_too_many(self) -> None:
        drafts = {flight.slot: flight.drafts for flight in self.history.state.flights[0]}
        self.act(Settle(((0, drafts.get(0, 0) + 1),)))

    # ---- forks

    @precondition(lambda self: self.running and self.absent)
    @rule(pick=PICKS)
    def fork(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(Fork(slot, self.absent[0], request.prefix))

    @precondition(lambda self: self.running and self.absent)
    @rule(pick=PICKS, token=st.integers(0, 1))
    def fork_and_go_on(self, pick: int, token: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        extra, tokens = request.prefix
        self.act(Fork(slot, self.absent[0], (extra, (*tokens[: request.computed], token))))

    @precondition(lambda self: self.running and self.absent)
    @rule(pick=PICKS)
    def fork_to_other_tokens(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        extra, tokens = request.prefix
        self.act(Fork(slot, self.absent[0], (extra, (1 - tokens[0], *tokens[1:]))))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def fork_to_what_runs(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(Fork(slot, self.running[0][0], request.prefix))

    @precondition(lambda self: self.history.state.copies)
    @rule()
    def take_copies(self) -> None:
        self.act(TakeCopies())

    # ---- looking up

    @precondition(lambda self: self.absent)
    @rule(pick=PICKS)
    def find(self, pick: int) -> None:
        self.act(Find(self.absent[0], self.prompt(pick)))

    @precondition(lambda self: self.waiting)
    @rule(pick=PICKS)
    def find_again(self, pick: int) -> None:
        slot, request = self.waiting[pick % len(self.waiting)]
        self.act(Find(slot, request.prefix))

    @precondition(lambda self: self.waiting and self.is_open)
    @rule(pick=PICKS)
    def admit_held(self, pick: int) -> None:
        slot, request = self.waiting[pick % len(self.waiting)]
        self.act(AdmitHeld(slot, len(request.prefix[1]) - request.hit.length))

    @precondition(lambda self: self.waiting)
    @rule(pick=PICKS)
    def give_up_waiting(self, pick: int) -> None:
        self.act(Release(self.waiting[pick % len(self.waiting)][0]))

    # ---- running

    @precondition(lambda self: self.hungry)
    @rule(pick=PICKS, part=PICKS)
    def grow(self, pick: int, part: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        self.act(Grow(slot, 1 + part % most))

    @precondition(lambda self: self.hungry)
    @rule(pick=PICKS, part=PICKS)
    def grow_planned(self, pick: int, part: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        self.act(Grow(slot, 1 + part % most, planned=True))

    @precondition(lambda self: self.hungry)
    @rule(pick=PICKS)
    def grow_unpublished(self, pick: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        self.act(Grow(slot, most, 0, True))

    @precondition(lambda self: self.hungry and not recurrent(self.scope.config))
    @rule(pick=PICKS, ahead=st.integers(1, 5))
    def grow_with_lookahead(self, pick: int, ahead: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        self.act(Grow(slot, most, ahead))

    @precondition(lambda self: self.hungry and not recurrent(self.scope.config))
    @rule(pick=PICKS, drafts=st.integers(1, 3))
    def grow_with_drafts(self, pick: int, drafts: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        self.act(Grow(slot, most + drafts, drafts=drafts if self.scope.config.overlaps else 0))

    @precondition(lambda self: bool(self.hungry and draft_states(self.scope.config)))
    @rule(pick=PICKS, part=PICKS)
    def grow_with_states_of_drafts(self, pick: int, part: int) -> None:
        slot, most = self.hungry[pick % len(self.hungry)]
        drafts = 1 + part % (draft_states(self.scope.config) or 1)
        self.act(Grow(slot, most + drafts, drafts=drafts))

    @precondition(lambda self: self.hungry)
    @rule()
    def grow_all(self) -> None:
        self.act(GrowEach(tuple((slot, 1) for slot, _ in self.hungry)))

    @precondition(lambda self: len(self.hungry) > 1)
    @rule()
    def grow_all_whole_and_backwards(self) -> None:
        self.act(GrowEach(tuple(self.hungry)[::-1]))

    @precondition(lambda self: self.idle)
    @rule(token=st.integers(0, 1))
    def put_out_all(self, token: int) -> None:
        for slot, _ in self.idle:
            self.act(Append(slot, (token,)))

    @precondition(lambda self: self.idle)
    @rule(pick=PICKS, token=st.integers(0, 1))
    def put_out(self, pick: int, token: int) -> None:
        self.act(Append(self.idle[pick % len(self.idle)][0], (token,)))

    @precondition(lambda self: self.drafted)
    @rule(pick=PICKS, part=PICKS, token=st.integers(0, 1))
    def accept(self, pick: int, part: int, token: int) -> None:
        slot, request = self.drafted[pick % len(self.drafted)]
        accepted = 1 + part % (request.written - request.computed)
        self.act(Append(slot, (token,) * accepted, accepted))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def publish(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(
            Publish(slot, min(request.computed, request.settled) if self.scope.config.settles else request.computed)
        )

    @precondition(lambda self: self.running)
    @rule(pick=PICKS, part=PICKS)
    def publish_part(self, pick: int, part: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(Publish(slot, part % (request.computed + 1)))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def trim(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(Trim(slot, request.settled if self.scope.config.overlaps else request.computed))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        self.act(Release(self.running[pick % len(self.running)][0]))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def preempt(self, pick: int) -> None:
        self.act(Preempt(self.running[pick % len(self.running)][0]))

    @precondition(lambda self: not self.running and not self.history.state.fences)
    @rule()
    def reset(self) -> None:
        self.act(Reset())

    # ---- wrong calls

    @precondition(lambda self: self.running)
    @rule()
    def reset_while_running(self) -> None:
        self.act(Reset())

    @precondition(lambda self: self.absent)
    @rule()
    def release_nothing(self) -> None:
        self.act(Release(self.absent[0]))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS, new=st.integers(-3, 0))
    def ask_for_nothing(self, pick: int, new: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(WrongStep(slot, request.prefix, computed_of(self.history.state, slot), new))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS, more=st.sampled_from((1, 2, 2**31, 2**63)))
    def ask_for_too_much(self, pick: int, more: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        computed = computed_of(self.history.state, slot)
        self.act(WrongStep(slot, request.prefix, computed, self.scope.config.max_model_len - computed + more))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def claim_unwritten_tokens(self, pick: int) -> None:
        slot, request = self.running[pick % len(self.running)]
        self.act(WrongStep(slot, request.prefix, request.written + 1, 1))

    @precondition(lambda self: any(self.hit(each.prefix).length for _, each in self.running))
    @rule(pick=PICKS)
    def hit_while_running(self, pick: int) -> None:
        found = [(slot, each.prefix) for slot, each in self.running if self.hit(each.prefix).length]
        self.act(LateHit(*found[pick % len(found)]))

    @property
    def foreign(self) -> list[tuple[Prefix, Prefix, int]]:
        """Pairs of prompts where the second one's hit is not the first one's."""
        state, prompts = self.history.state, self.scope.prompts
        hits = [(other, self.hit(other)) for other in prompts]
        return [
            (prefix, other, hit.length)
            for other, hit in hits
            for prefix in prompts
            if 0 < hit.length < len(prefix[1]) and not sound(state, prefix, hit)
        ]

    @precondition(lambda self: self.absent and self.foreign)
    @rule(pick=PICKS)
    def bring_a_foreign_hit(self, pick: int) -> None:
        foreign = self.foreign
        self.act(WrongHit(self.absent[0], *foreign[pick % len(foreign)]))


def machine_of(scope: Scope, factory: Factory) -> type[LockstepMachine]:
    """Make the state machine of a scope."""
    return type("Machine", (LockstepMachine,), {"scope": scope, "factory": staticmethod(factory), "fired": {}})


def run_machine(scope: Scope, factory: Factory, examples: int, steps: int, derandomize: bool = True) -> dict[str, int]:
    """Run the state machine of a scope; say how often what happened.

    Raises:
        HistoryError: a violation, with the shortest history that Hypothesis found.
    """
    machine = machine_of(scope, factory)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    return machine.fired
