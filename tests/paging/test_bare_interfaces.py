"""Property: what an engine's own block or allocator does not bring is an error at the call, not a silent None; what may
be left out has an answer that is safe for any allocator.

How: every member of the three interfaces is called on a class that brings nothing.
Not covered: that the answers suffice for a table (test_interfaces.py).
"""

import ast
from pathlib import Path
from typing import Any

import pytest

from blockwright import paging
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
GIVEN: dict[str, Any] = {
    "prev_block": None, "token_ids": [1], "block_token_ids": [[1]], "extra_hash": None, "block": BLOCK,
    "last_block": BLOCK, "blocks": [BLOCK], "device": GPU, "src_device": GPU, "dst_device": CPU, "absolute_id": 1,
    "block_ids": [1], "now": 1.0, "computed_seq_block_ids": [[1]], "block_hashes": [b""],
}  # fmt: skip
NOT_OFFERED = "cow_block_if_not_appendable promote_to_immutable_block swap_out swap_in copy_block".split()
MAY_BE_LEFT_OUT = """tear end_call require_whole require_block_size num_to_adopt num_moves get_num_blocks_to_take is_on
    num_to_copy own_blocks num_computed_blocks note_computed num_freed __enter__ __exit__""".split()


SOURCE = Path(paging.__file__ or "").with_name("interfaces.py").read_text(encoding="utf-8")
CLASSES = {each.name: each.body for each in ast.parse(SOURCE).body if isinstance(each, ast.ClassDef)}


def methods_of(owner: type) -> dict[str, list[str]]:
    """The methods of an interface, with their parameters; compiled ones with a device as a default show none."""
    nodes = [node for base in owner.__mro__ for node in CLASSES.get(base.__name__, [])]
    methods = [node for node in nodes if isinstance(node, ast.FunctionDef) and not node.decorator_list]
    return {node.name: [each.arg for each in node.args.args[1:]] for node in methods}


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


@pytest.mark.parametrize("owner", [BareAllocator(), BareDevices()])
def test_an_allocator_must_bring_every_other_method(owner: Any) -> None:
    methods = methods_of(type(owner))
    for name in methods.keys() - set(MAY_BE_LEFT_OUT):
        offers = isinstance(owner, BareAllocator) or name not in NOT_OFFERED
        with pytest.raises(NotImplementedError, match=None if offers else f"{name}: not offered"):
            getattr(owner, name)(*[GIVEN[each] for each in methods[name]])
    with pytest.raises(NotImplementedError):
        _ = owner.all_block_ids


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
