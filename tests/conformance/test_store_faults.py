"""Property: the gate of faults has a row for all that can go wrong with a shared store, and says what is left out.

How: one short run through the gate; the gate without a server; a coverage row with something missing.
Not covered: that the runs see what they are there to see (tests/offload/stores/test_shared_faults.py).
"""

import pytest

from blockwright_conformance.gates import GateResult, Profile
from blockwright_lab.media import server as offload_server
from blockwright_lab.media.faults import STORE_EVERYTHING, STORE_RUNS, store_run
from blockwright_lab.media.gate import coverage, run, size


def test_a_run_through_the_gate() -> None:
    if offload_server.missing():
        pytest.skip(f"needs a server: {offload_server.missing()}")
    profile = Profile("quick", jobs=1, scope="store: wrong types")
    (row,) = run(profile, lambda *_: None)
    assert (row.scope, row.violations, row.transitions) == ("store: wrong types", 0, 6)
    assert size(profile) == 1


def test_without_a_server_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_server, "server_binary", lambda: None)
    row = store_run(STORE_RUNS[0], "quick")
    assert (row.violations, row.transitions) == (0, 0)
    assert row.detail.startswith("not run: no ")


def test_what_never_happened_is_a_violation() -> None:
    everything = dict.fromkeys(STORE_EVERYTHING, 1)
    row = coverage([GateResult("faults", "store", "", 0, 0, 0, 0.0, fired=everything)])
    assert row.violations == 0
    row = coverage([])
    assert row.violations == len(STORE_EVERYTHING)
    assert "wrong_type" in row.detail
