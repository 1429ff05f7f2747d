"""Property: each law of a directory that is opened again notices what breaks it, and excuses what may happen to files.

How: one opening by hand that keeps every law, and one change of it for each way to break one.
Not covered: real directories, which the gate `faults` alters by the thousand.
"""

from dataclasses import replace
from typing import Any

import pytest

from blockwright_spec.law import Ended, law_ended_call_is_whole, law_odd_bytes_are_refused
from blockwright_spec.offload.directory import (
    CHECKED_LAWS,
    DIRECTORY_LAWS,
    RESIZED_LAWS,
    Altered,
    Checked,
    Place,
    Reopened,
    Resized,
    Served,
)

RIGHT = Reopened(
    places=(Place(frozenset((b"a",)), b"a"), Place(frozenset((b"b", b"c")), None), Place(frozenset(), None)),
    altered=frozenset((Altered.REST,)),
    refused=False,
    served=frozenset((Served(0, b"a", b"a"), Served(1, b"c", b"c"))),
    used=(b"b", b"c", b"a"),
    order=(b"c", b"a"),
    renewed=True,
    private=True,
    outside=False,
)
REFUSED: dict[str, Any] = {"refused": True, "served": frozenset(), "order": (), "renewed": False}


def broken(after: Reopened) -> list[str]:
    return [law.id for law in DIRECTORY_LAWS if not law.holds(after)]


@pytest.mark.parametrize(
    ("change", "laws"),
    [
        ({}, []),
        ({"served": RIGHT.served | {Served(1, b"b", None)}}, ["DISK-1"]),
        ({"served": RIGHT.served | {Served(1, b"b", b"a")}}, ["DISK-1"]),
        ({"served": frozenset((Served(1, b"c", b"c"),))}, ["DISK-2"]),
        ({"served": RIGHT.served | {Served(2, b"a", b"a")}}, ["DISK-3"]),
        ({"order": (b"a", b"c")}, ["DISK-4"]),
        ({"order": (b"a", b"c"), "altered": frozenset((Altered.RECENCY,))}, []),
        ({"renewed": False}, ["DISK-5"]),
        ({"renewed": False, "altered": frozenset((Altered.RECENCY,))}, ["DISK-5"]),
        ({"renewed": False, "altered": frozenset((Altered.HEADER,))}, ["DISK-5"]),
        (REFUSED, ["DISK-5"]),
        ({**REFUSED, "altered": frozenset((Altered.PLACE, Altered.RECENCY))}, ["DISK-5"]),
        ({**REFUSED, "altered": frozenset((Altered.HEADER,))}, []),
        ({**REFUSED, "altered": frozenset((Altered.KIND,))}, []),
        ({"altered": frozenset((Altered.KIND,))}, ["DISK-6"]),
        ({"private": False}, ["DISK-6"]),
        ({"outside": True}, ["DISK-6"]),
    ],
)
def test_laws_notice(change: dict[str, Any], laws: list[str]) -> None:
    assert broken(replace(RIGHT, **change)) == laws


@pytest.mark.parametrize(
    "wrong", [{"named": frozenset((1, 3))}, {"again": frozenset((3,))}, {"unreadable": 1}], ids=str
)
def test_a_check_that_names_what_is_sound_or_leaves_what_is_not_is_noticed(wrong: dict[str, Any]) -> None:
    """DISK-8."""
    right = Checked(frozenset((0, 1)), frozenset((3,)), frozenset(), 0)
    (law,) = CHECKED_LAWS
    assert law.holds(right)
    assert not law.holds(replace(right, **wrong))


def test_blocks_that_a_size_loses_and_bytes_that_a_reader_takes_wrongly_are_noticed() -> None:
    """DISK-7, CALL-1, CALL-2."""
    wrong = ((b"a",), False), ((b"b", b"a"), False), ((b"a", b"b"), True)
    assert not any(law.holds(Resized((b"c", b"a", b"b"), 2, *each)) for law in RESIZED_LAWS for each in wrong)
    assert not law_odd_bytes_are_refused(KeyError, (ValueError,), False)
    assert not law_odd_bytes_are_refused(None, (), True)
    assert not law_ended_call_is_whole(Ended(0, 2, 1))
