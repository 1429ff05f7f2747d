"""Property: every name of the three systems is there, engines may bring blocks and allocators of their own, and the
examples in the documentation of the modules are true.

How: members are looked up by name; a plain Python allocator, ten lines over a list, serves a `BlockTable`; docstrings
are read from the sources and their sessions run, in either build.
Not covered: that an engine's own allocator is right.
"""

import ast
import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import blockwright
import blockwright.paging
from blockwright.errors import BlockwrightError, InvalidArgumentError, NoFreeBlocksError, UnsupportedError
from blockwright.paging import (
    Block,
    BlockAllocator,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    DeviceAwareBlockAllocator,
    NaiveBlock,
    NaiveBlockAllocator,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
    SelfAttnBlockSpaceManager,
)

BLOCK = """append_token_ids block_id token_ids num_tokens_total num_empty_slots is_full prev_block extra_hash computed
    last_accessed content_hash Factory""".split()
ALLOCATOR = """allocate_mutable_block allocate_immutable_block allocate_immutable_blocks free fork get_num_total_blocks
    get_num_free_blocks get_physical_block_id swap_out swap_in all_block_ids clear_copy_on_writes
    mark_blocks_as_accessed mark_blocks_as_computed get_common_computed_block_ids cow_block_if_not_appendable
    promote_to_immutable_block get_num_full_blocks_touched get_prefix_cache_hit_rate reset_prefix_cache
    find_cached_blocks_prefix NoFreeBlocksError""".split()
TABLE = """get_num_required_blocks allocate update append_token_ids ensure_num_empty_slots fork free physical_block_ids
    blocks num_full_slots get_unseen_token_ids get_num_blocks_touched_by_append_slots""".split()
MANAGER = """can_allocate allocate can_append_slots append_slots fork free free_cross can_swap_in can_swap_out swap_in
    swap_out get_block_table get_cross_block_table access_all_blocks_in_seq mark_blocks_as_computed
    get_common_computed_block_ids get_num_cached_tokens remove_seq_from_computed_blocks_tracker get_num_free_gpu_blocks
    get_num_free_cpu_blocks get_prefix_cache_hit_rate reset_prefix_cache check copy""".split()

MEMBERS: list[tuple[type, list[str]]] = [
    (Block, BLOCK),
    (NaiveBlock, BLOCK),
    (PrefixCachingBlock, BLOCK),
    (BlockAllocator, ALLOCATOR),
    (NaiveBlockAllocator, ALLOCATOR),
    (PrefixCachingBlockAllocator, ALLOCATOR),
    (DeviceAwareBlockAllocator, [*ALLOCATOR, "swap", "allocate_or_get_null_block"]),
    (CpuGpuBlockAllocator, [*ALLOCATOR, "swap", "allocate_or_get_null_block", "create", "check", "copy"]),
    (BlockTable, TABLE),
    (SelfAttnBlockSpaceManager, MANAGER),
]


@pytest.mark.parametrize(("owner", "names"), MEMBERS, ids=lambda given: getattr(given, "__name__", ""))
def test_members_are_there(owner: type, names: list[str]) -> None:
    assert [name for name in names if not hasattr(owner, name)] == []


def test_no_free_blocks_error_is_one_class() -> None:
    assert BlockAllocator.NoFreeBlocksError is NoFreeBlocksError
    assert DeviceAwareBlockAllocator.NoFreeBlocksError is NoFreeBlocksError
    assert issubclass(NoFreeBlocksError, ValueError)
    assert issubclass(NoFreeBlocksError, BlockwrightError)


@pytest.mark.skipif(blockwright.build_info().kind != "pure", reason="compiled constructors tell no signature")
def test_signatures_are_those_of_the_systems() -> None:
    def names(function: object) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]

    assert names(NaiveBlock.__init__)[:7] == (
        "prev_block token_ids block_size allocator block_id computed extra_hash".split()
    )
    assert names(BlockTable.__init__) == ["block_size", "block_allocator", "_blocks", "max_block_sliding_window"]
    assert names(SelfAttnBlockSpaceManager.__init__)[:6] == (
        "block_size num_gpu_blocks num_cpu_blocks watermark sliding_window enable_caching".split()
    )
    assert names(CpuGpuBlockAllocator.create) == ["allocator_type", "num_gpu_blocks", "num_cpu_blocks", "block_size"]


def test_classes_are_told_apart() -> None:
    """In the compiled build too, where classes derived from `abc.ABC` would share one cache of answers."""
    allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
    block = allocator.allocate_mutable_block(None)
    for _ in range(2):
        assert [isinstance(block, kind) for kind in (PrefixCachingBlock, NaiveBlock, Block)] == [True, False, True]
        kinds = (NaiveBlockAllocator, PrefixCachingBlockAllocator, BlockAllocator, DeviceAwareBlockAllocator)
        assert [isinstance(allocator, kind) for kind in kinds] == [False, True, True, False]


class ListBlock(Block):
    """An engine's own block."""

    def __init__(self, prev_block: Block | None, size: int, place: int | None) -> None:
        self._prev = prev_block
        self._tokens: list[int] = []
        self._size = size
        self._place = place

    def append_token_ids(self, token_ids: list[int]) -> None:
        self._tokens += token_ids

    @property
    def block_id(self) -> int | None:
        return self._place

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        self._place = value

    @property
    def token_ids(self) -> list[int]:
        return self._tokens

    @property
    def num_empty_slots(self) -> int:
        return self._size - len(self._tokens)

    @property
    def is_full(self) -> bool:
        return len(self._tokens) == self._size

    @property
    def prev_block(self) -> Block | None:
        return self._prev


class ListAllocator(DeviceAwareBlockAllocator):
    """An engine's own allocator: a list of free ids, without sharing."""

    def __init__(self, size: int, count: int) -> None:
        self._size = size
        self._ids = frozenset(range(count))
        self.free_ids = list(range(count))

    def allocate_mutable_block(self, prev_block: Block | None, device: Device, extra_hash: int | None = None) -> Block:
        return ListBlock(prev_block, self._size, self.free_ids.pop(0))

    def allocate_immutable_block(
        self, prev_block: Block | None, token_ids: list[int], device: Device, extra_hash: int | None = None
    ) -> Block:
        block = self.allocate_mutable_block(prev_block, device)
        block.append_token_ids(token_ids)
        return block

    def allocate_immutable_blocks(
        self, prev_block: Block | None, block_token_ids: list[list[int]], device: Device, extra_hash: int | None = None
    ) -> list[Block]:
        return [self.allocate_immutable_block(None, token_ids, device) for token_ids in block_token_ids]

    def free(self, block: Block) -> None:
        assert block.block_id is not None
        self.free_ids.append(block.block_id)
        block.block_id = None

    def get_num_total_blocks(self, device: Device) -> int:
        return len(self._ids)

    def get_num_free_blocks(self, device: Device) -> int:
        return len(self.free_ids)

    @property
    def all_block_ids(self) -> frozenset[int]:
        return self._ids


def test_a_table_works_through_an_engines_own_allocator() -> None:
    allocator = ListAllocator(4, 4)
    table = BlockTable(4, allocator)
    table.allocate([1, 2, 3, 4, 5])
    table.append_token_ids([6, 7, 8, 9], num_lookahead_slots=1)
    assert table.physical_block_ids == [0, 1, 2]
    assert [block.token_ids for block in table.blocks] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids([0] * 8)
    assert (table.num_full_slots, allocator.free_ids) == (9, [3])
    with pytest.raises(InvalidArgumentError):
        table.copy_onto(allocator)
    table.free()
    assert sorted(allocator.free_ids) == [0, 1, 2, 3]
    with pytest.raises(UnsupportedError):
        allocator.promote_to_immutable_block(ListBlock(None, 4, None))


def test_a_block_works_through_an_engines_own_allocator() -> None:
    """A block of ours, made as `Block.Factory` says, asks the allocator it was given."""
    allocator = PrefixCachingBlockAllocator(num_blocks=2, block_size=2)
    block = PrefixCachingBlock(prev_block=None, token_ids=[1], block_size=2, allocator=allocator)
    assert (block.block_id, block.content_hash, block.num_empty_slots) == (None, None, 1)
    block.append_token_ids([2])
    assert block.content_hash == PrefixCachingBlock.hash_block_tokens(None, [1, 2])
    assert allocator.get_num_free_blocks() == 2
    with pytest.raises(InvalidArgumentError):
        NaiveBlock(None, [1, 2, 3], 2, allocator)


def test_what_sets_a_property_has_a_door_too() -> None:
    """mypyc tests no union that a setter takes: the compiled build answered with a bare TypeError."""
    block: Any = PrefixCachingBlockAllocator(num_blocks=2, block_size=2).allocate_mutable_block(None)
    before = block.block_id
    for wrong in ("x", 1.5, True):
        with pytest.raises(InvalidArgumentError, match="block_id: must be an integer or None"):
            block.block_id = wrong
    with pytest.raises(AttributeError):
        del block.block_id
    assert block.block_id == before


def sources() -> list[Path]:
    return sorted(Path(blockwright.paging.__file__ or "").parent.glob("*.py"))


def test_examples_in_the_documentation_are_true() -> None:
    examples = 0
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            session = doctest.DocTestParser().get_doctest(
                ast.get_docstring(node) or "", dict(vars(blockwright.paging)), path.name, str(path), 0
            )
            examples += len(session.examples)
            assert doctest.DocTestRunner().run(session).failed == 0
    assert examples > 10
