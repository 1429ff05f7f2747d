"""Property CALL-2: whatever bytes come from outside, their reader reads them or raises the error that it names.

How: a fixed sample of the gate `decoders` for each of its readers; and readers that are wrong on purpose, which it must
notice.
Not covered: 100,000 inputs for each reader (profile `nightly`).
"""

from pathlib import Path

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from blockwright.errors import InvalidArgumentError
from blockwright_conformance.gates import Profile
from blockwright_lab.media import decoders
from blockwright_lab.media.decoders import READERS, Frames, Read, task


@pytest.mark.parametrize("name", READERS)
def test_altered_bytes_are_read_or_refused(name: str) -> None:
    row = task(name, Profile("quick"), seed=7)
    assert (row.detail, row.violations) == ("", 0)
    assert row.transitions == decoders.COUNTS["quick"]


def untyped(frames: Frames, path: Path) -> object:
    return frames[0][40]


def greedy(frames: Frames, path: Path) -> int:
    return len(b"x" * (64 << 20))


@pytest.mark.parametrize("wrong", [untyped, greedy])
def test_wrong_readers_are_noticed(wrong: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "wrong", (lambda: [[bytes(64)]], wrong, (InvalidArgumentError,)))
    monkeypatch.setattr(decoders, "LARGE", 4 << 10)
    row = task("wrong", Profile("quick"))
    assert (row.law, row.violations > 0) == ("CALL-2", True)
