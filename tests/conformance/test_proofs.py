"""Property: the closed forms of the implementation are proved, and a wrong one is refuted.

How: every theorem is proved; then the source of one closed form at a time is altered before it is read as a formula,
and some theorem about it must be refuted with numbers. The reader of formulas is tried on small functions.
Not covered: code that the reader of formulas cannot read; it says so with an error.
"""

import ast
from typing import Any

import pytest

z3 = pytest.importorskip("z3")

from blockwright_conformance import symbolic  # noqa: E402
from blockwright_conformance.gates import Profile  # noqa: E402
from blockwright_conformance.proofs import proved, run, size, theorems  # noqa: E402

ALTERATIONS = [
    ("SlidingRule.first_needed", "self._window + 1", "self._window"),
    ("SlidingRule.first_needed", "self._window + 1", "self._window + 2"),
    ("SlidingRule.last_needing", "- 2", "- 1"),
    ("SlidingRule.__init__", "window - 1", "window"),
    ("ChunkedRule.first_needed", "* self._chunk", "* self._chunk - 1"),
    ("ChunkedRule.last_needing", "- 1", "- 2"),
    ("MambaRule.first_needed", "num_tokens - 1", "num_tokens"),
    ("MambaRule.last_needing", "position", "position + 1"),
    ("SlidingRule.longest", "self.hit_run", "1"),
    ("MambaRule.longest", "1, 0", "2, 0"),
    ("WindowRule.first_needed", "0", "1"),
    ("GroupTables.entries_for", "- 1", "+ 0"),
    ("GroupTables.missing", "more > 1", "more > 2"),
    ("reads", "position - window + 1", "position - window"),
]


def test_every_theorem_is_proved() -> None:
    rows = run(Profile("pr"), lambda count=1, note="": None)
    assert [row.detail for row in rows if row.violations] == []
    assert len(rows) == size(Profile("pr"))


@pytest.mark.parametrize(("name", "old", "new"), ALTERATIONS)
def test_altered_code_is_refuted(name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Altered(symbolic.Source):
        def __init__(self, module: Any) -> None:
            super().__init__(module)
            if name in self.functions:
                text = ast.unparse(self.functions[name])
                head, body = text.split(":\n", 1)
                assert old in body
                altered = body[::-1].replace(old[::-1], new[::-1], 1)[::-1]
                self.functions[name] = ast.parse(f"{head}:\n{altered}").body[0]  # type: ignore[assignment]

    monkeypatch.setattr(symbolic, "Source", Altered)
    refuted = [row for row in map(proved, theorems()) if row.violations]
    assert refuted
    assert all(row.law == "PROOF-1" and "not so for" in row.detail for row in refuted)


def test_what_cannot_be_read_is_an_error() -> None:
    body = ast.parse("while x:\n    y = 1").body
    with pytest.raises(NotImplementedError, match="while x"):
        symbolic.block(body, {"x": z3.Int("x")})


def test_code_that_outgrows_the_reader_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic.Source, "apply", lambda *_: symbolic.block(ast.parse("while x: pass").body, {}))
    rows = run(Profile("pr"), lambda count=1, note="": None)
    assert [row.law for row in rows] == ["PROOF-0"]
    assert "while x" in rows[0].detail


def test_division_rounds_down() -> None:
    n = z3.Int("n")
    value = symbolic.term(ast.parse("-(-n // 4)", mode="eval").body, {"n": n})
    for number in range(-9, 10):
        assert z3.simplify(z3.substitute(value, (n, z3.IntVal(number)))).as_long() == -(-number // 4)


def test_other_managers_are_not_proved() -> None:
    assert run(Profile("pr", implementation="mine:Adapter"), lambda count=1, note="": None) == []
