"""The block machine as a diagram and a table, made from the source that runs.

The arrows are the moves that the steps make in a small pool, which is visited whole; the guards are the conditions that
stand in the steps.
"""

import ast
import html
import inspect
from collections import defaultdict
from functools import cache
from math import hypot

from blockwright_lab.refinement.small_pool import explored
from blockwright_spec import block_machine

from . import spec
from .markdown import prose, table

WIDTH, HEIGHT = 640, 330
BOX_WIDTH, BOX_HEIGHT, BESIDE, LOOP = 150, 46, 13, 46
PLACES = {
    "null": (90, 40),
    "free": (90, 130),
    "held": (400, 130),
    "free and findable": (90, 290),
    "held and findable": (400, 290),
}
"""Where the middle of each box lies, by how a block stands."""


def steps() -> dict[str, ast.FunctionDef]:
    """Return the steps by name, in the order of the source."""
    chapter = next(each for each in spec.chapters() if each.name == "block_machine")
    found = {node.name: node for node in spec.tree(chapter).body if isinstance(node, ast.FunctionDef)}
    return {step.__name__: found[step.__name__] for step in block_machine.STEPS}


def guard(step: ast.FunctionDef) -> str:
    """Return the condition under which a step may happen."""
    condition = next(node.test for node in ast.walk(step) if isinstance(node, ast.If))
    return ast.get_source_segment(inspect.getsource(block_machine), condition) or ""


@cache
def arrows() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the names of the steps by the state of their block before and after them, in the order of the page."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    order = list(steps())
    for move in sorted(explored().moves, key=lambda move: order.index(move.step)):
        if move.before:
            found[move.before, move.after].append(move.step)
    return {ends: tuple(names) for ends, names in found.items()}


def at_a_glance() -> str:
    """Return the diagram and the table of the steps, for the page of the chapter."""
    cells = [
        (f"[`{name}`](#{spec.label('block_machine', name)})", prose(ast.get_docstring(node) or ""), f"`{guard(node)}`")
        for name, node in steps().items()
    ]
    return f"```{{machine-figure}}\n```\n\n{table(('step', 'what it does', 'only if'), cells)}"


def figure() -> str:
    """Draw the machine: a box for each state of a block, an arrow for each move."""
    from .figures import svg, words

    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    ]
    parts += [arrow(*ends, names) for ends, names in arrows().items()]
    for name, (x, y) in PLACES.items():
        style = "state start" if name == "free" else "state"
        corner = f'x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}"'
        parts.append(f'<rect class="{style}" {corner} width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>')
        parts.append(words(x, y + 5, name, "middle"))
    return svg(WIDTH, HEIGHT, parts, "How a block may stand, and the steps that lead from one to another")


def arrow(before: str, after: str, names: tuple[str, ...]) -> str:
    """Draw one arrow, with the names of its steps and, on pointing at it, their effects."""
    said = "\n".join(f"{name}: {inspect.getdoc(getattr(block_machine, name))}" for name in names)
    way, x, y, anchor = loop(before) if before == after else straight(before, after)
    text = "".join(
        f'<tspan x="{x:.0f}" dy="{0 if not at else 16}">{html.escape(", ".join(row))}</tspan>'
        for at, row in enumerate((names[:2], names[2:]))
        if row
    )
    return (
        f'<g><title>{html.escape(said)}</title><path class="way step" marker-end="url(#tip)" d="{way}"/>'
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{text}</text></g>'
    )


def loop(name: str) -> tuple[str, float, float, str]:
    """Return the path from a box back to it, and the place of its label."""
    x, y = PLACES[name]
    edge, out = x + BOX_WIDTH / 2, x + BOX_WIDTH / 2 + LOOP
    way = f"M{edge:.0f},{y - 12} C{out:.0f},{y - 28} {out:.0f},{y + 28} {edge + 2:.0f},{y + 12}"
    return way, out - 4, y - 3, "start"


def straight(before: str, after: str) -> tuple[str, float, float, str]:
    """Return the way from one box to another, beside the one that leads back, and the place of its label."""
    (x1, y1), (x2, y2) = PLACES[before], PLACES[after]
    length = hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    beside = BESIDE if (after, before) in arrows() else 0
    reach = min(BOX_WIDTH / 2 / abs(dx) if dx else WIDTH, BOX_HEIGHT / 2 / abs(dy) if dy else HEIGHT)
    (ax, ay), (bx, by) = (
        (x + dx * (reach + gap) * sign - dy * beside, y + dy * (reach + gap) * sign + dx * beside)
        for x, y, sign, gap in ((x1, y1, 1, 0), (x2, y2, -1, 2))
    )
    way, x, y = f"M{ax:.0f},{ay:.0f} L{bx:.0f},{by:.0f}", (ax + bx) / 2, (ay + by) / 2
    if dy == 0:
        return way, x, y + (18 if dx > 0 else -8), "middle"
    return way, x + (-8 if dy > 0 else 8), y + (5 if dx == 0 else 14), "end" if dy > 0 else "start"
