"""Property: the runs that stop a disk notice what they are there to notice.

How: stores that are wrong in one way are put through the loss of power, in this process; a killed process's words are
altered before they are compared with what it left.
Not covered: hundreds of kills, which the gate does (``blockwright conform --gate faults``).
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.offload.disk import files as disk_files
from blockwright.offload.disk import store as disk_store
from blockwright_lab.media import altered as offload_altered
from blockwright_lab.media import crash as offload_crash
from blockwright_lab.media.altered import alterations
from blockwright_lab.media.blocks import Left, Said
from blockwright_lab.media.crash import RUNS, failures, kills, row
from blockwright_lab.media.power import NotedFolder
from blockwright_lab.media.victim import Plan

ENOUGH = 150
"""Losses of power in which every wrong store below is noticed."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with offload_crash.quiet():
        yield


# --- wrong stores and the loss of power


def no_sync_of(name: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def wrong(original: Any, patch: pytest.MonkeyPatch) -> None:
        def durable(file: Any, outcomes: Any) -> Any:
            return outcomes if file.name == name else original(file, outcomes)

        patch.setattr(disk_store, "_durable", durable)

    return wrong


def no_sync_of_names(original: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NotedFolder, "sync", lambda self: None)


@pytest.mark.parametrize(
    ("wrong", "laws"),
    [
        (no_sync_of("blocks"), {"DISK-2"}),
        (no_sync_of("index"), {"DISK-2", "DISK-3"}),
        (no_sync_of_names, {"DISK-2"}),
    ],
    ids=["bytes not synced", "records not synced", "names not synced"],
)
def test_a_wrong_store_is_noticed(wrong: Any, laws: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(disk_store._durable, monkeypatch)
    faults, fired = failures(tmp_path, ENOUGH, seed=0)
    assert row(RUNS[1], ENOUGH, faults, fired, 0.0).law in laws


# --- wrong stores and altered files


def links_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "O_NOFOLLOW", 0)


def others_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_files, "_OTHERS_WRITE", 0)


def bytes_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_store, "checksum", lambda name, key, parts: bytes(16))


@pytest.mark.parametrize(
    ("wrong", "laws"),
    [
        (links_followed, {"DISK-2", "DISK-6"}),
        (others_trusted, {"DISK-6"}),
        (bytes_unchecked, {"DISK-1"}),
    ],
)
def test_a_store_that_trusts_too_much_or_too_little_is_noticed(
    wrong: Callable[[pytest.MonkeyPatch], None], laws: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    monkeypatch.setattr(offload_altered, "ENOUGH", 1)
    with offload_altered.scratch() as folder:
        faults, _ = alterations(folder, 1500, seed=0)
    assert {law for law, _ in faults} & laws


# --- killed processes


def planned(call: int) -> Callable[[Path, random.Random, int], Plan]:
    return lambda path, draw, life: Plan(str(path), life, 1, 0.0, call, "before")


@pytest.mark.parametrize(
    ("heard", "law"),
    [(Said("written", 3, 39), "DISK-2"), (Said("fault", 3, 39), "DISK-1"), (Said("discarded", 1, 1), "")],
)
def test_a_lie_of_the_process_is_noticed(
    heard: Said, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = offload_crash.hear

    def hear(lines: Any, left: Left) -> int:
        status = before(lines, left)
        left.hear(heard)
        return status

    monkeypatch.setattr(offload_crash, "hear", hear)
    monkeypatch.setattr(offload_crash, "planned", planned(2))
    faults, fired = kills(tmp_path, 1, seed=0)
    assert row(RUNS[0], 1, faults, fired, 0.0).law == law


def test_what_was_said_not_to_be_there_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Left, "hear", lambda self, said: None)
    monkeypatch.setattr(offload_crash, "planned", planned(60))
    faults, fired = kills(tmp_path, 1, seed=0)
    assert row(RUNS[0], 1, faults, fired, 0.0).law == "DISK-3"


# --- the model of a disk
