"""Counterexamples of managers of other makes: the calls of their own adapter, to be run as they are printed.

The actions are performed once more on a new manager, and every call of the adapter is written down with what it
returned. Blockwright's own counterexamples are lines over its public names (`script`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from ...checker.lockstep import act
from ..actions import Action
from ..blockwright import BlockwrightAdapter
from ..scopes import Scope
from ..world import Factory, KVCacheWorld

QUIET = frozenset(("copy", "observe"))
"""Calls that are not written down, but for the last action's."""


def way(scope: Scope, factory: Factory, actions: Sequence[Action], fault: str) -> str:
    """Return the calls of a history from a new manager, and as comments what was wrong at its end."""
    if factory is BlockwrightAdapter:
        return KVCacheWorld(scope).script(actions, fault)
    world, written = KVCacheWorld(scope, factory), Written()
    made = f"adapter = {written.maker(factory)}({written.text(scope.config)})"
    adapter: Any = Recorder(factory(scope.config), written)
    written.refusals = adapter.errors
    state, compared = world.initial(), None
    for action in actions:
        written.observes = action is actions[-1]
        compared = act(world, adapter, state, action)
        state = compared.outcome.state
    if compared is None or not compared.faults:
        with suppress(Exception):  # what was asked last is what went wrong
            world.examine(adapter, state)
    lines = [*written.imports(), made, *written.lines, *(f"# {line}" for line in fault.split("; ") if line)]
    return "\n".join(lines)


class Recorder:
    """An adapter whose calls are written down."""

    def __init__(self, adapter: Any, written: "Written") -> None:
        self._adapter, self._written = adapter, written

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._adapter, name)
        return self._written.call(name, found) if callable(found) and name not in ("errors", "stale") else found


class Written:
    """Lines of calls, and what they import."""

    def __init__(self) -> None:
        self.refusals: tuple[type[Exception], ...] = ()
        self.lines: list[str] = []
        self.names: set[tuple[str, str]] = set()
        self.observes = False

    def imports(self) -> list[str]:
        """Return the lines that import what the others name."""
        modules = sorted({module for module, _ in self.names})
        named = {module: ", ".join(sorted(name for each, name in self.names if each == module)) for module in modules}
        return [f"from {module} import {names}" for module, names in named.items()]

    def maker(self, factory: Any) -> str:
        """Return the expression that is called with a `Config`."""
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
        """Return a method that writes down how it is called, and what it answers."""

        def called(*arguments: Any) -> Any:
            line = f"adapter.{name}({', '.join(map(self.text, arguments))})"
            if name in QUIET and not (self.observes and name == "observe"):
                return method(*arguments)
            try:
                answer = method(*arguments)
            except Exception as error:
                kind, said = type(error), str(error).partition("\n")[0]
                if isinstance(error, self.refusals):
                    known = self.named(kind.__module__, kind.__name__)
                    self.named("contextlib", "suppress")
                    self.lines.append(f"with suppress({known}): {line}  # {said}")
                else:
                    self.lines.append(f"{line}  # raises {kind.__name__}: {said}")
                raise
            self.lines.append(line if answer is None and name != "allocate" else f"{line}  # {answer}")
            return answer

        return called
