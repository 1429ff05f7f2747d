"""Property: each `law: ID` in the implementation names a law, and each law is claimed somewhere or it is said why not.

How: the sources are searched as the book does it; the laws without a claim must be exactly those listed with a reason.
Not covered: whether the code beside a tag upholds its law (lock-step, mutants and known bugs).
"""

from blockwright_lab.book.law_tags import UNCLAIMED, claims, law_ids, unclaimed, unknown


def test_every_tag_names_a_law() -> None:
    assert unknown() == []


def test_laws_without_a_claim_are_listed_with_a_reason() -> None:
    assert sorted(unclaimed()) == sorted(UNCLAIMED)
    assert [law for law, reason in UNCLAIMED.items() if len(reason.split()) < 6] == []


def test_claims_name_functions() -> None:
    assert ("core/pool/store.py", "BlockStore._release") in claims()["REF-1"]
    assert list(claims()) == list(law_ids())
