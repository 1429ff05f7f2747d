"""How long an engine's step takes: by a linear rule, a table of measurements, or what an accelerator can do at best.

Each of them is a function of a `Step`, as one of the user's own may be.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import mul
from pathlib import Path
from typing import Final, NamedTuple

from blockwright.errors import InvalidArgumentError
from blockwright.policies import found_by


class Step(NamedTuple):
    """What an engine computes in a step.

    Attributes:
        tokens: that are computed, of prompts and answers, and drafts that are verified.
        requests: that these are of.
        context: tokens whose keys and values are read, each request's own included.
        pairs: of a token that is computed and one that it reads.
        loaded: tokens whose keys and values come from the host before the step.
    """

    tokens: int
    requests: int
    context: int
    pairs: int
    loaded: int = 0


StepTime = Callable[[Step], float]


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear rule, in seconds: `base` for each step, and each other field times the field of `Step` with its name."""

    base: float
    tokens: float = 0.0
    requests: float = 0.0
    context: float = 0.0
    pairs: float = 0.0
    loaded: float = 0.0

    def __call__(self, step: Step) -> float:
        each = self.tokens, self.requests, self.context, self.pairs, self.loaded
        return self.base + float(sum(map(mul, each, step)))


class Table:
    """Measured ``seconds`` for all combinations of some columns of a `Step`; between and beyond them, time is linear.

    Raises:
        InvalidArgumentError: the file cannot be read, or its rows are not such a grid.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file, strict=True))
            names = [name for name in rows[0] if name != "seconds"] if rows else []
            if not names or not set(names) <= set(Step._fields):
                raise ValueError(f"its columns must be seconds and some of {', '.join(Step._fields)}")
            points = {tuple(float(row[name]) for name in names): float(row["seconds"]) for row in rows}
            axes = [sorted({point[at] for point in points}) for at in range(len(names))]
            # A hole in the grid would leave a cell without a corner, and a point given twice two answers.
            if set(points) != set(product(*axes)) or len(points) != len(rows):
                raise ValueError(f"it needs a row for each combination of {', '.join(names)}, once")
            if not all(0 < value < float("inf") for value in points.values()):
                raise ValueError("seconds must be above 0")
        except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
            raise InvalidArgumentError(f"--step-time: {path} is no table of step times: {error}") from None
        self._columns, self._axes, self._points = [Step._fields.index(name) for name in names], axes, points

    def __call__(self, step: Step) -> float:
        sides = [_between(axis, step[column]) for axis, column in zip(self._axes, self._columns, strict=True)]
        # Linear along each axis: every corner of the cell counts by how near it is.
        total = 0.0
        for corner in product(*sides):
            total += prod(part for _, part in corner) * self._points[tuple(value for value, _ in corner)]
        return max(total, min(self._points.values()) / 1000)  # two noisy points may lead below zero


def _between(axis: Sequence[float], value: float) -> tuple[tuple[float, float], ...]:
    """Return the two values of an axis that a value is seen from, with their weights."""
    if len(axis) == 1:
        return ((axis[0], 1.0),)
    at = min(max(bisect_right(axis, value), 1), len(axis) - 1)
    low, high = axis[at - 1], axis[at]
    part = (value - low) / (high - low)
    return (low, 1 - part), (high, part)


class Accelerator(NamedTuple):
    """What its maker publishes, a second: dense operations by the bytes of an element, and bytes of memory and link."""

    operations: Mapping[float, float]
    memory: float
    link: float


ACCELERATORS: Final[dict[str, Accelerator]] = {
    "a100": Accelerator({2: 312e12}, 2.039e12, 32e9),
    "h100": Accelerator({2: 989.4e12, 1: 1978.9e12}, 3.35e12, 64e9),
    "h200": Accelerator({2: 989.4e12, 1: 1978.9e12}, 4.8e12, 64e9),
    "b200": Accelerator({2: 2250e12, 1: 4500e12}, 8e12, 64e9),
    "l40s": Accelerator({2: 362.05e12, 1: 733e12}, 0.864e12, 32e9),
    "l4": Accelerator({2: 121e12, 1: 242.5e12}, 0.3e12, 32e9),
    "mi300x": Accelerator({2: 1307.4e12, 1: 2614.9e12}, 5.3e12, 64e9),
}
"""SXM or OAM modules where there are several; the host's link is PCIe, of 16 lanes in one direction."""


class Model(NamedTuple):
    """What a step of a model takes.

    Attributes:
        layers, active: parameters of all layers, and those that a token passes. The others are of `experts`, of which
            it passes `chosen`.
        head: parameters of the output layer, which only a request's last token passes.
        pair: operations for each pair of tokens, in all layers. width: bytes of a parameter.
        windows: for each kind of layers, bytes of a token's keys and values, and tokens that are read at most.
    """

    layers: float
    active: float
    experts: int
    chosen: int
    head: float
    pair: float
    windows: tuple[tuple[float, float], ...]
    width: float


class Roofline:
    """The least time that accelerators can take: of operations and of memory, the one that takes longer.

    `part` is how much of what is published an engine reaches. Communication between accelerators is not counted.
    """

    def __init__(self, kind: Accelerator, model: Model, parallel: int = 1, part: float = 1.0) -> None:
        scale = parallel * part
        fast = kind.operations.get(model.width) or kind.operations[2]
        self._operations, self._memory, self._link = fast * scale, kind.memory * scale, kind.link * scale
        self._model = model

    def __call__(self, step: Step) -> float:
        model = self._model
        operations = 2 * (model.active * step.tokens + model.head * step.requests) + model.pair * step.pairs
        # Of the experts that are not among those of one token, each other token leaves so many unread.
        missed = (1 - model.chosen / model.experts) ** (step.tokens - 1) if model.experts else 0.0
        read = (model.layers - (model.layers - model.active) * missed + model.head) * model.width
        cache = sum(size * min(step.context, most * step.requests) for size, most in model.windows)
        moved = step.loaded * sum(size for size, _ in model.windows)
        return max(operations / self._operations, (read + cache) / self._memory) + moved / self._link


_PART: Final = re.compile(r"1|0?\.\d{1,6}")
_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_TERM: Final = re.compile(r"(\w+)=(\d+(?:\.\d+)?)(s|ms|us|ns)")


def parse_step_time(text: str, model: Callable[[], Model], parallel: int = 1) -> StepTime:
    """Return the rule that a text names: terms with units, a table's file, an accelerator, or a function.

    `model` is asked only for an accelerator.

    Raises:
        InvalidArgumentError: there is no such rule.
    """
    if "=" in text:
        terms = [_TERM.fullmatch(part) for part in text.split(",")]
        found = {each[1]: float(each[2]) * _UNITS[each[3]] for each in terms if each}
        if len(found) < len(terms) or not set(found) <= set(Linear.__slots__) or not sum(found.values()) > 0:
            raise InvalidArgumentError(
                f"--step-time: expected some of {', '.join(Linear.__slots__)} with their times, as base=8ms,"
                f"tokens=50us,context=20ns, not {text!r}"
            )
        return Linear(**({"base": 0.0} | found))
    if text.endswith(".csv"):
        return Table(Path(text))
    name, _, part = text.partition("*")
    if name.lower() in ACCELERATORS:
        reached = float(part or 1) if _PART.fullmatch(part or "1") else 0.0
        if reached == 0:
            raise InvalidArgumentError(f"--step-time: {name}* needs a part above 0 and up to 1, not {part!r}")
        return Roofline(ACCELERATORS[name.lower()], model(), parallel, reached)
    return found_by(
        "--step-time: terms as base=8ms,tokens=50us, a table.csv, or", text, dict.fromkeys(ACCELERATORS, Linear)
    )
