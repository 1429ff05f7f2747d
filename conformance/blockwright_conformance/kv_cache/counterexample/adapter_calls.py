"""Counterexamples as tests: the calls of a manager's adapter, run as they are printed; they fail on the fault.

The actions are performed once more on a new manager, and every call of the adapter is written down with its answer.
Where the answer of the last action's calls is not the specification's, the line asserts the right one. The test passes
once the manager is mended, if it chooses the same blocks up to there.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.laws import EVENT_LAWS, LAWS, METRIC_LAWS, POLICY_LAWS, POLICY_STEP_LAWS, STEP_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Reason, When
from blockwright_spec.manager.state import NULL, Hit, State
from blockwright_spec.manager.table_laws import common_prefix_blocks

from ...checker.diagnose import NAMED
from ...checker.lockstep import act
from ..abstraction import compared as comparable
from ..abstraction import expected
from ..adapter import Found
from ..lockstep import bare
from ..parts import OTHER

SENTENCES: Final[dict[str, str]] = {
    **tomllib.loads(Path(__file__).with_name("laws.toml").read_text(encoding="utf-8")),
    **{
        law.id: law.statement for law in (*LAWS, *STEP_LAWS, *POLICY_LAWS, *POLICY_STEP_LAWS, *EVENT_LAWS, *METRIC_LAWS)
    },
}

QUIET = frozenset(("copy", "observe"))
"""Calls that are not written down, except those of the last action."""

RUN: Final = 'if __name__ == "__main__":', "    test_counterexample()"
"""The end of a test, for whoever runs it without pytest."""

ANYTHING: Final = object()
"""What is expected of an answer that is not judged."""


class Wrong(NamedTuple):
    """The call must be refused by an error; `kind` is the adapter's attribute that lists the errors."""

    why: str
    kind: str = "errors"


class Made(NamedTuple):
    """One call of the adapter: how it is written, and what came of it."""

    name: str
    line: str
    answer: Any = None
    error: Exception | None = None
    prefix: Any = None
    """Of a request: what was sent under its name."""
    arguments: tuple[Any, ...] = ()


def way(world: Any, actions: Sequence[Any], fault: str) -> str:
    """Return a test that performs a history on a new manager of a world and asserts the specification's answers."""
    factory, config = world.factory, world.scope.config
    written = Written()
    lines = [f"adapter = {written.maker(factory)}({written.text(config)})"]
    try:
        adapter = written.adapter = factory(config)
    except Exception:  # as it will when the test is run
        return written.test(world.scope.name, lines, fault)
    recorder, state = Recorder(adapter, written), world.initial()
    for action in actions[:-1]:
        state = act(world, recorder, state, action).outcome.state
    lines += written.judged(lambda each: ANYTHING)
    written.is_loud = True
    if actions:
        compared = act(world, recorder, state, actions[-1])
        lines += written.judged(partial(due, world, state, actions[-1], compared.outcome))
        state = compared.outcome.state
    if not written.fails:  # what was asked last is what went wrong
        with suppress(Exception):
            world.examine(recorder, state)
        lines += written.judged(partial(asked, state))
    if not written.fails and fault:
        lines.append(f"raise AssertionError({fault!r})")
    return written.test(world.scope.name, lines, fault)


def due(world: Any, state: State, action: Any, outcome: Any, call: Made) -> Any:
    """Return the specification's answer to a call of an action."""
    reason = outcome.refusal.reason if outcome.refusal else None
    if call.name == "find":
        return ANYTHING if outcome.hit is None else found_as(outcome.hit)
    if call.name == "observe":
        return expected(outcome.state)
    if reason is Reason.ILLEGAL_CHOICE:
        free = {*state.queue, *world.meaning(state, action).state.queue}
        return frozenset(free.difference(*(outcome.hit.tables if outcome.hit else ())))
    if reason is not None and (reason.value[0] is When.INVALID or reason is Reason.TOO_LONG):
        return Wrong(reason.value[1], "stale" if reason is Reason.HIT_STALE else "errors")
    if call.name in ("allocate", "commit"):
        return outcome.steps[-1][1].new if outcome.steps else None
    if call.name == "allocate_each":
        return [step.new for _, step in outcome.steps], reason is None
    return reason is None if call.name in ("fork", "reset") else ANYTHING


def found_as(hit: Hit) -> Found:
    return Found(hit.length, hit.tables)


def asked(state: State, call: Made) -> Any:
    if call.name == "find" and call.prefix is not None:
        return found_as(found(state, call.prefix, LRU))
    if call.name == "common_prefix" and call.answer is not None:
        name, count = call.arguments
        groups = range(len(state.config.groups))
        return tuple(common_prefix_blocks(state, int(name.removeprefix("r")), group, count) for group in groups)
    return ANYTHING


class Recorder:
    """An adapter that writes down its calls."""

    def __init__(self, adapter: Any, written: "Written") -> None:
        self._adapter, self._written = adapter, written

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._adapter, name)
        return self._written.call(name, found) if callable(found) and name not in ("errors", "stale") else found


class Written:
    """Calls of an adapter, the lines that make them again, and what those import."""

    def __init__(self) -> None:
        self.adapter: Any = None
        self.calls: list[Made] = []
        self.prompts: dict[str, Any] = {}
        self.names: set[tuple[str, str]] = set()
        self.is_loud, self.fails = False, False

    def test(self, scope: str, lines: list[str], fault: str) -> str:
        """Return the text of a test; above it the fault, and the sentence of each law that it names."""
        laws = [name for name in dict.fromkeys(NAMED.findall(fault)) if name in SENTENCES]
        head = [f"# {scope}: {fault}", *(f"# {name}: {SENTENCES[name]}" for name in laws)] if fault else []
        body = ["def test_counterexample():", *(f"    {each}" for each in lines)]
        return "\n".join([*head, *self.imports(), "", "", *body, "", "", *RUN])

    def imports(self) -> list[str]:
        modules = sorted({module for module, _ in self.names})
        named = {module: ", ".join(sorted(name for each, name in self.names if each == module)) for module in modules}
        return [f"from {module} import {names}" for module, names in named.items()]

    def maker(self, factory: Any) -> str:
        if command := getattr(factory, "command", None):
            return f"{self.named(factory.__module__, 'started')}({command!r})"
        if policy := getattr(factory, "policy", None):
            made = self.named(factory.__module__, type(factory).__name__)
            return f"{made}({self.named(policy.__module__, policy.__qualname__)})"
        return self.named(factory.__module__, factory.__qualname__)

    def named(self, module: str, name: str) -> str:
        """Return a name, which is imported unless it is built in."""
        if module != "builtins":
            self.names.add((module, name.partition(".")[0]))
        return name

    def text(self, value: Any) -> str:
        """Return the expression that makes a value; of records the fields that are not as by default."""
        kind = type(value)
        if isinstance(value, Enum):
            return f"{self.named(kind.__module__, kind.__name__)}.{value.name}"
        if is_dataclass(value):
            values = [(each.name, getattr(value, each.name), each.default) for each in fields(value)]
            words = [f"{name}={self.text(found)}" for name, found, default in values if found != default]
            return f"{self.named(kind.__module__, kind.__qualname__)}({', '.join(words)})"
        if isinstance(value, tuple):
            words = [self.text(each) for each in value]
            return f"({', '.join(words)}{',' if len(words) == 1 else ''})"
        return repr(value)

    def call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if name == "copy" or (name in QUIET and not self.is_loud):
                return method(*arguments)
            if name == "send":
                self.prompts[arguments[0]] = arguments[1]
            line = f"adapter.{name}({', '.join(map(self.text, arguments))})"
            made = Made(name, line, prefix=self.prompts.get(arguments[0]) if arguments else None, arguments=arguments)
            try:
                answer = method(*arguments)
            except Exception as error:
                self.calls.append(made._replace(error=error))
                raise
            self.calls.append(made._replace(answer=answer))
            return answer

        return called

    def judged(self, due: Callable[[Made], Any]) -> list[str]:
        lines = [line for each in self.calls for line in self.lines(each, due(each))]
        self.calls = []
        return lines

    def lines(self, call: Made, wanted: Any) -> list[str]:
        if isinstance(wanted, Wrong) and not isinstance(call.error, getattr(self.adapter, wanted.kind)):
            self.named("unittest", "TestCase")
            return self.failing(
                f"with TestCase().assertRaises(adapter.{wanted.kind}):  # {wanted.why}", f"    {call.line}"
            )
        if call.error is not None:
            kind, said = type(call.error), str(call.error).partition("\n")[0]
            if isinstance(wanted, Wrong) or (wanted is ANYTHING and isinstance(call.error, self.adapter.errors)):
                known = self.named(kind.__module__, kind.__name__)
                self.named("contextlib", "suppress")
                return [f"with suppress({known}): {call.line}  # {said}"]
            line = f"assert {call.line} == {wanted}" if isinstance(wanted, tuple | bool) else call.line
            if wanted is None:
                line = f"assert {call.line} is None"
            return self.failing(f"{line}  # raises {kind.__name__}: {said}")
        if lines := () if wanted is ANYTHING else tuple(self.asserted(call, wanted)):
            return self.failing(*lines)
        if call.name == "observe":
            return []
        return [call.line if call.answer is None and call.name != "allocate" else f"{call.line}  # {call.answer}"]

    def failing(self, *lines: str) -> list[str]:
        self.fails = True
        return list(lines)

    def asserted(self, call: Made, wanted: Any) -> Iterator[str]:
        line, answer, follows = call.line, call.answer, self.adapter.follows_policy
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
        elif call.name == "allocate_each":
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
            if name == "queue" and not self.adapter.follows_policy:
                field = "tuple(sorted(shown.queue))"
            yield f"assert {field} == {want}  # {value}"
