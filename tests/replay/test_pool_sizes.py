"""A list of pool sizes reads as documented, and anything else is refused with the part that is wrong.

How: examples of every form, and of every fault. Not covered: how argparse shows the error (see tests/cli).
"""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from blockwright.replay.pool_sizes import parse_memory, parse_pool_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("7", (7,)),
        ("3,1,2,3", (1, 2, 3)),
        ("10:30:10", (10, 20, 30)),
        ("10:35:10", (10, 20, 30, 35)),
        ("5:5:1", (5,)),
        ("1000:8000:x2", (1000, 2000, 4000, 8000)),
        ("1:10:x3,100", (1, 3, 9, 10, 100)),
        ("1..4,8", (1, 2, 3, 4, 8)),
    ],
)
def test_forms(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_pool_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a whole number from 1 to 1073741823, not ''"),
        ("0", "must be a whole number from 1 to 1073741823, not '0'"),
        ("5,", "must be a whole number from 1 to 1073741823, not ''"),
        ("-5", "must be a whole number from 1 to 1073741823, not '-5'"),
        ("1.5", "must be a whole number from 1 to 1073741823, not '1.5'"),
        ("1e3", "must be a whole number from 1 to 1073741823, not '1e3'"),
        ("1073741824", "must be a whole number from 1 to 1073741823, not '1073741824'"),
        ("1:5", "needs N, FROM..TO, FROM:TO:STEP or FROM:TO:xFACTOR, not '1:5'"),
        ("9:5:1", "the range '9:5:1' ends before it begins"),
        ("1:9:0", "must be a whole number from 1 to 1073741823, not '0'"),
        ("1:9:x1", "must be a whole number from 2 to 1073741823, not '1'"),
        ("1:9999:1", "names more than 1000 sizes; take a larger step"),
        ("1:1073741823:1", "names more than 1000 sizes; take a larger step"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        parse_pool_sizes(text)
    assert str(caught.value) == message


def test_memory() -> None:
    assert parse_memory("0,1.5KiB, 2 GB,1TiB") == {"0": 0, "1.5KiB": 1536, "2 GB": 2 * 10**9, "1TiB": 1 << 40}
    for text in ("", "7", "-1GiB", "1GiB,", "1 gib", "9" * 30 + "GiB"):
        with pytest.raises(ArgumentTypeError, match="needs sizes with a unit, as 64GiB, or 0, not"):
            parse_memory(text)
