"""Property: what an engine's own block or allocator does not bring is an error at the call, not a silent None; what may
be left out has an answer that is safe for any allocator.

How: every member of the three interfaces is called on a class that brings nothing.
Not covered: that the answers suffice for a table (test_interfaces.py).
"""

from typing import Any

import pytest

from blockwright.errors import UnsupportedError
from blockwright.paging import Block, BlockAllocator, Device, DeviceAwareBlockAllocator


class BareBlock(Block):
    """Brings nothing."""


class BareAllocator(BlockAllocator):
    """Brings nothing."""


class BareDevices(DeviceAwareBlockAllocator):
    """Brings nothing."""


class Freeing(DeviceAwareBlockAllocator):
    """Brings one method."""

    def __init__(self) -> None:
        self.freed: list[Block] = []

    def free(self, block: Block) -> None:
        self.freed.append(block)


BLOCK, GPU, CPU = BareBlock(), Device.GPU, Device.CPU

READ = """block_id token_ids num_tokens_total num_empty_slots is_full prev_block extra_hash computed last_accessed
    content_hash""".split()
SET: dict[str, Any] = {"block_id": 1, "computed": True, "last_accessed": 1.0}

OF_ONE: dict[str, tuple[Any, ...]] = {
    "allocate_mutable_block": (None,),
    "allocate_immutable_block": (None, [1]),
    "allocate_immutable_blocks": (None, [[1]]),
    "free": (BLOCK,),
    "fork": (BLOCK,),
    "get_num_total_blocks": (),
    "get_num_free_blocks": (),
    "get_physical_block_id": (1,),
    "swap_out": ([BLOCK],),
    "swap_in": ([BLOCK],),
    "clear_copy_on_writes": (),
    "mark_blocks_as_accessed": ([1], 1.0),
    "mark_blocks_as_computed": ([1],),
    "get_common_computed_block_ids": ([[1]],),
    "cow_block_if_not_appendable": (BLOCK,),
    "promote_to_immutable_block": (BLOCK,),
    "get_num_full_blocks_touched": ([BLOCK],),
    "get_prefix_cache_hit_rate": (),
    "reset_prefix_cache": (),
    "find_cached_blocks_prefix": ([b""],),
}
OF_TWO: dict[str, tuple[Any, ...]] = {
    "allocate_mutable_block": (None, GPU),
    "allocate_immutable_block": (None, [1], GPU),
    "allocate_immutable_blocks": (None, [[1]], GPU),
    "free": (BLOCK,),
    "fork": (BLOCK,),
    "get_num_total_blocks": (GPU,),
    "get_num_free_blocks": (GPU,),
    "get_physical_block_id": (GPU, 1),
    "swap": ([BLOCK], GPU, CPU),
    "clear_copy_on_writes": (),
    "mark_blocks_as_accessed": ([1], 1.0),
    "mark_blocks_as_computed": ([1],),
    "get_common_computed_block_ids": ([[1]],),
    "get_num_full_blocks_touched": ([BLOCK],),
    "get_prefix_cache_hit_rate": (GPU,),
    "reset_prefix_cache": (),
    "find_cached_blocks_prefix": ([b""],),
    "allocate_or_get_null_block": (),
    "release_blocks": ([BLOCK],),
}
NOT_OFFERED: dict[str, tuple[Any, ...]] = {
    "cow_block_if_not_appendable": (BLOCK,),
    "promote_to_immutable_block": (BLOCK,),
    "swap_out": ([BLOCK], GPU),
    "swap_in": ([BLOCK], GPU),
    "copy_block": (BLOCK, None),
}


@pytest.mark.parametrize("name", READ)
def test_a_block_must_bring_every_property(name: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(BLOCK, name)
    if name in SET:
        with pytest.raises(NotImplementedError):
            setattr(BLOCK, name, SET[name])


def test_a_block_must_bring_what_writes_it() -> None:
    with pytest.raises(NotImplementedError):
        BLOCK.append_token_ids([1])


@pytest.mark.parametrize(
    ("owner", "name", "arguments"),
    [(BareAllocator(), *call) for call in OF_ONE.items()] + [(BareDevices(), *call) for call in OF_TWO.items()],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_allocator_must_bring_every_method(owner: Any, name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(NotImplementedError):
        getattr(owner, name)(*arguments)


@pytest.mark.parametrize("owner", [BareAllocator(), BareDevices()])
def test_an_allocator_must_bring_its_ids(owner: Any) -> None:
    with pytest.raises(NotImplementedError):
        _ = owner.all_block_ids


@pytest.mark.parametrize(("name", "arguments"), NOT_OFFERED.items())
def test_what_is_not_offered_says_so(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}: not offered"):
        getattr(BareDevices(), name)(*arguments)


def test_what_may_be_left_out_has_a_safe_answer() -> None:
    owner = BareDevices()
    owner.require_block_size(0)
    owner.own_blocks([BLOCK])
    answers = (owner.num_to_adopt(BLOCK, [1]), owner.num_moves(), owner.num_freed([BLOCK]), owner.has_null_block)
    assert answers == (-1, -1, 0, False)
    assert owner.num_to_copy([BLOCK, BLOCK]) == 2
    assert owner.get_num_blocks_to_take(None, [[1], [2], [3]], GPU) == 3
    assert owner.is_on(BLOCK, GPU) is owner.is_on(BLOCK, CPU) is True


def test_blocks_are_released_last_first() -> None:
    owner, blocks = Freeing(), [BareBlock() for _ in range(3)]
    owner.release_blocks(list(blocks))
    assert owner.freed == blocks[::-1]
