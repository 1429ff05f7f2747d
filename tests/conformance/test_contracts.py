"""Property: contracts hold for all numbers of their ranges, and what does not is told with the numbers.

How: every contract is tried, as the gate does; a wrong condition and one that fails with an error must each be told.
The list of contracts must name only functions that exist.
"""

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.proofs import gate as proofs
from blockwright_lab.proofs.contracts import CONTRACTS, Contract
from blockwright_lab.proofs.symbolic import Source


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda each: each.name)
def test_contracts_hold(contract: Contract) -> None:
    assert contract.fault() == ""


def test_the_list_names_functions_that_exist() -> None:
    assert len({each.name for each in CONTRACTS}) == len(CONTRACTS)
    for each in CONTRACTS:
        for name in each.about:
            module, _, function = name.partition(":")
            assert function in Source(module).functions, name


def test_what_does_not_hold_is_told_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Contract("wrong", frozenset(), lambda n: n != 4, (range(6),))
    failing = Contract("failing", frozenset(), lambda n: 1 // (n - 3) < 9, (range(6),))
    assert (wrong.fault(), failing.fault()[:27]) == ("not so for (4,)", "ZeroDivisionError for (3,):")
    monkeypatch.setattr(proofs, "CONTRACTS", (wrong,))
    monkeypatch.setattr(proofs, "of_z3", lambda profile, progress: [])
    (row,) = proofs.run(Profile("pr"), lambda count=1, note="": None)
    assert (row.law, row.violations) == ("PROOF-3", 1)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_missing_package_is_a_row_and_with_proofs_a_failure(is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "has_z3", lambda: False)
    rows = proofs.run(Profile("pr", proofs=is_asked), lambda count=1, note="": None)
    (row,) = (row for row in rows if row.kind == "proof")
    assert "is not installed" in row.detail
    assert row.violations == int(is_asked)
