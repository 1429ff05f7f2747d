"""Counterexamples: a history performed once more on a new model, every call written down as Python.

The text is a test: it makes the calls again, on a model that the kit's own factory makes, and fails on the fault. A
world whose calls can be judged one by one has a subclass of `Written` that asserts the right answer to each.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from .diagnose import NAMED
from .lockstep import act
from .world import World

QUIET: Final = frozenset(
    ("begin", "check", "copy", "events", "job_at", "observe", "order", "places", "policy", "renamed", "shown")
)
"""Calls by which the kit observes a model: they are not written down, but for `observe` where it is judged."""

LAWS: Final[dict[str, str]] = tomllib.loads(Path(__file__).with_name("laws.toml").read_text(encoding="utf-8"))
"""The laws of the kit, with their sentences."""

RUN: Final = 'if __name__ == "__main__":', "    test_counterexample()"
"""The end of a test, for whoever runs it without pytest."""


class Made(NamedTuple):
    name: str
    line: str
    answer: Any = None
    error: Exception | None = None
    arguments: tuple[Any, ...] = ()


def first_line(error: object) -> str:
    return str(error).partition("\n")[0]


class Recorder:
    def __init__(self, model: Any, written: "Written") -> None:
        self._model, self._written = model, written

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        is_call = callable(found) and not isinstance(found, type)
        return self._written.call(name, found) if is_call else found


class Written:
    """Calls, the lines that make them again, and what those import."""

    quiet = QUIET
    asked: tuple[Any, ...] = ()
    """Laws that a fault may name beside those of its world."""

    def __init__(self, world: Any) -> None:
        self.world: World[Any, Any] = world
        self.model: Any = None
        self.calls: list[Made] = []
        self.names: set[tuple[str, str]] = set()
        self.fails = False

    def way(self, actions: Sequence[Any], fault: str) -> str:
        factory, *arguments = self.world.made()
        lines = [f"adapter = {self.maker(factory)}({', '.join(map(self.text, arguments))})"]
        try:
            self.model = self.world.model()
        except Exception:  # as it will when the test is run
            return self.test(lines, fault)
        recorder: Any = Recorder(self.model, self)
        state = self.world.initial()
        for action in actions[:-1]:
            state = act(self.world, recorder, state, action).outcome.state
            lines += self.taken() or [f"# {action}"]
        lines += self.last(recorder, state, actions[-1:])
        if not self.fails and fault:
            lines.append(f"raise AssertionError({fault!r})")
        return self.test(lines, fault)

    def last(self, recorder: Any, state: Any, actions: Sequence[Any]) -> list[str]:
        for action in actions:
            act(self.world, recorder, state, action)
        return self.taken()

    def taken(self) -> list[str]:
        lines = [line for each in self.calls for line in self.lines(each)]
        self.calls = []
        return lines

    def lines(self, call: Made) -> list[str]:
        if call.error is not None:
            return self.suppressed(call)
        return [call.line if call.answer is None else f"{call.line}  # {call.answer}"]

    def suppressed(self, call: Made) -> list[str]:
        kind = type(call.error)
        known = self.named(kind.__module__, kind.__name__)
        self.named("contextlib", "suppress")
        return [f"with suppress({known}): {call.line}  # {first_line(call.error)}"]

    def laws(self, fault: str) -> list[str]:
        asked = (*self.world.laws, *self.world.step_laws, *self.asked)
        known = LAWS | {law.id: law.statement for law in asked}
        return [f"# {name}: {known[name]}" for name in dict.fromkeys(NAMED.findall(fault)) if name in known]

    def test(self, lines: list[str], fault: str) -> str:
        """Return the text of a test; above it the fault, and the sentence of each law that it names."""
        head = [f"# {self.world.scope.name}: {fault}", *self.laws(fault)] if fault else []
        body = ["def test_counterexample():", *(f"    {each}" for each in lines)]
        return "\n".join([*head, *self.imports(), "", "", *body, "", "", *RUN])

    def imports(self) -> list[str]:
        modules = sorted({module for module, _ in self.names})
        named = {module: ", ".join(sorted(name for each, name in self.names if each == module)) for module in modules}
        return [f"from {module} import {names}" for module, names in named.items()]

    def maker(self, factory: Any) -> str:
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
        if kind is list:
            return f"[{', '.join(map(self.text, value))}]"
        if kind is tuple:
            words = [self.text(each) for each in value]
            return f"({', '.join(words)}{',' if len(words) == 1 else ''})"
        if repr(value).startswith(f"{kind.__name__}("):
            self.named(kind.__module__, kind.__name__)
        return repr(value)

    def call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if name in self.quiet:
                return method(*arguments)
            line = f"adapter.{name}({', '.join(map(self.text, arguments))})"
            made = Made(name, line, arguments=arguments)
            try:
                answer = method(*arguments)
            except Exception as error:
                self.calls.append(made._replace(error=error))
                raise
            self.calls.append(made._replace(answer=answer))
            return answer

        return called
