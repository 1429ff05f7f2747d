"""The state machine of a KV-cache manager, for Hypothesis: a rule for each call of an engine.

`ManagerMachine` drives the specification, a manager and, where torch is installed, the data plane (`plane`) through one
history: after each call every answer and the whole state are compared, every law holds, and the memory of the device
holds what was written. Bundles hold requests, hits, steps in flight and loads; a rule's arguments are those that the
scope allows in the specification's state. A subclass names the manager, and is run as any other machine::

    class MyMachine(ManagerMachine):
        factory = MyAdapter
        scope = world("full, block 2 + sliding 3, block 2", blocks=12, longest=12, calls="chunks preempt")

    TestMyManager = MyMachine.TestCase
    TestMyManager.settings = SETTINGS
"""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, note, seed, settings, stateful, target
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition

from blockwright_spec.manager.facts import is_coming, runs_ahead
from blockwright_spec.manager.state import Absent, Running, State, Waiting
from blockwright_spec.manager.told import evicted
from blockwright_spec.reads import Prefix

from .checker.history import History, HistoryError, replayed, shortest
from .checker.lockstep import Compared
from .kv_cache import requests as options
from .kv_cache.actions import PROMPTED, RUNNING, WAITING, WHOLE
from .kv_cache.adapter import ManagerAdapter
from .kv_cache.blockwright import BlockwrightAdapter
from .kv_cache.calls import KINDS, Call
from .kv_cache.fitting import capabilities_of, fitted, lacking
from .kv_cache.parts import absent
from .kv_cache.scopes import SIZES, Scope, begun, layers, of_groups, sized
from .kv_cache.world import KVCacheWorld

PICKS = st.integers(0, 63)
"""Of several ways to make a call, the one that is taken: the first is the simplest."""
HAS_TORCH = find_spec("torch") is not None
RESUMED: Any = (options.Admit, KINDS["Release"], options.Admit, options.Touch, options.Find)
FORKS = KINDS["Fork"], KINDS["ForkWithCopies"]
RARE = ("evicted", "hits", "copies", "refusals")
"""What histories should have much of (`hypothesis.target`)."""
LAWS_EVERY = 4
FEW, MANY, LENGTHS = 10, 100, (20, 40, 80)
"""Examples of the first search of the gate and the most of others, and the length of their histories, by turns."""

SETTINGS = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
"""Settings of a machine: Hypothesis need not shrink what it finds, since the test that is printed is shortened."""


def world(names: str, blocks: int, longest: int, calls: str = "chunks preempt", **config: Any) -> Scope:
    """Return the scope of a machine: layers by their short names, the most blocks, and the longest request."""
    usual = {"slots": 4, "prompts": begun((2, 4, 7), (0, 1, 4), (0,)), "outputs": (0, 1)}
    return of_groups(layers(names), "machine", blocks, longest, calls, **usual | config)


class Said:
    """A counterexample, made only if Hypothesis prints it: in the last run of an example."""

    def __init__(self, error: HistoryError, factory: Any, has_data: bool) -> None:
        self.asked = error, factory, has_data

    def __repr__(self) -> str:
        return told_as_test(*self.asked).script


class Engine(History[State, ManagerAdapter]):
    """A history with the data plane beside it; everything is judged after every action."""

    def __init__(self, world: KVCacheWorld, has_data: bool) -> None:
        super().__init__(world, laws_every=0)
        self.plane: Any = None
        self.due = False  # whatever is wrong to begin with is seen after the first call as well
        if has_data and not runs_ahead(world.scope.config):  # which only vLLM's worker follows
            from .plane import Plane  # it imports torch

            self.plane = Plane(world.scope)

    def act(self, action: Any) -> Compared:
        before, compared = self.state, super().act(action)
        self.due = self.due or self.state is not before
        if self.plane is not None:
            self.plane.follow(before, action, compared.outcome)
        return compared

    def finish(self) -> None:
        super().finish()
        self.misread()

    def misread(self) -> None:
        if self.plane is not None:
            self.blame(self.plane.misread(self.state), "DATA-1")

    def again(self, action: Any) -> Iterator[Any]:
        """Yield the calls like an action that the scope allows now in its place, those of its own prompt first."""
        scope, kind = self.world.scope, KINDS[action.kind] if isinstance(action, Call) else type(action)
        if kind in WHOLE:
            for each in kind.allowed(scope, self.state):
                yield each
                if kind in FORKS and isinstance(self.state.requests[child := action.arguments[1]], Absent):
                    yield each._replace(arguments=(each.slot, child, *each.arguments[2:]))  # not the first free slot
            return
        request = self.state.requests[action.slot]
        known = RUNNING if isinstance(request, Running) else WAITING if isinstance(request, Waiting) else PROMPTED
        kind = options.Admit if known is PROMPTED and kind is options.AdmitHeld else kind  # it need not be looked up
        own = getattr(request, "prefix", getattr(action, "prefix", None))
        for prefix in dict.fromkeys((own, *scope.prompts * (known is PROMPTED))) if kind in known else ():
            yield from kind.allowed(scope, self.state, action.slot, prefix) if prefix is not None else ()


def told_as_test(error: HistoryError, factory: Any, has_data: bool) -> HistoryError:
    """Shorten the way of an error, once, in the smallest pool that shows a violation; return it with its test."""
    if error.script:
        return error
    for part in range(SIZES + 1):
        world = KVCacheWorld(sized(error.scope, part), factory, is_long=True)
        make = partial(Engine, world, has_data)
        if part == SIZES or (found := replayed(make(), error.violation.actions)) is not None:
            break
    found = shortest(make, found or error.violation)
    error.scope, error.violation = world.scope, found
    error.script = world.script(found.actions, f"{found.law}: {found.detail}")
    return error


def call(name: str = "", **arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a rule, which is drawn only in scopes, and states, that make the call of a name."""

    def marked(method: Callable[..., Any]) -> Any:
        marker: Any = stateful.rule(**arguments)
        made = marker(method)
        ready: Any = stateful.precondition(lambda self: self.may(name))
        return ready(made) if name else made

    return marked


BUNDLES: Any = tuple(map(stateful.Bundle, ("requests", "hits", "steps", "loads")))
REQUESTS, HITS, STEPS, LOADS = BUNDLES


def ruled(name: str, kind: Any, word: str = "", **request: Any) -> Any:
    """Return the rule of a call: on a running request of a bundle, or, without one, on the manager as a whole."""

    def made(self: Any, pick: int, request: int | None = None) -> None:
        if request is None:
            self.made(kind, pick)
        else:
            self.of_request(kind, request, pick)

    made.__name__ = name
    return call(word, pick=PICKS, **request)(made)


class OutOfTime(BaseException):
    """The budget of a search is spent. Hypothesis takes an `Exception` for a failure, and ends no search early."""


class ManagerMachine(stateful.RuleBasedStateMachine):
    """One history of one manager. A subclass sets `factory` (of an adapter, from a `Config`) and `scope`."""

    factory: ClassVar[Any] = BlockwrightAdapter
    scope: ClassVar[Scope] = world("full, block 2", 12, 12)
    has_data: ClassVar[bool] = HAS_TORCH
    """Whether the data plane goes along."""
    totals: ClassVar[Counter[str]] = Counter()
    """What happened in all histories of this class."""

    until: ClassVar[float] = math.inf
    """When no history is begun any more, in seconds of this process (`time.process_time`)."""

    requests, hits, steps, loads = REQUESTS, HITS, STEPS, LOADS

    # ---- the world

    @stateful.initialize(size=st.integers(0, SIZES))
    def begin(self, size: int) -> None:
        """Make a manager with all blocks of the scope, or a part of them."""
        if time.process_time() > type(self).until:
            raise OutOfTime
        factory = type(self).factory
        scope, can = self.scope, capabilities_of(factory)
        scope = fitted(scope, can)
        if words := lacking(scope, can):
            raise ValueError(f"{scope.name}: the manager does not declare {', '.join(words)}")
        self.world = KVCacheWorld(sized(scope, size), factory, is_long=True)
        self.history, self.rare = Engine(self.world, self.has_data), Counter[str]()

    @property
    def state(self) -> Any:
        return self.history.state

    def may(self, name: str) -> bool:
        """Return whether the scope makes a call, by its word or by an option of the scope."""
        scope = self.world.scope
        special = {"start": scope.in_flight > len(self.state.flights) or "start" in scope.calls}
        special |= {"copies": bool(self.state.copies), "idle": absent(self.state) is not None}
        special["look"] = not scope.calls.isdisjoint(("hold", "use"))
        special["waiting"] = any(isinstance(each, Waiting) for each in self.state.requests)
        is_known = name not in ("reset", "forget", "clear") or bool(self.state.keys)  # else there is nothing to lose
        return special.get(name, name in scope.calls and is_known)

    # ---- one call

    def made(self, kind: Any, pick: int, *where: Any) -> Any:
        """Make one of the calls of a kind that the scope allows there; return it, or None if there was none."""
        found = list(kind.allowed(self.world.scope, self.state, *where))
        return self.act(found[pick % len(found)]) if found else None

    def of_request(self, kind: Any, slot: int, pick: int) -> Any:
        """Do the same for the request in a slot; if it allows none, for another."""
        for each in (slot, *range(len(self.state.requests))):
            request = self.state.requests[each]
            if isinstance(request, Running) and (done := self.made(kind, pick, each, request.prefix)):
                return done
        return None

    def act(self, action: Any) -> Any:
        before = self.state
        with self.told():
            outcome: Any = self.history.act(action).outcome
        is_hit = outcome.steps and outcome.hit and outcome.hit.length
        happened = is_hit, len(self.state.copies) > len(before.copies), outcome.refusal is not None
        counts = sum(len(evicted(*each)) for each in outcome.steps), *(int(bool(each)) for each in happened)
        self.rare.update(dict(zip(RARE, counts, strict=True)))
        return action

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have Hypothesis print a fault as a test."""
        try:
            yield
        except HistoryError as error:
            note(Said(error, type(self).factory, self.has_data))
            type(self).until = math.inf  # it is run again
            raise

    # ---- requests

    def free_slot(self, pick: int) -> int | None:
        """Return a slot for a new request: the first that is free, or one that something is still loaded for."""
        slots = [slot for slot, each in enumerate(self.state.requests) if isinstance(each, Absent)]
        usual = [slot for slot in slots if not is_coming(self.state, slot)][:1]
        slots = usual + [slot for slot in slots if is_coming(self.state, slot)]
        return slots[pick % len(slots)] if slots else None

    def admitted(self, kind: Any, prompt: int, pick: int, external: bool = False) -> Any:
        slot = self.free_slot(pick)
        if slot is None:
            return None
        scope = self.world.scope
        prefix: Prefix = scope.prompts[prompt % len(scope.prompts)]
        found = list(kind.allowed(scope, self.state, slot, prefix))
        if kind is options.Admit:
            found = [each for each in found if bool(each.step.external) == external]
        return self.act(found[pick % len(found)]) if found else None

    def running(self, action: Any) -> Any:
        """Return the slot of a request for its bundle if it runs now, else nothing."""
        is_there = action is not None and isinstance(self.state.requests[action.slot], Running)
        return action.slot if is_there else stateful.multiple()

    @call("idle", target=requests, prompt=PICKS, pick=PICKS)
    def admit(self, prompt: int, pick: int) -> Any:
        return self.running(self.admitted(options.Admit, prompt, pick))

    @call("load", targets=(requests, loads), prompt=PICKS, pick=PICKS)
    def admit_and_load(self, prompt: int, pick: int) -> Any:
        return self.running(self.admitted(options.Admit, prompt, pick, external=True))

    @call("look", target=hits, uses=st.booleans(), prompt=PICKS, pick=PICKS)
    def look_up(self, uses: bool, prompt: int, pick: int) -> Any:
        action = self.admitted(options.Touch if uses and self.may("use") else options.Find, prompt, pick)
        return stateful.multiple() if action is None else action.slot

    @call("hold", target=requests, hit=stateful.consumes(hits))
    def use_hit(self, hit: int) -> Any:
        """Admit a waiting request with the hit that it found, which may have gone stale."""
        request = self.state.requests[hit]
        return self.running(
            self.made(options.AdmitHeld, 0, hit, request.prefix) if isinstance(request, Waiting) else None
        )

    @call("waiting", target=requests, kind=st.sampled_from(RESUMED), pick=PICKS)
    def resume(self, kind: Any, pick: int) -> Any:
        """Admit a request that waits, preempted or refused before, end it, or look it up again."""
        slots = [(slot, each) for slot, each in enumerate(self.state.requests) if isinstance(each, Waiting)]
        slot, request = slots[pick % len(slots)]
        return self.running(self.made(kind, pick, slot, request.prefix))

    @call(target=steps, request=requests, pick=PICKS)
    def decode(self, request: int, pick: int) -> Any:
        """Do what an engine does most: a token for every request, and slots for it, in a step of its own."""
        flights = len(self.state.flights)
        if flights and flights == self.world.scope.in_flight:
            self.made(KINDS["Settle"], pick)
        for slot, each in enumerate(self.state.requests):
            if isinstance(each, Running):
                self.made(options.Append, pick, slot, each.prefix)
        if self.world.scope.in_flight:
            self.made(KINDS["Start"], 0)
        for slot in range(len(self.state.requests)):
            if isinstance(one := self.state.requests[slot], Running):
                self.made(options.Grow, pick, slot, one.prefix)
        return flights if len(self.state.flights) > flights else stateful.multiple()

    @call("fork", target=requests, request=requests, pick=PICKS)
    def fork(self, request: int, pick: int) -> Any:
        return self.forked("Fork", request, pick)

    def forked(self, kind: str, request: int, pick: int) -> Any:
        found = [each for each in KINDS[kind].allowed(self.world.scope, self.state) if each.slot == request]
        if not found:
            return stateful.multiple()
        child = found[pick % len(found)].arguments[1]
        was_absent = isinstance(self.state.requests[child], Absent)
        self.act(found[pick % len(found)])
        return child if was_absent and isinstance(self.state.requests[child], Running) else stateful.multiple()

    @call("parted", target=requests, request=requests, pick=PICKS)
    def fork_with_copies(self, request: int, pick: int) -> Any:
        return self.forked("ForkWithCopies", request, pick)

    @call("abort", target=requests, request=stateful.consumes(requests), pick=PICKS)
    def abort(self, request: int, pick: int) -> Any:
        each = self.state.requests[request]
        action = self.made(KINDS["Abort"], pick, request, each.prefix) if isinstance(each, Running) else None
        return stateful.multiple() if action or not isinstance(each, Running) else request

    grow = ruled("grow", options.Grow, request=REQUESTS)
    append = ruled("append", options.Append, request=REQUESTS)
    trim = ruled("trim", KINDS["Trim"], "trim", request=REQUESTS)
    publish = ruled("publish", KINDS["Publish"], "later", request=REQUESTS)
    count_on = ruled("count_on", KINDS["CountOn"], "lease", request=REQUESTS)
    shorten = ruled("shorten", KINDS["Shorten"], "shorten", request=REQUESTS)
    fold = ruled("fold", KINDS["Fold"], "fold", request=REQUESTS)
    retain = ruled("retain", KINDS["Retain"], "hint", request=REQUESTS)
    release_prefix = ruled("release_prefix", KINDS["ReleasePrefix"], "hint", request=REQUESTS)
    release = ruled("release", KINDS["Release"], request=stateful.consumes(REQUESTS))
    preempt = ruled("preempt", KINDS["Preempt"], "preempt", request=stateful.consumes(REQUESTS))

    # ---- steps in flight, and loads

    @call("start", target=steps)
    def start(self) -> Any:
        before = len(self.state.flights)
        self.made(KINDS["Start"], 0)
        return before if len(self.state.flights) > before else stateful.multiple()

    @call(step=stateful.consumes(steps), pick=PICKS)
    def settle(self, step: int, pick: int) -> None:
        """Settle the oldest step: of one that is drawn only its being there matters."""
        self.made(KINDS["Settle"], pick)

    @call("load", target=loads, load=stateful.consumes(loads), pick=PICKS)
    def finish_load(self, load: int, pick: int) -> Any:
        found = [each for each in KINDS["FinishLoad"].allowed(self.world.scope, self.state) if each.slot == load]
        if found:
            self.act(found[pick % len(found)])
        return load if found and is_coming(self.state, load) else stateful.multiple()

    # ---- the manager as a whole

    grow_each = ruled("grow_each", options.GrowEach, "batch")
    publish_each = ruled("publish_each", KINDS["PublishEach"], "delayed")
    take_copies = ruled("take_copies", KINDS["TakeCopies"], "copies")
    reset = ruled("reset", KINDS["Reset"], "reset")
    forget = ruled("forget", KINDS["Forget"], "forget")
    forget_all = ruled("forget_all", KINDS["ForgetAll"], "clear")
    hold = ruled("hold", KINDS["Hold"], "outside")
    take = ruled("take", KINDS["Take"], "outside")
    let_go = ruled("let_go", KINDS["LetGo"], "outside")
    resize = ruled("resize", KINDS["Resize"], "resize")
    tick = ruled("tick", KINDS["Tick"], "hint")

    @call("misuse", request=requests, late=st.booleans(), prompt=PICKS, pick=PICKS)
    def misuse(self, request: int, late: bool, prompt: int, pick: int) -> None:
        if late:
            self.of_request(options.LateHit, request, pick)
        elif pick % 2:
            self.of_request(options.WrongStep, request, pick // 2)
        else:
            self.admitted(options.WrongHit, prompt, pick)

    # ---- what holds after every call

    @stateful.invariant()
    def every_law_holds(self) -> None:
        if self.history.due and len(self.history.actions) % LAWS_EVERY == 0:  # they cost as much as all the rest
            with self.told():
                self.history.judge()

    @stateful.invariant()
    def every_question_is_answered(self) -> None:
        with self.told():
            self.history.examine() if self.history.due else None
        self.history.due = False

    @stateful.invariant()
    def memory_holds_what_was_written(self) -> None:
        with self.told():
            self.history.misread()

    def teardown(self) -> None:
        """Have Hypothesis prefer histories in which much happens that is rare."""
        if hasattr(self, "history"):
            self.totals.update(self.history.fired)
            for name in RARE:
                target(float(self.rare[name]), label=name)


# ---- the gate


def hunt(scope: Scope, factory: Any, seconds: float, first: int, database: Any = None) -> Counter[str]:
    """Run machines of a scope for about some seconds of a core, first on the failures that a database keeps.

    Hypothesis has no budget of time: it gets one search after another, each of as many examples as there is time for,
    with the seeds from `first` on. The first search is whole; after twice the time no more history is begun.

    Returns:
        How often what happened.

    Raises:
        HistoryError: a violation, shortened.
    """
    name, started, examples = re.sub(r"\W+", "_", scope.name), time.process_time(), FEW
    own = {"scope": scope, "factory": staticmethod(factory), "totals": Counter()}
    machine: Any = type(name, (ManagerMachine,), own)
    quiet: Any = {"database": database, "verbosity": Verbosity.quiet, "print_blob": False, "derandomize": False}
    for number in count():
        before, steps = time.process_time(), LENGTHS[number % len(LENGTHS)]
        made = settings(SETTINGS, max_examples=examples, stateful_step_count=steps, **quiet)
        try:
            stateful.run_state_machine_as_test(seed(first + number)(machine), settings=made)
        except (OutOfTime, FlakyStrategyDefinition):  # a history that is not begun draws nothing, unlike the last time
            if time.process_time() < machine.until:
                raise
            break
        except HistoryError as error:
            raise told_as_test(error, factory, machine.has_data) from None
        now = time.process_time()
        machine.until = started + 2 * seconds
        cost, following = (now - before) / examples / steps, LENGTHS[(number + 1) % len(LENGTHS)]
        if (examples := min(MANY, int((started + seconds - now) / cost / following))) < 1:
            break
    return own["totals"]  # type: ignore[return-value]
