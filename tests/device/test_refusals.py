"""Property: a wrong argument raises a typed error that names it, before a single byte has moved.

How: each call below must raise the error with the words, and all memory must be as it was; layouts that only look wrong
must pass. Without torch, importing the package names the extra.
Not covered: errors that need a GPU (test_cuda.py).
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch

from blockwright.device import copies, copy_blocks, swap_blocks
from blockwright.errors import BlockError, InvalidArgumentError


def pool(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


WRONG_PAIRS: list[tuple[Any, type[Exception], str]] = [
    ([(0, 8)], BlockError, "destination 8 is no block of"),
    ([(0, 1), (2, -1)], BlockError, "destination -1 is no block of"),
    ([(8, 0)], BlockError, "source 8 is no block of"),
    ([(-1, 0)], BlockError, "source -1 is no block of"),
    ([(0, 3), (1, 4), (2, 3)], BlockError, "block 3 is the destination of 2 pairs"),
    ([(0, 1.0)], InvalidArgumentError, r"pairs\[0\]\[1\]: must be an integer, not 1.0"),
    ([(0, 1, 2)], InvalidArgumentError, r"pairs\[0\]: must be a tuple of"),
    (torch.tensor([[0.0, 1.0]]), InvalidArgumentError, "pairs is torch.float32"),
    (torch.tensor([[0, 1, 2]]), InvalidArgumentError, "shape"),
    (torch.tensor([[False, True]]), InvalidArgumentError, "pairs is torch.bool"),
]


@pytest.mark.parametrize(("pairs", "error", "words"), WRONG_PAIRS)
def test_wrong_pairs(pairs: Any, error: type[Exception], words: str) -> None:
    one, other = pool(8, 3), pool(8, 3)
    with pytest.raises(error, match=words):
        copy_blocks(one, pairs)
    with pytest.raises(error, match=words):
        swap_blocks(one, other, pairs)
    assert torch.equal(one, pool(8, 3))
    assert torch.equal(other, pool(8, 3))


def test_a_block_in_both_roles_is_refused_within_a_pool_only() -> None:
    for pairs in ([(0, 1), (1, 2)], [(0, 1), (1, 0)], [(5, 5)]):
        cache, other = pool(8, 3), torch.zeros(8, 3, dtype=torch.int32)
        with pytest.raises(BlockError, match="both a source and a destination"):
            copy_blocks(cache, pairs)
        assert torch.equal(cache, pool(8, 3))
        swap_blocks(cache, other, pairs)
        assert all(torch.equal(other[destination], cache[source]) for source, destination in pairs)


def test_ids_must_be_blocks_of_every_layer() -> None:
    caches = [pool(8, 3), pool(6, 3), pool(8, 3)]
    with pytest.raises(BlockError, match=r"destination 6 is no block of caches\[1\], which has 6"):
        copy_blocks(caches, [(0, 6)])
    assert torch.equal(caches[0], pool(8, 3))
    with pytest.raises(BlockError, match="source 5 is no block of src, which has 5"):
        swap_blocks(pool(5, 3), pool(8, 3), [(5, 5)])


@pytest.mark.parametrize(
    "empty", [[], (), torch.empty((0, 2), dtype=torch.int64), torch.empty((0,), dtype=torch.int32)]
)
def test_no_pairs_move_nothing(empty: Any) -> None:
    cache = pool(8, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "blocks_of", None)  # no tensor is looked at, nor by the door
        assert copy_blocks(type("Unread", (list,), {"__iter__": None})(), empty).done
    assert swap_blocks(cache, pool(2, 3), empty).done
    assert torch.equal(cache, pool(8, 3))


def test_no_pairs_do_not_hide_other_faults() -> None:
    with pytest.raises(InvalidArgumentError, match="overlap"):
        swap_blocks(cache := pool(8, 3), cache, [])


WRONG_CACHES: list[tuple[Any, Any, str]] = [
    ([], 0, "holds no tensor"),
    (None, 0, "caches: must be a Tensor or a sequence"),
    ([pool(4, 2), "keys"], 0, r"caches\[1\]: must be a Tensor or a sequence"),
    ({"layer": pool(4, 2)}, 0, "caches: must be a Tensor or a sequence"),
    ([[[pool(4, 2)]]], 0, r"caches\[0\]\[0\]: must be a Tensor, not"),
    (torch.tensor(3), 0, "block_dim=0 not in"),
    (pool(4, 2), 2, "block_dim=2 not in"),
    (pool(4, 2), [0, 0], "block_dim has 2 entries for 1 tensors"),
    ([pool(4, 2), pool(4, 2)], [0], "block_dim has 1 entries for 2 tensors"),
    (pool(4, 2).to_sparse(), 0, "no plain strided tensor"),
    (torch.zeros(4, 2, dtype=torch.complex64).conj(), 0, "no plain strided tensor"),
    ([pool(4, 2), torch.empty(4, 2, device="meta")], 0, "one device's layers"),
    (torch.zeros(4, 1).expand(4, 2), 0, "share memory"),
    (torch.zeros(20).as_strided((4, 4), (2, 1)), 0, "share memory"),
]


@pytest.mark.parametrize(("caches", "block_dim", "words"), WRONG_CACHES)
def test_wrong_caches(caches: Any, block_dim: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        copy_blocks(caches, [(0, 1)], block_dim=block_dim)


WRONG_PARTS = [
    ([1], 1, "num_tokens has 1 entries: pass one count of tokens for each of 2 pairs"),
    ([1, 3], 1, "num_tokens: 3 is no count of a block's 2 tokens"),
    ([-1, 1], 1, "num_tokens: -1 is no count"),
    ([1, 1], 0, "token_dim=0 of caches, which has 2 dimensions and counts blocks by block_dim=0"),
    ([1, 1], 2, "token_dim=2 of caches"),
    ([1, 1], [1, 1], "token_dim has 2 entries for 1 tensors"),
]


@pytest.mark.parametrize(("num_tokens", "token_dim", "words"), WRONG_PARTS)
def test_wrong_parts(num_tokens: Any, token_dim: Any, words: str) -> None:
    cache = torch.arange(8).reshape(4, 2)
    with pytest.raises(InvalidArgumentError, match=words):
        copy_blocks(cache, [(0, 1), (0, 2)], num_tokens=num_tokens, token_dim=token_dim)
    assert torch.equal(cache, torch.arange(8).reshape(4, 2))


def test_a_destination_that_shares_its_own_memory() -> None:
    dst = torch.zeros(1, 2).expand(4, 2)
    with pytest.raises(InvalidArgumentError, match="dst has elements that share memory"):
        swap_blocks(torch.ones(4, 2), dst, [(0, 1)])
    assert not dst.any()


PLAIN = pool(4, 2)
UNLIKE: list[tuple[Any, Any, str]] = [
    ([PLAIN], [pool(4, 2), pool(4, 2)], "src has 1 tensors and dst 2"),
    (PLAIN, pool(4, 3), r"a block of src is \(2,\) and one of dst \(3,\)"),
    (PLAIN, pool(4, 2, 1), "a block of src"),
    (PLAIN, pool(4, 2, dtype=torch.int64), "never converted"),
    (torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.float16), "never converted"),
]


@pytest.mark.parametrize(("src", "dst", "words"), UNLIKE)
def test_pools_that_differ(src: Any, dst: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        swap_blocks(src, dst, [(0, 1)])


def overlapping() -> Sequence[tuple[Any, Any, int]]:
    whole, stacked, raw = pool(8, 2), pool(2, 8, 3), bytearray(64)
    flat = pool(200)
    first = flat.as_strided((2, 4, 6), (48, 6, 1))
    twice = [torch.frombuffer(raw, dtype=torch.int64).reshape(4, 2) for _ in range(2)]
    return (
        (whole, whole, 0),
        (whole[:5], whole[4:], 0),
        (whole[4:], whole[:5], 0),
        (stacked[:, :5], stacked[:, 4:], 1),
        ([pool(4, 2), whole[:4]], [whole[3:], pool(4, 2)], 0),
        (whole[::2], whole.flatten()[1:15].reshape(7, 2), 0),
        (whole, whole.flatten().as_strided((8, 2), (1, 8)), 0),
        (twice[0], twice[1], 0),
        (first, flat.as_strided((2, 4, 6), (48, 6, 1), 25), 1),  # no whole number of blocks further on
        (first, flat.as_strided((2, 5, 6), (48, 6, 1), 24), 1),  # the last block is the first of the other half
        (first, flat.as_strided((2, 4, 6), (24, 6, 1), 24), 1),  # the halves lie otherwise
    )


@pytest.mark.parametrize(("src", "dst", "dim"), overlapping())
def test_pools_that_share_memory(src: Any, dst: Any, dim: int) -> None:
    before = [tensor.clone() for tensor in (src if isinstance(src, list) else [src])]
    with pytest.raises(InvalidArgumentError, match=r"src.* and dst.* overlap in memory"):
        swap_blocks(src, dst, [(0, 1)], block_dim=dim)
    assert all(map(torch.equal, before, src if isinstance(src, list) else [src]))


def test_parts_of_one_tensor_that_are_apart() -> None:
    whole, stacked, layers = pool(8, 2), pool(2, 8, 3), pool(8, 4, 3)
    cases: list[tuple[Any, Any, int]] = [
        (whole[:4], whole[4:], 0),
        (whole[5:], whole[:5], 0),
        (stacked[:, :4], stacked[:, 4:], 1),
        (stacked[:, 5:], stacked[:, :5], 1),
        (list(stacked[:, :4]), list(stacked[:, 4:]), 0),
        (list(layers[:4].unbind(1)), list(layers[4:].unbind(1)), 0),
    ]
    for src, dst, dim in cases:
        swap_blocks(src, dst, [(2, 1)], block_dim=dim)
        for one, other in zip(src, dst, strict=True) if isinstance(src, list) else [(src, dst)]:
            assert torch.equal(one.select(dim, 2), other.select(dim, 1))


def test_an_expanded_source_can_be_read() -> None:
    dst = torch.zeros(3, 2)
    swap_blocks(torch.ones(1, 2).expand(4, 2), dst, [(3, 0)])
    assert dst.tolist() == [[1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("before", "error", "words"),
    [
        ("sys.modules['torch'] = None", "ImportError", "pip install torch"),
        ("sys.meta_path.insert(0, Broken())", "ImportError", "a library is missing"),
    ],
)
def test_absence_of_torch_names_it_and_other_faults_are_their_own(before: str, error: str, words: str) -> None:
    code = f"""
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("a library is missing", name="libtorch")
{before}
import blockwright
try:
    import blockwright.device
except {error} as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert words in done.stdout
    assert ("pip install torch" in done.stdout) == ("None" in before)


def test_the_package_itself_loads_no_torch() -> None:
    code = "import sys, blockwright; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
