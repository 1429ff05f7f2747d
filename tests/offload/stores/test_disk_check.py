"""Property: a check of a directory names what is damaged and changes nothing; with a repair that is forgotten.

How: bytes and records of a small store are altered; the command and the call are compared with what a store then finds.
Not covered: every byte, and what stands in the place of files (the gate `faults`, DISK-8).
"""

from pathlib import Path

import pytest
from tests.offload.stores.disk_support import SIZE, STRIDE, data_of, opened, parts

from blockwright.cli import main
from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload import check_store
from blockwright.offload.disk.index import RECORD_SIZE


def altered(path: Path, *places: tuple[str, int]) -> dict[str, bytes]:
    with opened(path) as store:
        for number in range(3):
            store.put(b"key %d" % number, number, parts(data_of(number)))
    for name, offset in places:
        with (path / name).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
    return contents(path)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_what_is_damaged_is_named_and_forgotten(path: Path) -> None:
    before = altered(path, ("blocks", STRIDE + 17), ("index", 2 * RECORD_SIZE + 60), ("recency", 20))
    found = check_store(path)
    assert (found.num_blocks, found.blocks, found.bytes_read) == (4, 2, 2 * SIZE)
    assert (found.damaged_blocks, found.damaged_records) == ((1,), (2,))
    assert not found.is_sound
    assert not found.is_repaired
    assert contents(path) == before
    assert check_store(path, repair=True).is_repaired
    assert check_store(path).is_sound
    with opened(path) as store:
        assert store.blocks() == [(b"key 0", 0)]
        assert store.counts.damaged_records == 0
    looked = list[int]()
    assert not check_store(path, repair=True, advance=looked.append).is_repaired
    assert sum(looked) == 4


def test_a_block_that_the_file_ends_before(path: Path) -> None:
    altered(path)
    with (path / "blocks").open("r+b") as file:
        file.truncate(STRIDE + 100)
    assert check_store(path).damaged_blocks == (1, 2)
    (path / "blocks").unlink()
    assert check_store(path).damaged_blocks == (0, 1, 2)
    (path / "index").unlink()
    assert check_store(path).num_blocks == 0
    assert not {"blocks", "index"} & {file.name for file in path.iterdir()}


def test_what_is_refused_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    before = altered(path, *(("blocks", STRIDE * number) for number in range(3)))
    with pytest.raises(StoreDirectoryError, match=r"no block of it is sound, so that header\.json may be"):
        check_store(path, repair=True)
    assert contents(path) == before
    with opened(path), pytest.raises(StoreDirectoryError, match="in use by another store"):
        check_store(path)
    header = (path / "header.json").read_text()
    for wrong in (header.replace('"num_blocks": 4', '"num_blocks": -4'), header.replace("5000", '"many"'), "[]"):
        (path / "header.json").write_text(wrong)
        with pytest.raises(StoreDirectoryError, match=r"header\.json is damaged"):
            check_store(path)
    (tmp_path / "empty").mkdir(mode=0o700)
    with pytest.raises(StoreDirectoryError, match=r"has no header\.json, so that it is no store's"):
        check_store(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    with pytest.raises(InvalidArgumentError, match="there is no directory"):
        check_store(tmp_path / "none")


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    altered(path, ("blocks", STRIDE + 17))
    for arguments, code, said in (
        ((), 1, "1 damaged block, in place 1\nWith --repair it is forgotten"),
        (("--repair",), 0, "What is damaged was forgotten"),
        ((), 0, "All blocks are sound."),
    ):
        assert main(["store", "check", str(path), *arguments]) == code
        assert said in capsys.readouterr().out
    assert main(["store", "check", str(path / "none")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_file_that_is_to_be_written(path: Path) -> None:
    """The header is written anew when the size changes; an empty folder of its temporary name costs nothing."""
    altered(path)
    (path / "header.json.new").mkdir()
    with opened(path, slots=5) as store:
        assert len(store.blocks()) == 3
