"""A picture of a manager: the pool as a grid coloured by state, the block tables as rows. For people, not for engines.

It copies all that it shows, so that it can be looked at after the manager has moved on.
"""

from __future__ import annotations

from html import escape
from typing import Final, final

from blockwright._text import printable
from blockwright.core.manager import KVCacheManager
from blockwright.errors import InvalidArgumentError

NULL: Final = "null"
FREE: Final = "free"
CACHED: Final = "cached"
HELD: Final = "held"
SHARED: Final = "shared"

MARKS: Final = {NULL: "-", FREE: ".", CACHED: "o", HELD: "#", SHARED: "+"}
MEANINGS: Final = {HELD: "held by one", SHARED: "shared", CACHED: "free, still cached", FREE: "free"}
THEMES: Final = ("auto", "light", "dark")
LIGHT: Final = (
    ".bw text{fill:#1f2328}.bw .faint{fill:#59636e}.bw .free{fill:#ffffff;stroke:#afb8c1}"
    ".bw .null{fill:#eaeef2;stroke:#d1d9e0}.bw .cached{fill:#fff1c2;stroke:#bf8700}"
    ".bw .held{fill:#bfdcff;stroke:#0969da}.bw .shared{fill:#b4f1c4;stroke:#1a7f37}"
)
DARK: Final = (
    ".bw text{fill:#e6edf3}.bw .faint{fill:#9198a1}.bw .free{fill:#0d1117;stroke:#4d5560}"
    ".bw .null{fill:#21262d;stroke:#30363d}.bw .cached{fill:#4d3800;stroke:#d29922}"
    ".bw .held{fill:#0c3b75;stroke:#4493f8}.bw .shared{fill:#0f4d24;stroke:#3fb950}"
)
SHAPE: Final = (
    ".bw{font:13px ui-sans-serif,system-ui,sans-serif}.bw rect{stroke-width:1.25}"
    ".bw .gone{fill:none;stroke:#9198a1;stroke-dasharray:3 3}.bw .id{text-anchor:middle;font-size:12px}"
)
NAME: Final = 40
"""Characters of a request's id that are shown."""
CELL: Final = 30
GAP: Final = 4
COLUMNS: Final = 16


@final
class Row:
    """One request's table in one group of layers.

    Attributes:
        name: of the request.
        group: number and kind of the group.
        blocks: the table, 0 where nothing is held any more.
        num_hidden: entries that are left out at its end.
    """

    def __init__(self, name: str, group: str, blocks: list[int], num_hidden: int) -> None:
        self.name = name
        self.group = group
        self.blocks = blocks
        self.num_hidden = num_hidden


@final
class Picture:
    """What `KVCacheManager.draw` returns: `str` of it is text, `svg` a drawing, which notebooks show by themselves.

    Attributes:
        states: of each block: "null", "free", "cached" (free, but still found), "held", or "shared".
        rows: the block tables.
        num_blocks: blocks of the pool.
        num_requests: requests that run.
    """

    def __init__(self, states: list[str], rows: list[Row], num_requests: int, max_blocks: int) -> None:
        """Take the fields as they are; of the pool the first `max_blocks` are drawn."""
        self.states = states
        self.rows = rows
        self.num_blocks = len(states)
        self.num_requests = num_requests
        self._max_blocks = max_blocks

    def __str__(self) -> str:
        counts = [f"{self.states.count(state)} {words}" for state, words in MEANINGS.items()]
        lines = [f"{self.num_blocks} blocks: " + "; ".join(counts)]
        drawn = self.states[: self._max_blocks]
        for first in range(0, len(drawn), COLUMNS * 2):
            part = drawn[first : first + COLUMNS * 2]
            lines.append(f"{first:>6}  " + " ".join([MARKS[state] for state in part]))
        lines.append("        " + "  ".join([f"{MARKS[state]} {words}" for state, words in MEANINGS.items()]))
        before = ""
        for row in self.rows:
            cells = " ".join([f"{block or '·':>3}" for block in row.blocks])
            more = f"  and {row.num_hidden} more" if row.num_hidden else ""
            name = printable(row.name, NAME) if row.name != before else ""
            lines.append(f"{name:<10} {row.group:<12} {cells}{more}".rstrip())
            before = row.name
        return "\n".join([*lines, *self._left_out()])

    def __repr__(self) -> str:
        return str(self)

    def _left_out(self) -> list[str]:
        lines = []
        if self._max_blocks < self.num_blocks:
            lines.append(f"(the first {self._max_blocks} of {self.num_blocks} blocks)")
        shown = len({row.name for row in self.rows})
        if shown < self.num_requests:
            lines.append(f"(the first {shown} of {self.num_requests} requests)")
        return lines

    def _repr_svg_(self) -> str:
        return self.svg()

    def svg(self, theme: str = "auto") -> str:
        """Return the picture as SVG: in the reader's own theme ("auto"), or for a "light" or "dark" page.

        Raises:
            InvalidArgumentError: another theme.
        """
        if theme not in THEMES:
            raise InvalidArgumentError(f"theme: must be one of {', '.join(THEMES)}, not {theme!r}")
        style = SHAPE + (DARK if theme == "dark" else LIGHT)
        if theme == "auto":
            style += f"@media (prefers-color-scheme:dark){{{DARK}}}"
        step = CELL + GAP
        names = max([len(printable(row.name, NAME)) for row in self.rows], default=0)
        groups = max([len(row.group) for row in self.rows], default=0)
        left = max(64, 24 + 8 * names + 8 * groups) if self.rows else 64
        parts: list[str] = []
        y = 24
        parts.append(f'<text class="faint" x="8" y="{y + 19}">pool</text>')
        drawn = self.states[: self._max_blocks]
        for number, state in enumerate(drawn):
            x = left + number % COLUMNS * step
            parts += _cell(x, y + number // COLUMNS * step, state, str(number))
        y += (len(drawn) + COLUMNS - 1) // COLUMNS * step + 14
        before = ""
        for row in self.rows:
            if row.name != before:
                y += 4
                parts.append(f'<text x="8" y="{y + 19}">{escape(printable(row.name, NAME))}</text>')
                before = row.name
            parts.append(f'<text class="faint" x="{16 + 8 * names}" y="{y + 19}">{escape(printable(row.group))}</text>')
            x = left
            for block in row.blocks:
                if block == 0:
                    parts.append(_box(x, y, "gone"))
                else:
                    parts += _cell(x, y, self.states[block], str(block))
                x += step
            if row.num_hidden:
                parts.append(f'<text class="faint" x="{x + 4}" y="{y + 19}">and {row.num_hidden} more</text>')
            y += step
        y += 10
        x = left
        for state, words in MEANINGS.items():
            parts.append(f'<rect class="{state}" x="{x}" y="{y}" width="14" height="14" rx="3"/>')
            parts.append(f'<text class="faint" x="{x + 20}" y="{y + 12}">{words}</text>')
            x += 34 + 7 * len(words)
        if any(0 in row.blocks for row in self.rows):
            parts.append(f'<rect class="gone" x="{x}" y="{y}" width="14" height="14" rx="3"/>')
            parts.append(f'<text class="faint" x="{x + 20}" y="{y + 12}">given back</text>')
            x += 104
        for line in self._left_out():
            y += 22
            parts.append(f'<text class="faint" x="{left}" y="{y + 12}">{line}</text>')
        longest = max([len(row.blocks) + (4 if row.num_hidden else 0) for row in self.rows], default=0)
        wide = max(x, left + step * max(min(COLUMNS, len(drawn)), longest)) + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="bw" viewBox="0 0 {wide} {y + 30}" width="{wide}" '
            f'role="img" aria-label="blocks of the pool, and block tables"><style>{style}</style>{"".join(parts)}</svg>'
        )


def _box(x: int, y: int, state: str) -> str:
    return f'<rect class="{state}" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="5"/>'


def _cell(x: int, y: int, state: str, text: str) -> list[str]:
    return [_box(x, y, state), f'<text class="id" x="{x + CELL // 2}" y="{y + 19}">{text}</text>']


def draw(manager: KVCacheManager, max_blocks: int = 256, max_requests: int = 16, max_entries: int = 32) -> Picture:
    """Return a picture of a manager's pool and block tables, as they are now. O(num_blocks + entries).

    Args:
        manager: the manager to draw.
        max_blocks: blocks of the pool that are drawn.
        max_requests: requests with a row for each of their tables.
        max_entries: entries that are drawn of each table.

    Raises:
        InvalidArgumentError: a number below 1.
    """
    for name, value in (("max_blocks", max_blocks), ("max_requests", max_requests), ("max_entries", max_entries)):
        if value < 1:
            raise InvalidArgumentError(f"{name}: must be at least 1, not {value}")
    pool = manager.block_pool
    counts = pool.ref_counts()
    states: list[str] = []
    for block in range(pool.num_blocks):
        count = counts[block]
        if block == 0:
            states.append(NULL)
        elif count == 0:
            states.append(CACHED if pool.is_published(block) else FREE)
        else:
            states.append(SHARED if count > 1 else HELD)
    names = manager.request_ids()
    rows: list[Row] = []
    for name in names[:max_requests]:
        for at, blocks in enumerate(manager.get_block_ids(name)):
            kind = type(manager.managers[at].kv_cache_spec).__name__.removesuffix("Spec").removesuffix("Attention")
            hidden = max(0, len(blocks) - max_entries)
            rows.append(Row(str(name), _words(kind), blocks[: len(blocks) - hidden], hidden))
    return Picture(states, rows, len(names), max_blocks)


def _words(name: str) -> str:
    return "".join([f" {each.lower()}" if each.isupper() else each for each in name]).strip()
