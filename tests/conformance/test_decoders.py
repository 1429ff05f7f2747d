"""Property CALL-2: whatever bytes come from outside, their reader reads them or raises the error that it names.

How: a fixed sample of the gate `decoders` for each of its readers.
Not covered: 100,000 inputs for each reader (profile `nightly`).
"""

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from blockwright_conformance.gates import Profile
from blockwright_lab.media import decoders
from blockwright_lab.media.decoders import READERS, task


@pytest.mark.parametrize("name", READERS)
def test_altered_bytes_are_read_or_refused(name: str) -> None:
    row = task(name, Profile("quick"), seed=7)
    assert (row.detail, row.violations) == ("", 0)
    assert row.transitions == decoders.COUNTS["quick"]
