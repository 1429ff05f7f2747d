"""Property: a host that grows and shrinks while it serves gives back the memory that it is asked for, once no transfer
uses it, and no load brings anything else than what its keys name.

How: prompts of several kinds of layer through a real host and disk, with a resize at any step, while transfers are
under way; every load is compared byte for byte. The host's memory is looked at page by page.
Not covered: every state of small tiers (lock-step, in scopes "resized"); pinned memory, which has one size.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from random import Random

import pytest
import torch
from tests.offload.connector.test_room import KINDS, LENGTH, Engine

from blockwright.device.reserved import ReservedMemory
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.offload import HostPool, HostResizing, LoadResult

ACTIONS = int(os.environ.get("RESIZE_ACTIONS", "60"))
"""Actions of each world."""


@pytest.mark.parametrize("write", ["back", "through"])
@pytest.mark.parametrize("kinds", ["full", "full and a window", "full and states"])
def test_host_breathes_and_every_load_is_right(tmp_path: Path, kinds: str, write: str) -> None:
    """law: TIER-13, TIER-14, CHAIN-6. Prompts are stored and loaded again; the host's size changes in between."""
    random = Random(f"{kinds} {write}")
    with Engine(tmp_path, KINDS[kinds], 64, write, most=128) as engine:
        drain, waited, loaded = engine.connector.drain, 0, 0

        def drain_resized(timeout: float = 60.0) -> list[LoadResult]:
            """Resize while what was handed out is under way."""
            nonlocal waited
            resizing = engine.connector.resize_host(random.choice((24, 40, 64, 128)))
            waited += resizing.held > 0
            told = drain(timeout)
            host, end = engine.connector._host, resizing.num_blocks
            assert host is not None
            assert engine.connector.host_resizing() == HostResizing(end, 0, ())
            assert host.num_blocks == end
            assert not host.buffer[end:].any()
            return told

        engine.connector.drain = drain_resized  # type: ignore[method-assign]
        served: list[int] = []
        for action in range(ACTIONS):
            if len(served) < 2 or random.random() < 0.3:
                engine.serve(action)
                served.append(action)
            else:
                loaded += engine.again(random.choice(served), may_fail=True)  # what comes up may find its place gone
        assert loaded > 0
        assert waited > 0


def test_what_goes_down_is_found_again(tmp_path: Path) -> None:
    """law: CHAIN-8, CHAIN-14. Written back, the disk takes what the host gives up."""
    with Engine(tmp_path, KINDS["full"], 64, "back", most=64) as engine:
        engine.serve(1)
        resizing = engine.connector.resize_host(LENGTH)
        engine.connector.drain()
        assert resizing.num_blocks == LENGTH
        engine.connector.resize_host(0)
        engine.connector.drain()
        assert engine.manager.reset_prefix_cache()
        assert engine.again(1) == 0  # nothing can pass through a host without places
        engine.connector.resize_host(64)
        assert engine.again(1) == 4 * LENGTH


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with Engine(tmp_path / "one", KINDS["full"], 8, most=16) as engine:
        for size in (-1, 17):
            with pytest.raises(InvalidArgumentError, match="num_blocks"):
                engine.connector.resize_host(size)
        assert engine.connector.host_resizing() == HostResizing(8, 0, ())
    with Engine(tmp_path, KINDS["full"], 8) as engine, pytest.raises(UnsupportedError, match="max_host_blocks"):
        engine.connector.resize_host(4)
    with pytest.raises(InvalidArgumentError, match="max_blocks"):
        HostPool([torch.zeros(2, 4)], 4, max_blocks=3)
    with pytest.raises(UnsupportedError, match="max_blocks"):
        HostPool([torch.zeros(2, 4)], 4, max_blocks=8, pin_memory=True)


def resident(tensor: torch.Tensor) -> int:
    """Return how many bytes of a mapping take memory, as the system counts them."""
    begin = f"{tensor.data_ptr():x}-"
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(begin))
    return 1024 * next(int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux lists the pages of a mapping")
def test_pages_are_given_back_and_addresses_stay() -> None:
    size = 8 << 20
    memory = ReservedMemory(size)
    at = memory.tensor.data_ptr()
    assert resident(memory.tensor) == 0
    memory.tensor.fill_(7)
    assert resident(memory.tensor) == size
    begin = size // 2 + 5
    given = memory.give_back(begin)
    assert given == size // 2 - mmap.PAGESIZE
    assert resident(memory.tensor) == size - given
    assert memory.tensor.data_ptr() == at
    assert bool((memory.tensor[:begin] == 7).all())
    assert not memory.tensor[begin:].any()
    assert memory.give_back(size) == 0
