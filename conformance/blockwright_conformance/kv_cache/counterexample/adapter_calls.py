"""Counterexamples as tests: the calls of a manager's adapter, run as they are printed; they fail on the fault.

Where the answer of the last action's calls is not the specification's, the line asserts the right one. The test passes
once the manager is mended, if it chooses the same blocks up to there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.laws import EVENT_LAWS, METRIC_LAWS, POLICY_LAWS, POLICY_STEP_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Reason, When
from blockwright_spec.manager.state import NULL, State
from blockwright_spec.manager.table_laws import common_prefix_blocks

from ...checker.lockstep import act
from ...checker.recorded import QUIET, Made, Written, first_line
from ..abstraction import compared as comparable
from ..abstraction import expected
from ..adapter import Found, Observation
from ..lockstep import bare
from ..parts import OTHER

ANYTHING: Final = object()
"""What is expected of an answer that is not judged."""

NOTHING_SHOWN: Final = Observation(None)  # type: ignore[arg-type]


class Wrong(NamedTuple):
    """The call must be refused by an error; `kind` is the adapter's attribute that lists the errors."""

    why: str
    kind: str = "errors"


def due(world: Any, state: State, action: Any, outcome: Any, call: Made) -> Any:
    """Return the specification's answer to a call of an action."""
    reason = outcome.refusal.reason if outcome.refusal else None
    if call.name in ("find", "touch"):
        return ANYTHING if outcome.hit is None else Found(outcome.hit.length, outcome.hit.tables)
    if call.name == "observe" and reason is Reason.ILLEGAL_CHOICE:  # whichever blocks are taken, so many are
        return NOTHING_SHOWN._replace(free=len(world.meaning(state, action).state.queue))
    if call.name == "observe":
        return expected(outcome.state)
    if reason is Reason.ILLEGAL_CHOICE and call.name in ("allocate", "commit"):
        free = {*state.queue, *world.meaning(state, action).state.queue}
        return frozenset(free.difference(*(outcome.hit.tables if outcome.hit else ())))
    if reason is Reason.ILLEGAL_CHOICE:
        return ANYTHING
    if reason is not None and (reason.value[0] is When.INVALID or reason is Reason.TOO_LONG):
        return Wrong(reason.value[1], "stale" if reason is Reason.HIT_STALE else "errors")
    if call.name in ("allocate", "commit"):
        return outcome.steps[-1][1].new if outcome.steps else None
    if call.name.startswith("allocate_each"):
        return [step.new for _, step in outcome.steps], reason is None
    return reason is None if call.name in ("fork", "reset") else ANYTHING


class AdapterCalls(Written):
    """Calls of an adapter; those of the last action are judged, and the answers to questions after it."""

    asked = (*POLICY_LAWS, *POLICY_STEP_LAWS, *EVENT_LAWS, *METRIC_LAWS)

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.prompts: dict[str, Any] = {}
        self.due: Callable[[Made], Any] = lambda call: ANYTHING
        self.is_told = False
        """The last action shows the fault, and not an answer to a question."""

    def way(self, actions: Sequence[Any], fault: str) -> str:
        self.is_told = fault.startswith("DATA-1")
        return super().way(actions, fault)

    def last(self, recorder: Any, state: State, actions: Sequence[Any]) -> list[str]:
        lines, self.quiet = list[str](), QUIET - {"check", "observe"}
        for action in actions:
            compared = act(self.world, recorder, state, action)
            outcome, self.is_told = compared.outcome, self.is_told or bool(compared.faults)
            self.due = partial(due, self.world, state, action, outcome)
            lines += self.taken()
            state = outcome.state
        if not self.fails:  # what was asked last is what went wrong
            with suppress(Exception):
                self.world.examine(recorder, state)
            self.due = partial(self.question_due, state)
            lines += self.questions()
        return lines

    def questions(self) -> list[str]:
        """Return the question that is answered wrong, and what it is about; else all, if they show the fault."""
        calls, self.calls = [each for each in self.calls if each.name != "check" or each.error], []
        lines = list[str]()
        for at, each in enumerate(calls):
            lines += self.lines(each)
            if self.fails:
                about = [
                    one.line for one in calls[:at] if one.name == "send" and one.arguments[:1] == each.arguments[:1]
                ]
                return [*about[-1:], *self.lines(each)]
        return [] if self.is_told else lines

    def maker(self, factory: Any) -> str:
        if command := getattr(factory, "command", None):
            return f"{self.named(factory.__module__, 'started')}({command!r})"
        if policy := getattr(factory, "policy", None):
            made = self.named(factory.__module__, type(factory).__name__)
            return f"{made}({self.imported(policy, 'Policy')})"
        return super().maker(factory)

    def question_due(self, state: State, call: Made) -> Any:
        if call.name == "find" and call.arguments[0] in self.prompts:
            hit = found(state, self.prompts[call.arguments[0]], LRU)
            return Found(hit.length, hit.tables)
        if call.name == "common_prefix" and call.answer is not None:
            name, count = call.arguments
            groups = range(len(state.config.groups))
            return tuple(common_prefix_blocks(state, int(name.removeprefix("r")), group, count) for group in groups)
        return ANYTHING

    def lines(self, call: Made) -> list[str]:
        wanted = self.due(call)
        if call.name == "send":
            self.prompts[call.arguments[0]] = call.arguments[1]
        if isinstance(wanted, Wrong) and not isinstance(call.error, getattr(self.model, wanted.kind)):
            self.named("unittest", "TestCase")
            return self.failing(
                f"with TestCase().assertRaises(adapter.{wanted.kind}):  # {wanted.why}", f"    {call.line}"
            )
        if call.error is not None:
            if isinstance(wanted, Wrong) or (wanted is ANYTHING and isinstance(call.error, self.model.errors)):
                return self.suppressed(call)
            line = f"assert {call.line} == {wanted}" if isinstance(wanted, tuple | bool) else call.line
            if wanted is None:
                line = f"assert {call.line} is None"
            return self.failing(f"{line}  # raises {type(call.error).__name__}: {first_line(call.error)}")
        if lines := () if wanted is ANYTHING else tuple(self.asserted(call, wanted)):
            return self.failing(*lines)
        if call.name == "observe":
            return []
        return [call.line if call.answer is None and call.name != "allocate" else f"{call.line}  # {call.answer}"]

    def failing(self, *lines: str) -> list[str]:
        self.fails = True
        return list(lines)

    def asserted(self, call: Made, wanted: Any) -> Iterator[str]:
        line, answer, follows = call.line, call.answer, self.model.follows_policy
        if call.name == "observe":
            yield from self.shown(line, comparable(wanted, follows), comparable(answer, follows))
        elif isinstance(wanted, Found):
            if bare(answer) != wanted and (follows or wanted.length != answer.length or call.arguments[0] != OTHER):
                is_whole = wanted.length and wanted.length == answer.length
                if is_whole:
                    self.named(Found.__module__, "Found")
                yield (
                    f"assert {line} == {wanted}" if is_whole else f"assert {line}.length == {wanted.length}  # {answer}"
                )
        elif isinstance(wanted, frozenset):
            taken = {block for table in answer or () for block in table if block != NULL}
            if not taken <= wanted:
                yield f"taken = {{block for table in {line} for block in table if block}}"
                yield f"assert taken <= {sorted(wanted)}  # the free blocks".replace("[", "{").replace("]", "}")
        elif call.name.startswith("allocate_each"):
            if ([each.new for each in answer[0]], answer[1]) != wanted:
                yield f"served, whole = {line}"
                yield f"assert ([each.new for each in served], whole) == {wanted}"
        elif answer != wanted:
            yield f"assert {line} {'is' if wanted in (None, True, False) else '=='} {wanted}  # {answer}"

    def shown(self, line: str, wanted: Any, shown: Any) -> Iterator[str]:
        pairs = zip(shown._fields, wanted, shown, strict=True)
        wrong = [(name, want, value) for name, want, value in pairs if None not in (want, value) and want != value]
        if wrong:
            yield f"shown = {line}"
        for name, want, value in wrong:
            field = {"references": "shown.references[1:]"}.get(name, f"shown.{name}")
            if name == "queue" and not self.model.follows_policy:
                field = "tuple(sorted(shown.queue))"
            yield f"assert {field} == {want}  # {value}"
