"""Property: each `law: ID` in the implementation names a law, and each law is claimed somewhere or it is said why not.

How: the sources are searched as the book does it; the laws without a claim must be exactly those listed with a reason.
The search is tried on a small file: docstrings, comments above a line and behind one, several laws, nested functions.
Not covered: whether the code beside a tag upholds its law (lock-step, mutants and known bugs).
"""

import pytest

from blockwright_lab.book import law_tags
from blockwright_lab.book.law_tags import UNCLAIMED, claims, law_ids, tags, unclaimed, unknown

SOURCE = '''"""A module (law: NULL-1)."""

class Pool:
    """Keeps blocks. law: REF-1."""

    def take(self) -> None:
        """Take one. law: STEP-2, STEP-3."""
        # law: QUEUE-1
        self.one = 1  # law: KEY-1

        def inner() -> None:
            # flaw: HIT-1
            return  # law: HIT-2
'''


def test_every_tag_names_a_law() -> None:
    assert unknown() == []


def test_laws_without_a_claim_are_listed_with_a_reason() -> None:
    assert sorted(unclaimed()) == sorted(UNCLAIMED)
    assert [law for law, reason in UNCLAIMED.items() if len(reason.split()) < 6] == []


def test_claims_name_functions() -> None:
    assert ("core/pool/store.py", "BlockStore._release") in claims()["REF-1"]
    assert list(claims()) == list(law_ids())


def test_tags_are_found_where_they_stand() -> None:
    assert tags(SOURCE) == [
        (1, "", "NULL-1"),
        (4, "Pool", "REF-1"),
        (7, "Pool.take", "STEP-2"),
        (7, "Pool.take", "STEP-3"),
        (8, "Pool.take", "QUEUE-1"),
        (9, "Pool.take", "KEY-1"),
        (13, "Pool.take.inner", "HIT-2"),
    ]


def test_an_unknown_law_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_tags, "law_ids", lambda: tuple(law for law in law_ids() if law != "REF-1"))
    assert {law for law, _ in unknown()} == {"REF-1"}
    assert "REF-1" not in unclaimed()
