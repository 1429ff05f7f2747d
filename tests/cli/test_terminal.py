"""Tables and progress say the same with and without rich, and never read markup from their text.

How: both are written with rich hidden and with rich present, into captured streams, one of which claims to be a
terminal; time is a counter.

Not covered: how a bar looks.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import time

import pytest

from blockwright import _terminal

COLUMNS = ("scope", "states")
ROWS = (("full [b]4[/b]", "353"), ("sliding", "870,123"))


@pytest.fixture(params=["rich", "plain"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with rich where it is installed, and with rich hidden."""
    name: str = request.param
    if name == "rich":
        pytest.importorskip("rich", reason="needs rich (extra 'cli')")
    else:
        monkeypatch.setattr(_terminal, "has_rich", lambda: False)
    return name


def test_a_table_holds_every_cell_in_order(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    _terminal.print_table("Scopes [i]all[/i]", COLUMNS, ROWS, "two scopes")
    out, err = capsys.readouterr()
    assert err == ""
    words = ["Scopes [i]all[/i]", "scope", "states", "full [b]4[/b]", "353", "sliding", "870,123", "two scopes"]
    places = [out.index(word) for word in words]
    assert places == sorted(places)


def test_control_characters_are_written_out(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "\x1b[2J\r\u202e\ud800"
    _terminal.print_table(odd, (odd, "value"), [(odd, "1\n2")], f"{odd}\n{odd}")
    with _terminal.progress(odd, 1) as advance:
        advance(1, odd)
    said = capsys.readouterr()
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))
    assert said.out.count(r"\x1b[2J\r\u202e\ud800") == 5
    assert r"1\n2" in said.out


def test_a_wide_table_is_not_folded(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    _terminal.print_table("t" * 150, ("name", "value"), [("n" * 90, "v" * 60)])
    out = capsys.readouterr().out
    assert "t" * 150 in out
    assert "n" * 90 in out
    assert "v" * 60 in out


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_narrow_output_cuts_nothing(monkeypatch: pytest.MonkeyPatch, rows: int, piped: bool) -> None:
    pytest.importorskip("rich", reason="needs rich (extra 'cli')")
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: not piped)
    monkeypatch.setattr(sys, "stdout", stream)
    columns = ("usable blocks", "hit rate", "tokens hit", "evictions", "used, mean", "peak", "refused", "requests/s")
    line = ("12.30%", "45.60%", "1,234,567", "123,000", "123,456", "1,000", "987,654")
    _terminal.print_table("replay", columns, [(f"{123_456 + at:,}", *line) for at in range(rows)], "done")
    out = stream.getvalue()
    assert "…" not in out
    assert rows > 1 or max(map(len, out.split("\n"))) <= 80
    for word in (*columns, *line, "done"):
        assert word in out


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_terminal, "has_rich", lambda: False)
    _terminal.print_table("", COLUMNS, ROWS)
    assert capsys.readouterr().out == (
        "scope           states\n"
        "full [b]4[/b]      353\n"
        "sliding        870,123\n"
    )  # fmt: skip


def test_plain_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with _terminal.progress("replay", 4000) as advance:
        for _ in range(25):
            now[0] += 1
            advance(100)
        advance(500, "sliding")
        now[0] += 10
        advance(0, "chunked")
    assert capsys.readouterr() == (
        "",
        "replay: 1,000 of 4,000\nreplay: 2,000 of 4,000\nreplay: 3,000 of 4,000 (chunked)\n",
    )


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="needs rich (extra 'cli')")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(_terminal, "_RICH_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with _terminal.progress("replay [b]x[/b]", 3) as advance:
        for _ in range(3):
            advance()
    assert "replay [b]x[/b]" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_rich_is_looked_for_without_importing_it() -> None:
    assert _terminal.has_rich() == (importlib.util.find_spec("rich") is not None)
