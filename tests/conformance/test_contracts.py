"""Property: contracts are confirmed over all paths, and nothing else counts.

How: the short contracts are followed in a process of their own, as the gate does; a wrong condition, one that fails
with an error, one that cannot be followed to the end and a process that dies must each be told. The list of contracts
must name every condition and only functions that exist.
Not covered: the long contracts, which `blockwright conform --proofs` and the nightly run follow.
"""

import ast
from pathlib import Path

import pytest

pytest.importorskip("crosshair")

import blockwright_lab
from blockwright_conformance.gates import Profile
from blockwright_lab.proofs import contracts
from blockwright_lab.proofs import gate as proofs
from blockwright_lab.proofs.contracts import CONFIRMED, CONTRACTS, Checking, Contract, followed
from blockwright_lab.proofs.symbolic import Source


def test_short_contracts_are_confirmed() -> None:
    chosen = [each for each in CONTRACTS if each.is_short]
    answers = list(Checking(chosen).answers())
    assert {answer.name: answer.said for answer in answers} == dict.fromkeys((each.name for each in chosen), CONFIRMED)


def conditions() -> list[str]:
    """The functions with a condition."""
    path = Path(blockwright_lab.__path__[0]) / "proofs/contract_conditions.py"
    functions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return [function.name for function in functions if "post:" in (ast.get_docstring(function) or "")]


def test_the_list_names_every_condition_and_functions_that_exist() -> None:
    assert sorted(each.name for each in CONTRACTS) == sorted(conditions())
    for each in CONTRACTS:
        for name in each.about:
            module, _, function = name.partition(":")
            assert function in Source(module).functions, name


def wrong(n: int) -> bool:
    """Say what is not so.

    pre: 0 <= n <= 5
    post: _
    """
    return n != 4


def failing(n: int) -> bool:
    """Fail.

    pre: 0 <= n <= 5
    post: _
    """
    return 1 // (n - 3) < 9


def endless(n: int) -> bool:
    """Take more paths than can be followed.

    post: _
    """
    at = 0
    while at < n:
        at += 1
    return at >= 0


def bare(n: int) -> bool:
    """Promise nothing."""
    return n > 0


def test_only_confirmed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "SECONDS", 2.0)
    assert "POST_FAIL" in followed(wrong)
    assert "EXEC_ERR" in followed(failing)
    assert "CANNOT_CONFIRM" in followed(endless)
    assert followed(bare) == "nothing was checked"


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Contract("not_there", frozenset(), True)
    (answer,) = Checking([gone]).answers()
    assert "no answer" in answer.said
    monkeypatch.setattr(proofs, "CONTRACTS", (gone,))
    monkeypatch.setattr(proofs, "of_z3", lambda profile, progress: [])
    (row,) = proofs.run(Profile("pr"), lambda count=1, note="": None)
    assert (row.law, row.violations) == ("PROOF-3", 1)


@pytest.mark.parametrize(("package", "kind"), [("z3", "proof"), ("crosshair", "contract")])
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_missing_package_is_a_row_and_with_proofs_a_failure(
    package: str, kind: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "has_z3", lambda: package != "z3")
    monkeypatch.setattr(proofs, "is_there", lambda: False)
    monkeypatch.setattr(proofs, "of_z3", lambda profile, progress: [])
    rows = proofs.run(Profile("pr", proofs=is_asked), lambda count=1, note="": None)
    (row,) = (row for row in rows if row.kind == kind)
    assert "is not installed" in row.detail
    assert row.violations == int(is_asked)
