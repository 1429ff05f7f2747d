"""The memory of a plan: one tensor of bytes for each layer of a group, and every layer's view of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from blockwright.arguments import integer
from blockwright.device.copies import copy_blocks
from blockwright.device.layout import WORDS
from blockwright.device.paged import KVPages, cut, kv_view, pages_in, scales_of
from blockwright.device.pages import state_offsets
from blockwright.device.pairs import Pairs
from blockwright.device.plan import KVCachePlan
from blockwright.device.reserved import ReservedMemory
from blockwright.device.transfer import Transfer
from blockwright.errors import BlockError, InvalidArgumentError, UnsupportedError
from blockwright.kinds import AttentionSpec, MambaSpec


def torch_dtype(dtype: object) -> torch.dtype:
    """Return an element type of `blockwright.kinds` as torch knows it; ``"fp8"`` is ``float8_e4m3fn``.

    >>> torch_dtype("half"), torch_dtype(torch.float8_e5m2)
    (torch.float16, torch.float8_e5m2)

    Raises:
        InvalidArgumentError: torch has no such type.
    """
    name = str(dtype).removeprefix("torch.")
    found = getattr(torch, "float8_e4m3fn" if name == "fp8" else name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgumentError(f"dtype: this torch ({torch.__version__}) has no {dtype!r}")
    return found


class KVCacheStorage:
    """The KV cache of one device.

    Attributes:
        plan: the plan that it was made by.
        tensors: the memory, uint8 of shape (num_blocks, page size): page b of each is block b. For `copy_blocks`,
            `swap_blocks` and pools on the host.

    Example:
        >>> from blockwright import FullAttentionSpec
        >>> from blockwright.device import plan_kv_cache
        >>> spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, dtype="bfloat16")
        >>> storage = KVCacheStorage(plan_kv_cache({"layers.0": spec, "layers.1": spec}, 1 << 12, max_model_len=16))
        >>> storage.kv("layers.1").shape             # blocks, keys and values, tokens, heads, elements
        torch.Size([8, 2, 4, 2, 8])
        >>> [tuple(tensor.shape) for tensor in storage.tensors]
        [(8, 256), (8, 256)]
    """

    def __init__(
        self, plan: KVCachePlan, device: str | torch.device = "cpu", *, max_num_blocks: int | None = None
    ) -> None:
        """Take the memory of a plan, all zeros. O(bytes).

        Args:
            plan: the layers, and the number of blocks to begin with.
            device: where the memory is.
            max_num_blocks: the most blocks that `resize` may ask for. Addresses for these are reserved now, and stay;
                pages are taken as they are written. Only on a CPU.

        Raises:
            InvalidArgumentError: `plan` is no plan, `device` names none, torch lacks an element type that a layer
                declares, or there are fewer blocks at most than now.
            UnsupportedError: `max_num_blocks` on another device.
            torch.OutOfMemoryError: the device has less memory than the plan was made for.
        """
        try:
            device = torch.device(device)
        except (TypeError, RuntimeError) as error:
            raise InvalidArgumentError(f"device: {device!r} is no device of torch's: {error}") from None
        self.plan = plan
        for spec in plan.layers.values():
            for dtype in spec.element_types:
                torch_dtype(dtype)
        most = None if max_num_blocks is None else integer("max_num_blocks", max_num_blocks, plan.num_blocks)
        if most is not None and device.type != "cpu":
            raise UnsupportedError(f"max_num_blocks: pages of {device.type!r} are its allocator's; leave it out")
        self._reserved = [] if most is None else [ReservedMemory(most * page) for page in plan.page_sizes]
        self._most = most
        self.tensors = self._made(plan.num_blocks, plan.page_sizes, device)
        self._attention: dict[str, tuple[torch.Tensor, KVPages, torch.Tensor | None]] = {}
        self._views = self._all_views()

    def resize(self, num_blocks: int) -> None:
        """Have memory for another number of blocks; those that there are before and after keep their bytes.

        Call it before `KVCacheManager.resize` of a pool that grows, and after it once `KVCacheManager.resizing` says
        that nothing is held beyond the end of one that shrinks. Scales beside the pages stay the same.

        Made with `max_num_blocks` every address stays, so that views which were taken before, and what a graph has
        captured, go on; the pages of blocks that go are given back. O(bytes that go).

        Made without it, the tensors and all views are new ones: take `kv`, `pages`, `states` and what a graph has
        captured anew, once the device has run what uses the old ones. O(bytes that are kept); while it runs, the old
        and the new memory are both taken.

        Args:
            num_blocks: at least 2, the null block included, and at most `max_num_blocks`.

        Raises:
            InvalidArgumentError: another number.
            torch.OutOfMemoryError: there is no room for both; nothing has changed.
        """
        num_blocks = integer("num_blocks", num_blocks, 2, *([] if self._most is None else [self._most]))
        plan = replace(self.plan, config=replace(self.plan.config, num_blocks=num_blocks))
        kept = min(num_blocks, self.plan.num_blocks)
        tensors = self._made(num_blocks, plan.page_sizes, self.tensors[0].device if self.tensors else None)
        if self._most is None:
            for new, old in zip(tensors, self.tensors, strict=True):
                new[:kept] = old[:kept]
        for memory, new in zip(self._reserved, tensors, strict=False):  # all of them, or none
            memory.give_back(new.numel())
        self.plan, self.tensors = plan, tensors
        self._views = self._all_views()

    def _made(self, num_blocks: int, pages: Sequence[int], device: torch.device | None) -> list[torch.Tensor]:
        """Return tensors of `num_blocks` blocks: new ones, or the first part of the reserved memory."""
        if self._most is None:
            return [torch.zeros((num_blocks, page), dtype=torch.uint8, device=device) for page in pages]
        return [
            memory.tensor.view(self._most, page)[:num_blocks]
            for memory, page in zip(self._reserved, pages, strict=True)
        ]

    def _all_views(self) -> dict[str, tuple[torch.Tensor, ...]]:
        views = {name: self._views_of(name) for name in self.plan.layers}
        return views | {name: views[holder] for name, holder in self.plan.config.shared_layers.items()}

    def _views_of(self, layer_name: str) -> tuple[torch.Tensor, ...]:
        first, stop = self.plan.page_of(layer_name)
        tensor = self.tensors[self.plan.place_of(layer_name)[1]][:, first:stop]
        spec = self.plan.spec_of(layer_name)
        if isinstance(spec, AttentionSpec):
            known, dtype = self._attention.get(layer_name), torch_dtype(spec.dtype)
            # Scales beside the pages stay where they are when the memory is resized.
            beside = known[2] if known is not None and not known[1].is_scaled_by_token else None
            scales = scales_of(tensor, spec) if beside is None else beside
            kv, pages = kv_view(tensor, spec, dtype), pages_in(tensor, spec, dtype, scales)
            self._attention[layer_name] = (kv, pages, scales)
            if scales is None or not pages.is_scaled_by_token:
                return (kv,)
            return pages.tensors if pages.is_latent else (kv, scales)
        if isinstance(spec, MambaSpec):
            parts = zip(state_offsets(spec), spec.shapes, spec.dtypes, strict=True)
            return tuple(cut(tensor, offset, shape, torch_dtype(dtype)) for offset, shape, dtype in parts)
        raise InvalidArgumentError(f"plan: {layer_name!r} declares {type(spec).__name__}, which has no view")

    def kv(self, layer_name: str) -> torch.Tensor:
        """Return the keys and values of an attention layer: a view of its tensor, indexed by block id. O(1).

        A layer that shares another's cache gets the same memory. ``kv_layout="HND"`` orders the memory, not the shape:
        ``kv(name).transpose(-3, -2)`` is without gaps then.

        Returns:
            Shape (num_blocks, 2, block_size, num_kv_heads, head_size), keys at 0. With `head_size_v` (num_blocks,
            block_size, num_kv_heads, head_size + head_size_v); of latent attention (num_blocks, block_size, head_size),
            or with scales by token the bytes of a token, as FlashMLA reads them.

        Raises:
            InvalidArgumentError: no such layer, or a recurrent one.
        """
        return self._of_attention(layer_name)[0]

    def pages(self, layer_name: str) -> KVPages:
        """Return the keys and values of an attention layer in any form, for `write_kv` and `paged_attention`. O(1).

        Raises:
            InvalidArgumentError: no such layer, or a recurrent one.
        """
        return self._of_attention(layer_name)[1]

    def scales(self, layer_name: str) -> torch.Tensor:
        """Return the float32 scales of a layer. O(1).

        Returns:
            Beside the pages, ones until the engine sets them, and the same for all blocks: (2,) by tensor, (1,) of a
            latent, (2, num_kv_heads) by head; those of keys at 0. Inside the pages, written by `write_kv` and moved
            with the blocks: (num_blocks, 2, block_size, num_kv_heads) by token; (num_blocks, block_size, tiles of 128)
            of a latent.

        Raises:
            InvalidArgumentError: no such layer, or one without scales.
        """
        scales = self._of_attention(layer_name)[2]
        if scales is None:
            raise InvalidArgumentError(f"layer_name: {layer_name!r} declares no scales")
        return scales

    def _of_attention(self, layer_name: str) -> tuple[torch.Tensor, KVPages, torch.Tensor | None]:
        self.views(layer_name)
        holder = self.plan.config.shared_layers.get(layer_name, layer_name)
        if holder not in self._attention:
            raise InvalidArgumentError(f"layer_name: {layer_name!r} is a recurrent layer; use states({layer_name!r})")
        return self._attention[holder]

    def copy_blocks(self, group: int, pairs: Pairs, num_tokens: Sequence[int] | None = None) -> Transfer:
        """Copy blocks of a group, or only the first tokens of each: `copy_blocks` for all its layers.

        Args:
            group: that holds the blocks.
            pairs, num_tokens: as for `blockwright.device.copy_blocks`; whole blocks where layers are recurrent.

        Raises:
            InvalidArgumentError, BlockError: as `blockwright.device.copy_blocks`, or no such group.
        """
        if num_tokens is None:
            return copy_blocks(self.tensors_of(group), pairs)
        self.tensors_of(group)
        names = self.plan.groups[group].layer_names
        parts = [self._attention[name][1].tensors for name in names if name in self._attention]
        views = [view for part in parts for view in part]
        if not views:
            raise InvalidArgumentError(f"num_tokens: the states of group {group} are copied whole; leave it out")
        return copy_blocks(views, pairs, num_tokens=num_tokens, token_dim=1)

    def states(self, layer_name: str) -> tuple[torch.Tensor, ...]:
        """Return the states of a recurrent layer: views of its tensor, indexed by block id. O(1).

        Returns:
            One of shape ``(num_blocks, *shape)`` for each of the `shapes` that the layer declares.

        Raises:
            InvalidArgumentError: no such layer, or one of attention.
        """
        views = self.views(layer_name)
        if self.plan.config.shared_layers.get(layer_name, layer_name) in self._attention:
            raise InvalidArgumentError(f"layer_name: {layer_name!r} is a layer of attention; use kv({layer_name!r})")
        return views

    def views(self, layer_name: str) -> tuple[torch.Tensor, ...]:
        """Return a layer's own bytes in their element types: for code that takes layers of any kind. O(1).

        These are what `kv` returns, and `scales` inside the pages; or what `states` returns.

        Raises:
            InvalidArgumentError: no such layer.
        """
        if layer_name not in self._views:
            raise InvalidArgumentError(f"layer_name: {layer_name!r} is no layer of the plan, nor shares one's cache")
        return self._views[layer_name]

    def tensors_of(self, group: int) -> list[torch.Tensor]:
        """Return the tensors in which a block of this group has a page; copy these to move the block. O(1).

        Raises:
            InvalidArgumentError: no such group.
        """
        if not 0 <= group < len(self.plan.groups):
            raise InvalidArgumentError(f"group: {group!r} is not within the plan's {len(self.plan.groups)}")
        return self.tensors[: len(self.plan.groups[group].layer_names)]

    def fill(
        self, block_ids: Sequence[int] | torch.Tensor | None = None, value: float = 0.0, *, group: int | None = None
    ) -> None:
        """Set whole blocks to one value: 0.0 to erase them, NaN to poison them. O(bytes).

        Zeros and NaN are written to every byte of the blocks, padding included, so that whichever group gets a block
        next finds them; of a value that is not the same in all element types, give the group.

        Args:
            block_ids: the blocks, in any order; None for all.
            value: what every element is to read as.
            group: the group that holds the blocks: its tensors only, and values in its layers' own element types.

        Raises:
            BlockError: an id is no block of the plan.
            InvalidArgumentError: no such group; or the value is no number, has no common form, or none at all, in the
                element types.
        """
        ids = self._checked(block_ids)
        tensors = self.tensors if group is None else self.tensors_of(group)
        groups = self.plan.groups if group is None else [self.plan.groups[group]]
        names = [name for part in groups for name in part.layer_names]
        dtypes = {torch_dtype(kind) for name in names for kind in self.plan.layers[name].element_types}
        byte = _common_byte(value, dtypes)
        if byte is not None:
            _write(tensors, ids, [byte] * len(tensors))
        elif len(dtypes) == 1:
            (dtype,) = dtypes
            word = _word(value, dtype)
            _write([tensor.view(WORDS[dtype.itemsize]) for tensor in tensors], ids, [word] * len(tensors))
        elif group is None:
            raise InvalidArgumentError(f"value: {value!r} has other bytes in each of {_named(dtypes)}; pass group")
        else:
            views = [view for name in names for view in self._views[name]]
            words = [_word(value, view.dtype) for view in views]
            _write([view.view(WORDS[view.element_size()]) for view in views], ids, words)

    def _checked(self, block_ids: Sequence[int] | torch.Tensor | None) -> torch.Tensor:
        count = self.plan.num_blocks
        if block_ids is None:
            return torch.arange(count)
        try:
            ids = torch.as_tensor(block_ids if isinstance(block_ids, torch.Tensor) else list(block_ids))
        except (ValueError, OverflowError, RuntimeError) as error:
            raise InvalidArgumentError(f"block_ids: must be a sequence of block ids: {error}") from None
        if ids.numel() == 0:
            return torch.empty(0, dtype=torch.int64)
        if ids.dim() != 1 or ids.dtype not in (torch.int64, torch.int32):
            raise InvalidArgumentError(f"block_ids: must be one row of integers, not {ids.dtype} {tuple(ids.shape)}")
        ids = ids.to(torch.int64)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            raise BlockError(f"block_ids: {low if low < 0 else high} is no block; there are {count}")
        return ids


def _write(tensors: Sequence[torch.Tensor], ids: torch.Tensor, words: Sequence[int]) -> None:
    ids = ids.to(tensors[0].device)
    for tensor, word in zip(tensors, words, strict=True):
        tensor.index_fill_(0, ids, word)


def _named(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def _word(value: float, dtype: torch.dtype) -> int:
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        if value != value or not limits.min <= value <= limits.max or value != int(value):
            raise InvalidArgumentError(f"value: {value!r} is no {dtype}; pass a whole number within its range")
        value = int(value)
    else:
        value = float(value)  # torch takes no int of more than 64 bits
    return int(torch.tensor([value], dtype=dtype).view(WORDS[dtype.itemsize])[0])


def _common_byte(value: float, dtypes: set[torch.dtype]) -> int | None:
    """Return the byte that, everywhere, makes every element read as `value`; None if there is none.

    Ones everywhere are a NaN in all types except the float8 without a negative zero: its only NaN is 0x80.
    """
    if value == 0.0 and math.copysign(1.0, value) > 0:
        return 0x00
    if value == value or not all(dtype.is_floating_point for dtype in dtypes):
        return None
    single = [str(dtype).endswith("fnuz") for dtype in dtypes]
    if any(single):
        return 0x80 if all(single) else None
    return 0xFF
