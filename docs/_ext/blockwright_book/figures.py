"""Figures as inline SVG, drawn in the colours of the page: growth of state spaces, a world whole, lengths of traces."""

import html
from collections import Counter
from collections.abc import Callable, Sequence
from math import log10
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import data, known_bugs, machine

Series = tuple[str, list[tuple[float, float]]]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 340, 64, 46, 34, 150


def line_chart(series: Sequence[Series], across: str, up: str, title: str) -> str:
    """Draw lines over whole numbers, the heights on a logarithmic scale."""
    xs = sorted({x for _, points in series for x, _ in points})
    highest = max(y for _, points in series for _, y in points)
    decades = int(log10(highest)) + 1

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - xs[0]) / (xs[-1] - xs[0])
        return LEFT + share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - log10(y) / decades * (HEIGHT - BOTTOM - TOP)

    parts = []
    for power in range(decades + 1):
        _, y = at(xs[0], 10**power)
        parts += [f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>']
        parts += [words(LEFT - 8, y + 4, f"{10**power:,}", "end")]
    for x in xs:
        parts.append(words(at(x, 1)[0], HEIGHT - BOTTOM + 20, f"{x:g}", "middle"))
    for number, (name, points) in enumerate(series):
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        x, y = at(*points[-1])
        parts.append(f'<polyline class="line line-{number}" points="{way}"/>')
        parts += [
            f'<circle class="dot line-{number}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in (at(*p) for p in points)
        ]
        parts.append(
            words(x + 8, y + 4 + nudge(series, number, at), f"{name}: {points[-1][1]:,.0f}", "start", f"line-{number}")
        )
    parts.append(words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, "middle"))
    parts.append(words(LEFT, TOP - 18, up, "middle"))
    return svg(WIDTH, HEIGHT, parts, title)


def nudge(series: Sequence[Series], number: int, at: Callable[[float, float], tuple[float, float]]) -> float:
    """Keep the names at the ends of lines apart: each at least 15 below the one above it."""
    ends = sorted((at(*points[-1])[1], at(*points[-1])[0], index) for index, (_, points) in enumerate(series))
    placed: list[tuple[float, float, int]] = []
    for y, x, index in ends:
        lower = max((other + 15 for other, there, _ in placed if abs(there - x) < 100), default=y)
        placed.append((max(y, lower), x, index))
    return next(y for y, _, index in placed if index == number) - next(y for y, _, index in ends if index == number)


def bar_chart(bars: Sequence[tuple[str, int]], across: str, title: str) -> str:
    """Draw bars with their numbers above them."""
    highest = max(number for _, number in bars)
    step = (WIDTH - 2 * 24) / len(bars)
    parts = []
    for at, (name, number) in enumerate(bars):
        height = number / highest * (HEIGHT - BOTTOM - TOP - 24)
        x, y = 24 + at * step, HEIGHT - BOTTOM - height
        parts.append(
            f'<rect class="bar" x="{x + step * 0.12:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}" height="{height:.1f}"/>'
        )
        parts.append(words(x + step / 2, y - 6, f"{number}", "middle"))
        parts.append(words(x + step / 2, HEIGHT - BOTTOM + 18, name, "middle"))
    parts.append(words(WIDTH / 2, HEIGHT - 6, across, "middle"))
    return svg(WIDTH, HEIGHT, parts, title)


def words(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    """Draw words."""
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """Return a drawing that scales down, and can be scrolled where it would become too small to read."""
    inner = "\n".join(parts)
    return (
        f'<div class="figure-scroll"><svg class="book-figure" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px;min-width:{min(width, 340):.0f}px" role="img" '
        f'aria-label="{html.escape(title)}">\n{inner}\n</svg></div>'
    )


def growth() -> str:
    """Draw how many states there are with more blocks and more requests."""
    rows = (data.load("spaces") or {"growth": []})["growth"]
    series = [
        (
            f"{slots} request{'s' * (slots > 1)}",
            [(row["blocks"], row["states"]) for row in rows if row["requests"] == slots],
        )
        for slots in sorted({row["requests"] for row in rows})
    ]
    return line_chart(series, "usable blocks", "states", "States by blocks, for one, two and three requests")


def kinds() -> str:
    """Draw how many states there are for each kind of layer."""
    rows = (data.load("spaces") or {"kinds": []})["kinds"]
    series = [
        (kind, [(row["blocks"], row["states"]) for row in rows if row["kind"] == kind])
        for kind in dict.fromkeys(row["kind"] for row in rows)
    ]
    return line_chart(series, "usable blocks", "states", "States by blocks, two requests, for each kind of layer")


def calls() -> str:
    """Draw after how many calls known bugs showed."""
    lengths = Counter(known_bugs.calls(each) for each in known_bugs.BUGS)
    lengths.pop(None, None)
    longest = max(length for length in lengths if length is not None)
    bars = [(str(length), lengths[length]) for length in range(longest + 1)]
    return bar_chart(bars, "calls until the bug shows", "Known bugs by the number of calls until they show")


BOX_WIDTH, BOX_HEIGHT, GAP, RISE = 104, 46, 16, 74


def graph() -> str:
    """Draw a world whole: a box for each state, in rows by how many actions lead there."""
    found = (data.load("spaces") or {})["graph"]
    layers = arranged(found["states"], found["edges"])
    width = max(len(layer) for layer in layers) * (BOX_WIDTH + GAP) + GAP
    height = len(layers) * (BOX_HEIGHT + RISE) - RISE + 2 * GAP
    places: dict[int, tuple[float, float]] = {}
    for depth, layer in enumerate(layers):
        left = (width - len(layer) * (BOX_WIDTH + GAP) + GAP) / 2
        for at, number in enumerate(layer):
            places[number] = left + at * (BOX_WIDTH + GAP), GAP + depth * (BOX_HEIGHT + RISE)
    parts = [edge(places, start, end, names) for start, end, names in found["edges"]]
    parts += [box(*places[state["id"]], state) for state in found["states"]]
    title = f"All {len(found['states'])} states of a world of {found['blocks']} blocks and {found['requests']} requests"
    return svg(width, height, parts, title)


def arranged(states: Sequence[dict[str, Any]], edges: Sequence[Any]) -> list[list[int]]:
    """Return the states row by row, each near the middle of those that lead to it."""
    depth = {state["id"]: state["depth"] for state in states}
    layers: list[list[int]] = [[] for _ in range(max(depth.values()) + 1)]
    for number, at in depth.items():
        layers[at].append(number)
    for _ in range(6):
        for at in (*range(1, len(layers)), *reversed(range(len(layers) - 1))):
            place = {number: index / max(1, len(layer) - 1) for layer in layers for index, number in enumerate(layer)}
            near = {
                number: [
                    place[a if b == number else b] for a, b, _ in edges if number in (a, b) and depth[a] != depth[b]
                ]
                for number in layers[at]
            }
            layers[at].sort(key=lambda number, near=near: sum(near[number]) / max(1, len(near[number])))  # type: ignore[misc]
    return layers


def edge(places: dict[int, tuple[float, float]], start: int, end: int, names: Sequence[str]) -> str:
    """Draw the way between two states; ways back up are faint."""
    (x1, y1), (x2, y2) = places[start], places[end]
    down = y2 > y1
    a, b = x1 + BOX_WIDTH / 2 + (6 if down else -6), x2 + BOX_WIDTH / 2 + (6 if down else -6)
    style = f"way {'down' if down else 'up'} {'freed' if set(names) & {'Release', 'Preempt', 'Reset'} else 'grown'}"
    title = f"<title>{html.escape(', '.join(names))}</title>"
    if y1 == y2:
        side = 1 if x2 > x1 else -1
        low = y1 + BOX_HEIGHT
        way = f"M{a:.0f},{low} Q{(a + b) / 2:.0f},{low + 22 + 6 * side} {b:.0f},{low}"
        return f'<path class="{style}" d="{way}">{title}</path>'
    top, bottom = (y1 + BOX_HEIGHT, y2) if down else (y1, y2 + BOX_HEIGHT)
    half = (top + bottom) / 2
    way = f"M{a:.0f},{top} C{a:.0f},{half:.0f} {b:.0f},{half:.0f} {b:.0f},{bottom}"
    return f'<path class="{style}" d="{way}">{title}</path>'


def box(x: float, y: float, state: dict[str, Any]) -> str:
    """Draw a state: its requests' blocks, and the free queue."""
    shows = state["shows"]
    published = set(shows["published"])

    def blocks(ids: Sequence[int]) -> str:
        return " ".join(f"{block}{'*' if block in published else ''}" for block in ids) or "–"

    held = [f"[{blocks(each['blocks'])}]" for each in shows["requests"] if each and "blocks" in each]
    style = "state start" if state["depth"] == 0 else "state"
    return (
        f'<g><rect class="{style}" x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        + words(x + BOX_WIDTH / 2, y + 19, " ".join(held) or "no request", "middle")
        + words(x + BOX_WIDTH / 2, y + 37, f"free {blocks(shows['free'])}", "middle", "faint")
        + "</g>"
    )


def directive(draw: Callable[[], str]) -> type[SphinxDirective]:
    """Make the directive that puts a drawing into a page."""

    class Figure(SphinxDirective):
        """Draws a figure from the measured data."""

        def run(self) -> list[nodes.Node]:
            """Draw it."""
            for name in ("spaces", "known_bugs"):
                self.env.note_dependency(str(data.DATA / f"{name}.json"))
            return [nodes.raw("", draw(), format="html")]

    return Figure


def add(app: Sphinx) -> None:
    """Add a directive for each figure."""
    drawn = (("growth", growth), ("kinds", kinds), ("calls", calls), ("graph", graph), ("machine", machine.figure))
    for name, draw in drawn:
        app.add_directive(f"{name}-figure", directive(draw))
