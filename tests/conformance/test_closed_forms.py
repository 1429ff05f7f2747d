"""Property: of every closed form of the bookkeeping something is proved, or it is said why not.

How: the source of core, paging, tiers and device is searched for functions of integer arithmetic; each must be read by
a theorem, followed by a contract, or listed with a reason, and no list may name what needs no listing. The search is
tried on small functions, and the lists with an entry too few and one too many.
Not covered: whether what is proved of a function is all there is to prove: the statements say what it is.
"""

import ast

import pytest

pytest.importorskip("z3")

from blockwright_conformance import closed_forms
from blockwright_conformance.closed_forms import NOT_PROVED, is_closed_form, needless, proved, unlisted


def is_one(text: str) -> bool:
    """Whether the function in this source is a closed form."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return is_closed_form(function)


def test_every_closed_form_is_proved_or_listed() -> None:
    assert unlisted() == []
    assert needless() == []


def test_most_are_proved() -> None:
    assert len(proved()) > 90
    assert {"blockwright.core.window:SlidingRule.peak", "blockwright.core.replica:TableReplica._fill_slots"} <= proved()


def test_reasons_are_sentences() -> None:
    assert [name for name, reason in {**NOT_PROVED, **closed_forms.LEFT_OUT}.items() if len(reason.split()) < 4] == []


def test_an_entry_too_few_or_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "blockwright.core.pool:BlockPool.get_usage"
    monkeypatch.delitem(NOT_PROVED, name)
    assert unlisted() == [name]
    monkeypatch.setitem(NOT_PROVED, "blockwright.core.window:MambaRule.first_needed", "proved all the same")
    monkeypatch.setitem(NOT_PROVED, "blockwright.core.window:nowhere", "not there")
    assert needless() == ["blockwright.core.window:MambaRule.first_needed", "blockwright.core.window:nowhere"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(n: int) -> int:\n    return n // 2", True),
        ("def f(n: int) -> int:\n    return n + 1", True),
        ("def f(n: int) -> None:\n    for i in range(n):\n        use(i * 2)", True),
        ("def f(self, n: int) -> None:\n    self.n = n + 1", False),
        ("def f(n: int) -> int | None:\n    return n", False),
        ("def f(n: str) -> str:\n    return 'a' + n", False),
        ("def f(n: int) -> list[int]:\n    return [0] * n", False),
        ("def f(n: int) -> int:\n    for i in range(n):\n        n += i\n    return n", False),
    ],
)
def test_the_search_knows_closed_forms(text: str, expected: bool) -> None:
    assert is_one(text) == expected
