"""Property: the random driver runs long on this manager, meets everything it is for, and finds what is broken.

How: a few thousand steps on this manager; then managers with one public name replaced by a faulty one, each of which
must be reported, with the arguments that show it again; the command's output and exit codes.
Not covered: the million steps of the command's long run; faults that need steps in flight.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright import NotNow, Request
from blockwright_conformance import driver
from blockwright_conformance.driver import DriverError, Run, Setup, drive, make_manager

MET = {
    "aborted", "admitted on a hit", "admitted without a hit", "load", "load after a hit", "load failed",
    "load freed meanwhile", "loaded", "never", "not now: admit", "not now: batch", "not now: compute", "not now: load",
    "preempted", "served", *driver.WEIGHTS,
}  # fmt: skip
"""Everything that happens, and everything that is refused."""


def test_thousands_of_steps_meet_everything_and_break_nothing() -> None:
    done, runs, counts = drive(8_000, 1)
    assert done >= 8_000
    assert runs > 10
    assert set(counts) == MET


def test_the_same_seed_does_the_same() -> None:
    assert drive(1_000, 5) == drive(1_000, 5)
    assert drive(1_000, 5) != drive(1_000, 6)


Faults = Callable[[Any], dict[str, Any]]


def broken(faults: Faults) -> Callable[[Setup], Any]:
    """Return a factory of managers of which some public names are replaced."""

    def make(setup: Setup) -> Any:
        inner = make_manager(setup)
        names = {name: getattr(inner, name) for name in dir(inner) if not name.startswith("_") and name != "usage"}
        return SimpleNamespace(**{**names, **faults(inner)})

    return make


def never_frees_loads(inner: Any) -> dict[str, Any]:
    return {"free": lambda request: inner.free(request) if request.num_computed_tokens else None}


def plans_too_little(inner: Any) -> dict[str, Any]:
    def plan(*args: Any, **more: Any) -> Any:
        told = inner.plan(*args, **more)
        if hasattr(told, "num_blocks"):
            told.num_blocks -= told.num_blocks > 3
        return told

    return {"plan": plan}


def sees_no_room(inner: Any) -> dict[str, Any]:
    return {"plan": lambda request, *_, **__: NotNow(request.request_id, 1)}


def never_admits(inner: Any) -> dict[str, Any]:
    return {**sees_no_room(inner), "allocate_slots": lambda *_, **__: None}


def refuses_all(inner: Any) -> dict[str, Any]:
    return {"allocate_slots": lambda *_, **__: None}


def trims_before_it_refuses(inner: Any) -> dict[str, Any]:
    def allocate_slots(request: Request, *args: Any, **more: Any) -> Any:
        given = inner.allocate_slots(request, *args, **more)
        if given is None and request.num_computed_tokens:
            inner.remove_skipped_blocks(request, request.num_computed_tokens)
        return given

    return {"allocate_slots": allocate_slots}


def publishes_what_did_not_come(inner: Any) -> dict[str, Any]:
    return {"finish_load": lambda request, _: inner.finish_load(request, 1) or True}


def forgets_what_came(inner: Any) -> dict[str, Any]:
    def get_computed_blocks(request: Request) -> Any:
        found = inner.get_computed_blocks(request)
        return (inner.create_empty_block_list(), 0) if request.request_id == "twin" else found

    return {"get_computed_blocks": get_computed_blocks}


def loses_one_of_a_batch(inner: Any) -> dict[str, Any]:
    def allocate_slots_batch(batch: list[Request], *args: Any, **more: Any) -> Any:
        served = inner.allocate_slots_batch(batch, *args, **more).num_served - 1
        return SimpleNamespace(num_served=served, refused=served)

    return {"allocate_slots_batch": allocate_slots_batch}


def resets_nothing(inner: Any) -> dict[str, Any]:
    return {"reset_prefix_cache": lambda: False}


def checks_and_fails(inner: Any) -> dict[str, Any]:
    def check() -> None:
        raise ValueError("law broken")

    return {"check": check}


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (never_frees_loads, "other requests run than were admitted|blocks are held|DuplicateRequestError|came: True"),
        (plans_too_little, "took another number than Fits"),
        (sees_no_room, "given, although NotNow"),
        (never_admits, "a request is not admitted, although all others are released"),
        (refuses_all, "refused, although Fits"),
        (trims_before_it_refuses, "a refused call changed something"),
        (publishes_what_did_not_come, "came: True"),
        (forgets_what_came, "tokens were loaded, 0 are found"),
        (loses_one_of_a_batch, "a batch changed a request that it did not serve|although Fits|went back from"),
        (resets_nothing, "reset with an idle pool: True|in use, but by nobody"),
        (checks_and_fails, "ValueError: law broken"),
    ],
)
def test_a_broken_manager_is_found(faults: Faults, message: str) -> None:
    with pytest.raises(DriverError, match=rf"(?s)step \d+: .*({message}).*\(again: --seed \d+ --steps \d+\)"):
        drive(20_000, 0, broken(faults))


def test_a_violation_is_seen_again_with_the_arguments_that_it_names() -> None:
    make = broken(trims_before_it_refuses)
    with pytest.raises(DriverError) as first:
        drive(20_000, 0, make)
    _, seed, _, steps = str(first.value).rpartition("(again: ")[2].rstrip(")").split()
    with pytest.raises(DriverError) as second:
        drive(int(steps), int(seed), make)
    assert str(second.value) == str(first.value)


def test_the_command_prints_what_happened(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "--steps", "1000", "--seed", "3"])
    assert driver.main() == 0
    out = capsys.readouterr().out
    assert "steps/s" in out
    assert "no violation" in out
    assert "preempted" in out


def test_the_command_fails_on_a_violation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: Run) -> None:
        run.require(False, "nothing holds")

    monkeypatch.setattr(sys, "argv", ["driver", "--steps", "10"])
    monkeypatch.setattr(Run, "observe", fails)
    assert driver.main() == 1
    assert "violation: step" in (err := capsys.readouterr().err)
    assert "nothing holds" in err
