"""Property: the closed forms of the implementation are proved, and a wrong one is refuted.

How: every theorem is proved; then the source of one closed form at a time is altered before it is read as a formula,
and some theorem about it must be refuted with numbers. The reader of formulas is tried on small functions.
Not covered: code that the reader of formulas cannot read; it says so with an error.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest

z3 = pytest.importorskip("z3")

from blockwright_conformance.gates import Profile  # noqa: E402
from blockwright_lab.proofs import gate as proofs  # noqa: E402
from blockwright_lab.proofs import symbolic  # noqa: E402
from blockwright_lab.proofs.device import device_theorems  # noqa: E402
from blockwright_lab.proofs.gate import proved, run, size  # noqa: E402
from blockwright_lab.proofs.paging import paging_theorems  # noqa: E402
from blockwright_lab.proofs.tables import table_theorems  # noqa: E402
from blockwright_lab.proofs.theorem import Theorem  # noqa: E402
from blockwright_lab.proofs.windows import window_theorems  # noqa: E402

ALTERATIONS = [
    (window_theorems, "SlidingRule.first_needed", "self._window + 1", "self._window"),
    (window_theorems, "SlidingRule.first_needed", "self._window + 1", "self._window + 2"),
    (window_theorems, "SlidingRule.last_needing", "- 2", "- 1"),
    (window_theorems, "SlidingRule.__init__", "window - 1", "window"),
    (window_theorems, "SlidingRule.__init__", "sink_len + block_size", "sink_len"),
    (window_theorems, "SlidingRule.peak", "- self.sinks", "- 0"),
    (window_theorems, "GroupTables.trim_at", "max(num_trimmed, self.sinks)", "num_trimmed"),
    (window_theorems, "ChunkedRule.first_needed", "* self._chunk", "* self._chunk - 1"),
    (window_theorems, "ChunkedRule.last_needing", "- 1", "- 2"),
    (window_theorems, "MambaRule.first_needed", "num_tokens - 1", "num_tokens"),
    (window_theorems, "MambaRule.last_needing", "position", "position + 1"),
    (window_theorems, "SlidingRule.longest", "self.hit_run", "1"),
    (window_theorems, "MambaRule.longest", "1, 0", "2, 0"),
    (window_theorems, "WindowRule.first_needed", "0", "1"),
    (window_theorems, "GroupTables.first_kept", "self._block_size", "self._block_size + 1"),
    (window_theorems, "GroupTables.trims", "+ 1", "+ 0"),
    (window_theorems, "WindowRule.longest", "probe.margin", "0"),
    (window_theorems, "WindowRule.peak", "- 1", "- 0"),
    (window_theorems, "SlidingRule.peak", "last - block_size", "last - step"),
    (window_theorems, "SlidingRule.peak", "start + step", "start + step - 1"),
    (window_theorems, "ChunkedRule.peak", "max(most", "most + max(most"),
    (window_theorems, "MambaRule.peak", ">=", ">"),
    (table_theorems, "GroupTables.entries_for", "- 1", "+ 0"),
    (table_theorems, "GroupTables.missing", "more > 1", "more > 2"),
    (table_theorems, "GroupTables.in_place_slots", "size - 1", "size"),
    (table_theorems, "GroupTables.publishes", "+ 1", "+ 0"),
    (table_theorems, "GroupTables.shared_entry", "- 1", "- 0"),
    (table_theorems, "fits", "+ 2", "+ 1"),
    (table_theorems, "most_blocks", "- 2", "- 1"),
    (table_theorems, "BlockStore.find", "(index + 1)", "(index + 0)"),
    (table_theorems, "BlockKeys.num_blocks", "// self.units", "// 1"),
    (table_theorems, "GroupRows.state_entry", "- 1", "- 0"),
    (table_theorems, "TableReplica._find_slots_of", "block - entry", "block"),
    (table_theorems, "TableReplica._find_slots", "+ position", "+ 1"),
    (table_theorems, "TableReplica.slots", "block - entry", "block"),
    (table_theorems, "AccessOrder._down", "2 * place + 1", "2 * place + 2"),
    (paging_theorems, "BlockTable.num_touched", "1 - (", "0 - ("),
    (paging_theorems, "BlockTable._num_dead", "- window", "- window + 1"),
    (paging_theorems, "BlockTable.ensure_num_empty_slots", "self._num_full + num_empty_slots", "num_empty_slots"),
    (paging_theorems, "SelfAttnBlockSpaceManager.__init__", "+ 2", "+ 0"),
    (paging_theorems, "SelfAttnBlockSpaceManager.can_allocate", ">=", ">"),
    (paging_theorems, "DevicePool.find_words", "+ self.first_id", "+ 0"),
    (paging_theorems, "SlotBackend.num_free_places", "+ self._num_freed", "- self._num_freed"),
    (device_theorems, "write_kv", "slots % block_size", "slots"),
    (device_theorems, "first_read", "- 1", "- 0"),
    (device_theorems, "_longest_span", "attention_chunk_size + queries - 1", "attention_chunk_size"),
    (device_theorems, "_Memory.blocks", "<=", "<"),
    (device_theorems, "_laid_out", "* unit", "* unit + 1"),
    (device_theorems, "KVCachePlan.num_tokens", "- 1", "- 0"),
    (device_theorems, "_largest", "+ 1", "+ 0"),
    (device_theorems, "_visited", "+ 1", "+ 0"),
    (window_theorems, "reads", "position - window + 1", "position - window"),
]


def test_every_theorem_is_proved() -> None:
    profile = Profile("quick")
    rows = run(profile, lambda count=1, note="": None)
    assert [row.detail for row in rows if row.violations] == []
    assert len(rows) == size(profile)


@pytest.mark.parametrize(("chapter", "name", "old", "new"), ALTERATIONS)
def test_altered_code_is_refuted(
    chapter: Callable[[], Iterator[Theorem]], name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(proofs, "TIMEOUT_MS", 10_000)
    refuted = (row for row in map(proved, chapter()) if "not so for" in row.detail)
    assert next(refuted).law == "PROOF-1"


def test_a_theorem_about_nothing_is_refused() -> None:
    n, b = z3.Ints("n b")
    assert "no numbers" in proved(Theorem("all", "empty", [n > 1, n < 1], n == n)).detail
    assert "may not be positive" in proved(Theorem("all", "divides", [n > 1], n / b == n / b + 0 * (n / b))).detail
    assert proved(Theorem("all", "divides by more than zero", [b > 1, n > 1], n / b <= n)).detail == ""


def test_what_cannot_be_read_is_an_error() -> None:
    body = ast.parse("while x:\n    y = 1").body
    with pytest.raises(NotImplementedError, match="while x"):
        symbolic.block(body, {"x": z3.Int("x")})


def test_code_that_outgrows_the_reader_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic.Source, "apply", lambda *_: symbolic.block(ast.parse("while x: pass").body, {}))
    rows = run(Profile("quick"), lambda count=1, note="": None)
    assert [row.law for row in rows if row.violations] == ["PROOF-0"]
    assert "while x" in rows[0].detail


def test_division_rounds_down() -> None:
    n = z3.Int("n")
    value = symbolic.term(ast.parse("-(-n // 4)", mode="eval").body, {"n": n})
    for number in range(-9, 10):
        assert z3.simplify(z3.substitute(value, (n, z3.IntVal(number)))).as_long() == -(-number // 4)


def test_other_managers_are_not_proved() -> None:
    assert run(Profile("pr", implementation="mine:Adapter"), lambda count=1, note="": None) == []
