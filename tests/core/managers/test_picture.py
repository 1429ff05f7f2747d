"""Property: a picture shows what the manager holds, and says what it leaves out.

How: small managers in each state, compared with what they say of themselves; the drawing is read as XML.
Not covered: how it looks.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from tests.core.support import admit, full, manager_of, manager_over, sliding, started

from blockwright import Request
from blockwright.errors import InvalidArgumentError

ODD = ["\x1b[2J\x1b]0;title\x07", "two\nlines", "\ud800", "x" * 100_000, "\u202e\0\x9b", "<script>&\"']]>", "\ufffe"]
"""Names that a client may give: they move the cursor, break rows, turn text round, or are no XML."""
SVG = "{http://www.w3.org/2000/svg}"


def test_names_of_others_are_safe_to_show() -> None:
    manager = manager_over([full(4)])
    for name in ODD:
        admit(manager, Request(name, [1, 2, 3, 4, 5], 4))
    drawn = manager.draw(max_requests=99)
    for svg in (drawn.svg(), drawn._repr_svg_()):
        root = ElementTree.fromstring(svg.encode())
        assert len(root.findall(f".//{SVG}text[@class='faint']")) > len(ODD)
        assert int(root.get("width") or 0) < 2000
    shown = str(drawn), repr(drawn), *(str(manager.explain_hit(Request(name, [1] * 9, 4))) for name in ODD)
    for text in shown:
        assert all(line.isprintable() for line in text.split("\n"))
    assert len(str(drawn).splitlines()) == len(str(drawn).split("\n")) == 4 + len(ODD)


def test_every_block_and_every_entry_is_shown() -> None:
    manager = manager_over([full(4), sliding(4, 6)])
    first = started(manager, "first", 9)
    second = Request("second", first.all_token_ids, 4)
    admit(manager, second)
    manager.free(started(manager, "done <&>", 5))
    third = started(manager, "done <&>", 17)
    third.append_output_token_ids([1])
    manager.allocate_slots(third, 1)  # its window gives back
    drawn = manager.draw()
    counts, pool = manager.block_pool.ref_counts(), manager.block_pool
    for block, state in enumerate(drawn.states):
        by_count = {0: "cached" if pool.is_published(block) else "free", 1: "held"}
        assert state == ("null" if block == 0 else by_count.get(counts[block], "shared"))
    shown = [(row.name, row.blocks) for row in drawn.rows]
    assert shown == [(name, blocks) for name in manager.request_ids() for blocks in manager.get_block_ids(name)]
    assert {row.group for row in drawn.rows} == {"full", "sliding window"}
    for theme in ("auto", "light", "dark"):
        root = ElementTree.fromstring(drawn.svg(theme))
        boxes = [each for each in root.iter(f"{SVG}rect") if each.get("width") == "30"]
        assert len(boxes) == len(drawn.states) + sum(len(blocks) for _, blocks in shown)
        assert sum(each.get("class") == "gone" for each in boxes) == sum(blocks.count(0) for _, blocks in shown) > 0
    assert drawn._repr_svg_() == drawn.svg()
    before = str(drawn)
    manager.free(first)
    assert before == repr(drawn) != str(manager.draw())


def test_what_is_left_out_is_said() -> None:
    manager = manager_of(full(), 40)
    for name in "abc":
        started(manager, name, 17)
    text = str(manager.draw(max_blocks=8, max_requests=2, max_entries=3))
    assert "(the first 8 of 40 blocks)" in text
    assert "(the first 2 of 3 requests)" in text
    assert text.count("and 2 more") == 2
    assert "(the first" not in str(manager_of(full()).draw())
    for name in ("max_blocks", "max_requests", "max_entries"):
        with pytest.raises(InvalidArgumentError, match=f"{name}: must be at least 1"):
            manager.draw(**{name: 0})
    with pytest.raises(InvalidArgumentError, match="theme: must be one of auto"):
        manager.draw().svg("blue")
