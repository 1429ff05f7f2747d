"""Counterexamples: a history performed once more on a new model, every call written down as Python.

The text is a test: it makes the calls again, on a model that the kit's own factory makes, and fails on the fault. A
world whose calls can be judged one by one has a subclass of `Written` that asserts the right answer to each.
"""

import builtins
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import ModuleType
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


OWN: Final = frozenset((*dir(builtins), "adapter", "served", "shown", "taken", "test_counterexample", "whole"))
"""The names that the lines of a test use, beside those that it imports."""


class Made(NamedTuple):
    name: str
    line: str
    answer: Any = None
    error: Exception | None = None
    arguments: tuple[Any, ...] = ()


def first_line(error: object) -> str:
    return str(error).partition("\n")[0]


def place_of(thing: Any) -> tuple[str, str]:
    """Return the module and the name by which a test can import a thing: its own, or any other that holds it."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "<none>")
    try:
        is_there = attrgetter(name)(sys.modules[module]) is thing
    except (AttributeError, KeyError):
        is_there = False
    if not is_there:
        holders = [(each, vars(found)) for each, found in list(sys.modules.items()) if isinstance(found, ModuleType)]
        held = ((each, key) for each, names in holders for key, value in list(names.items()) if value is thing)
        module, name = next(held, (module, name))
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
    return module, name


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
        lines: list[str] = []
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
        known = self.imported(kind, f"The{kind.__name__}")
        self.named("contextlib", "suppress")
        return [f"with suppress({known}): {call.line}  # {first_line(call.error)}"]

    def laws(self, fault: str) -> list[str]:
        asked = (*self.world.laws, *self.world.step_laws, *self.asked)
        known = LAWS | {law.id: law.statement for law in asked}
        return [f"# {name}: {known[name]}" for name in dict.fromkeys(NAMED.findall(fault)) if name in known]

    def test(self, lines: list[str], fault: str) -> str:
        """Return the text of a test; above it the fault, and the sentence of each law that it names."""
        head = [f"# {self.world.scope.name}: {fault}", *self.laws(fault)] if fault else []
        factory, *arguments = self.world.made()
        given = ", ".join(map(self.text, arguments))
        made = f"adapter = {self.maker(factory)}({given})"  # named last: its name may be one of ours
        body = ["def test_counterexample():", *(f"    {each}" for each in (made, *lines))]
        return "\n".join([*head, *self.imports(), "", "", *body, "", "", *RUN])

    def imports(self) -> list[str]:
        modules = sorted({module for module, _ in self.names})
        named = {module: ", ".join(sorted(name for each, name in self.names if each == module)) for module in modules}
        return [f"from {module} import {names}" for module, names in named.items()]

    def maker(self, factory: Any) -> str:
        return self.imported(factory, "Adapter")

    def imported(self, thing: Any, alias: str) -> str:
        """Return the name of somebody else's class or function, imported: as `alias` where its own is taken."""
        module, name = place_of(thing)
        root, dot, rest = name.partition(".")
        if module == "builtins":
            return name
        if root in {each for other, each in self.names if other != module} | OWN:
            self.names.add((module, f"{root} as {alias}"))
            return f"{alias}{dot}{rest}"
        return self.named(module, name)

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
