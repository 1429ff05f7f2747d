"""Property: the runs that stop a disk notice what they are there to notice.

How: stores that are wrong in one way are put through the loss of power, in this process; a killed process's words are
altered before they are compared with what it left.
Not covered: hundreds of kills, which the gate does (``blockwright conform --gate faults``).
"""

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.offload.disk import files as disk_files
from blockwright.offload.disk import store as disk_store
from blockwright.offload.disk.files import BlockFile
from blockwright.offload.disk.slots import SlotTable
from blockwright_lab.media import altered as offload_altered
from blockwright_lab.media import crash as offload_crash
from blockwright_lab.media.altered import alterations
from blockwright_lab.media.blocks import Left, Said
from blockwright_lab.media.crash import RUNS, failures, kills, row
from blockwright_lab.media.power import Call, Disk, NotedFolder, NotedStore
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


def no_checksum(original: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_store, "checksum", lambda name, key, parts: bytes(16))


def no_sync_of_names(original: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NotedFolder, "sync", lambda self: None)


def header_in_place(original: Any, patch: pytest.MonkeyPatch) -> None:
    def publish(self: Any, name: str, content: bytes) -> None:
        file = self.open(name, len(content))
        file.write(0, [memoryview(content)])
        file.sync()
        file.close()
        self.sync()

    patch.setattr(NotedFolder, "publish", publish)


def any_key(original: Any, patch: pytest.MonkeyPatch) -> None:
    """Reads believe that the key is the right one."""
    before = NotedStore.get

    def get(self: NotedStore, key: bytes, place: Any, into: Any) -> bool:
        record = self._slots.get(place)
        return before(self, record.key if record else key, place, into)

    patch.setattr(NotedStore, "get", get)


@pytest.mark.parametrize(
    ("wrong", "laws"),
    [
        (no_sync_of("blocks"), {"DISK-2"}),
        (no_sync_of("index"), {"DISK-2", "DISK-3"}),
        (no_checksum, {"DISK-1"}),
        (no_sync_of_names, {"DISK-2"}),
        (header_in_place, {"DISK-2"}),
        (any_key, {"DISK-1", "DISK-3"}),
    ],
    ids=["bytes not synced", "records not synced", "no checksum", "names not synced", "header in place", "any key"],
)
def test_a_wrong_store_is_noticed(wrong: Any, laws: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong(disk_store._durable, monkeypatch)
    faults, fired = failures(tmp_path, ENOUGH, seed=0)
    assert row(RUNS[1], ENOUGH, faults, fired, 0.0).law in laws


# --- wrong stores and altered files


def clock_from_hints(patch: pytest.MonkeyPatch) -> None:
    """The count of the next record goes on from what the file of hints says."""
    before = SlotTable.recover

    def recover(self: SlotTable, found: Any, uses: Any) -> None:
        before(self, found, uses)
        self._clock = max(self._clock, *(used for _, used in uses))

    patch.setattr(disk_store, "decoded_recency", unchecked)
    patch.setattr(SlotTable, "recover", recover)


def unchecked(data: bytes | None, num_slots: int) -> tuple[list[tuple[int, int]], int]:
    if data is None or len(data) != 16 * num_slots:
        return [(0, 0)] * num_slots, 0
    return list(struct.iter_unpack("<QQ", data)), 0


def links_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "O_NOFOLLOW", 0)


def others_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_files, "_OTHERS_WRITE", 0)


def order_of_writing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_store, "decoded_recency", lambda data, num_slots: ([(0, 0)] * num_slots, 0))


def bytes_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_store, "checksum", lambda name, key, parts: bytes(16))


def nothing_recovered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_store, "scan", lambda *_: [])


@pytest.mark.parametrize(
    ("wrong", "laws"),
    [
        (clock_from_hints, {"DISK-5"}),
        (links_followed, {"DISK-2", "DISK-6"}),
        (others_trusted, {"DISK-6"}),
        (order_of_writing, {"DISK-4"}),
        (bytes_unchecked, {"DISK-1"}),
        (nothing_recovered, {"DISK-2"}),
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


def planned(*, call: int = 0, how: str = "before", delay: float = 0.0) -> Callable[[Path, random.Random, int], Plan]:
    return lambda path, draw, life: Plan(str(path), life, 1, delay, call, how)


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_processes_end_at_each_call_of_making_a_directory_and_writing_to_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload_crash, "LIVES", 1)
    monkeypatch.setattr(
        offload_crash, "planned", lambda path, draw, life: Plan(str(path), life // 3, 1, 0, life + 1, how)
    )
    faults, fired = kills(tmp_path, 14, seed=0)
    assert faults == []
    assert (fired["killed"], fired[how]) == (14, 14)


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
    monkeypatch.setattr(offload_crash, "planned", planned(call=2))
    faults, fired = kills(tmp_path, 1, seed=0)
    assert row(RUNS[0], 1, faults, fired, 0.0).law == law


def test_what_was_said_not_to_be_there_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Left, "hear", lambda self, said: None)
    monkeypatch.setattr(offload_crash, "planned", planned(call=60))
    faults, fired = kills(tmp_path, 1, seed=0)
    assert row(RUNS[0], 1, faults, fired, 0.0).law == "DISK-3"


def test_a_process_that_fails_by_itself_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        offload_crash, "planned", lambda path, draw, life: Plan(str(path / "absent"), 0, 1, 0, 60, "torn")
    )
    faults, _ = kills(tmp_path, 1, seed=0)
    assert "the process failed with status 1" in faults[0]


# --- the model of a disk


def test_what_was_synced_is_sure_and_what_was_not_may_be_anything() -> None:
    disk = Disk({"a": b"0000"})
    for call in (Call("write", "a", 0, b"11"), Call("sync", "a"), Call("write", "a", 2, b"22"), Call("resize", "a", 6)):
        disk.take(call)
    seen = {disk.left(random.Random(seed))["a"] for seed in range(1000)}
    assert {each[:2] for each in seen} == {b"11"}
    assert {b"1100", b"1122", b"1120", b"1102", b"1100\0\0", b"1122\0\0"} <= seen


def test_names_are_kept_up_to_some_point() -> None:
    disk = Disk({"a": b"old"})
    for call in (Call("create", "b", data=b"new"), Call("rename", "b", to="a")):
        disk.take(call)
    seen = [disk.left(random.Random(seed)) for seed in range(50)]
    assert all(each in ({"a": b"old"}, {"a": b"old", "b": b"new"}, {"a": b"new"}) for each in seen)
    assert len({tuple(sorted(each.items())) for each in seen}) == 3
    disk.take(Call("names"))
    assert disk.left(random.Random(0)) == {"a": b"new"}


def test_file_reads_are_ours() -> None:
    """The victim's files read as ours do: only changes of the disk end a process."""
    assert NotedStore.folder_class.file_class.read is BlockFile.read
