"""Which layers share a block table, and which share a tensor: the layouts that a model's layers allow.

A block is one page in each of the tensors, and belongs to one group at a time. The groups have (almost) equally many
layers, and the j-th layers of all groups share tensor j. Here 2 full layers (f) and 4 sliding ones (s):

    | tensor | group 0 | group 1 | group 2 |
    |---|---|---|---|
    | 0 | f0 | s0 | s1 |
    | 1 | f1 | s2 | s3 |

So block 7 is page 7 of tensors 0 and 1: keys and values of f0 and f1, or of s0 and s2, or of s1 and s3. Layers on one
tensor should have equal pages. Those that have not are given more tokens per block where their kind allows it, and what
remains is padding.

A packed layout has one tensor, and one group for each kind, whose layers lie one behind the other in a page:

    | page | from its first byte on |
    |---|---|
    | of group 0 | f0 and f1, with 32 tokens each |
    | of group 1 | s0, s1, s2 and s3, with 16 tokens each |

Only arithmetic; no torch, no memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate

from blockwright.kinds import KVCacheSpec, MambaSpec, dtype_size

# What a layer's own page depends on; all other fields decide what stands in its block table.
_PAGE_FIELDS = {
    "num_kv_heads", "head_size", "dtype", "head_size_v", "kv_lora_rank", "scales", "kv_layout", "shapes", "dtypes",
}  # fmt: skip
# Pages are also tried at so many times the largest one, where multiples of smaller pages may fit without padding.
_MOST_MULTIPLES = 4


def element_sizes(spec: KVCacheSpec) -> list[int]:
    """Return the bytes of one element of each part of a layer: of keys and values, scales by token, or each state."""
    return [dtype_size(dtype) for dtype in spec.element_types]


def table_of(spec: KVCacheSpec) -> tuple[object, ...]:
    return (type(spec), *(getattr(spec, field.name) for field in fields(spec) if field.name not in _PAGE_FIELDS))


def state_offsets(spec: MambaSpec) -> tuple[int, ...]:
    """Return where each state tensor begins within a page, in bytes, in the order of `spec.shapes`.

    The widest elements come first, so that every tensor begins at a multiple of its element size without a gap.
    """
    sizes = element_sizes(spec)
    offsets, at = [0] * len(sizes), 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        offsets[index] = at
        at += math.prod(spec.shapes[index]) * sizes[index]
    return tuple(offsets)


@dataclass(frozen=True)
class Family:
    """Layers that can share one block table: the same kind and block size; the largest pages first.

    Attributes:
        names: the layers; those with equal pages in the model's order.
        specs: what each declares, by name, with the block size of this family.
    """

    names: tuple[str, ...]
    specs: Mapping[str, KVCacheSpec]

    @cached_property
    def spec(self) -> KVCacheSpec:
        """The first layer's spec; all have its kind and block size."""
        return self.specs[self.names[0]]

    @cached_property
    def table(self) -> tuple[object, ...]:
        """All that the blocks of a table depend on: the kind, with its numbers, and the block size."""
        return table_of(self.spec)

    @cached_property
    def pages(self) -> tuple[int, ...]:
        return tuple(self.specs[name].page_size_bytes for name in self.names)

    def grown(self, factor: int) -> Family:
        if factor == 1:
            return self
        specs = {name: replace(spec, block_size=spec.block_size * factor) for name, spec in self.specs.items()}
        return Family(self.names, specs)

    def growth(self, times: int, max_block_size: int) -> int:
        """Return by what factor a block may hold more tokens: the largest that is at most `times`.

        Recurrent layers do not grow, since a state takes the same memory after any number of tokens; chunked layers to
        divisors of their chunk.
        """
        if self.spec.is_recurrent:
            return 1
        factor = max(1, min(times, max_block_size // self.spec.block_size))
        # A block must not straddle two chunks, of which a hit needs only one.
        if (chunk := self.spec.chunk) is not None:
            while chunk % (self.spec.block_size * factor):
                factor -= 1
        return factor


@dataclass(frozen=True)
class Layout:
    """One way to lay out a model's layers.

    Attributes:
        families: layers that can share a table, with their final block sizes.
        groups: names of the layers of each group, in the order of their tensors, and the number of the group's family.
        page_sizes: bytes of one page of each tensor.
        offsets: of a packed layout, by group: where each layer begins in the page, in bytes; else none.
    """

    families: tuple[Family, ...]
    groups: tuple[tuple[tuple[str, ...], int], ...]
    page_sizes: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def block_bytes(self) -> int:
        return sum(self.page_sizes)

    @cached_property
    def alignment(self) -> int:
        """Tokens that the length of every prefix hit is a multiple of."""
        return math.lcm(*(family.spec.block_size for family in self.families))


def families_of(layers: Mapping[str, KVCacheSpec], *, split_pages: bool) -> tuple[Family, ...]:
    """Return the layers by kind and block size, in the model's order; with `split_pages` also by the size of a page."""
    found: dict[tuple[object, ...], dict[str, KVCacheSpec]] = {}
    for name, spec in layers.items():
        # law: LAYOUT-2
        key = (*table_of(spec), spec.page_size_bytes if split_pages else None)
        found.setdefault(key, {})[name] = spec
    return tuple(
        Family(tuple(sorted(specs, key=lambda name: -specs[name].page_size_bytes)), specs) for specs in found.values()
    )


def layouts_of(
    layers: Mapping[str, KVCacheSpec],
    max_block_size: int,
    *,
    page_alignment: int = 1,
    layers_per_group: int | None = None,
    enable_caching: bool = True,
    packed: bool = False,
) -> list[Layout]:
    """Return the layouts worth comparing, each once.

    Three choices are combined: whether layers of one kind with pages of different size share a table; the page that
    smaller ones grow towards; the number of tensors. Complexity: O(page sizes x sqrt(layers) x layers).

    Args:
        layers: what each layer declares, by name.
        max_block_size: tokens: the largest block, and the largest common multiple of block sizes that hits are cut to.
        page_alignment: bytes; every page is a multiple of it.
        layers_per_group: the number of tensors; None to try several.
        enable_caching: whether there are hits.
        packed: also return packed layouts.
    """
    unit = math.lcm(page_alignment, *(size for spec in layers.values() for size in element_sizes(spec)))
    found: dict[tuple[object, ...], Layout] = {}
    for split_pages in (False, True):
        declared = families_of(layers, split_pages=split_pages)
        for families in _grown(declared, [family.pages[0] for family in declared], max_block_size, enable_caching):
            for width in _widths(families, layers_per_group):
                layout = _laid_out(families, width, unit)
                sizes = tuple(family.spec.block_size for family in families)
                found.setdefault((sizes, layout.groups, layout.page_sizes), layout)
    if not packed:
        return list(found.values())
    declared = families_of(layers, split_pages=False)
    own = [sum(_up(page, unit) for page in family.pages) for family in declared]
    return [*found.values(), *(_packed(each, unit) for each in _grown(declared, own, max_block_size, enable_caching))]


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _grown(
    families: Sequence[Family], pages: Sequence[int], max_block_size: int, enable_caching: bool
) -> list[tuple[Family, ...]]:
    """Return the families as declared, and grown towards each page that is worth a try; the smallest blocks first.

    `pages` are the bytes that each takes of a page: those of its largest layer, or of all.
    """
    block_sizes = [family.spec.block_size for family in families]
    coarsest = max(max_block_size, math.lcm(*block_sizes))
    largest = max(pages)
    targets = {largest * times for times in range(1, _MOST_MULTIPLES + 1)}
    targets |= {_up(largest, page) for page in pages} | {math.lcm(*pages)}
    found: dict[tuple[int, ...], tuple[Family, ...]] = {(1,) * len(pages): tuple(families)}
    for page in sorted(targets):
        factors = tuple(
            family.growth(page // size, max_block_size) for family, size in zip(families, pages, strict=True)
        )
        hits = math.lcm(*(size * factor for size, factor in zip(block_sizes, factors, strict=True)))
        if enable_caching and hits > coarsest:
            continue
        if factors not in found and math.gcd(*factors) == 1:  # more tokens in all blocks alike would save nothing
            found[factors] = tuple(family.grown(factor) for family, factor in zip(families, factors, strict=True))
    return list(found.values())


def _widths(families: Sequence[Family], layers_per_group: int | None) -> list[int]:
    """Return the numbers of tensors worth a try: those that some family fills with some number of groups."""
    if layers_per_group is not None:
        return [layers_per_group]
    counts = {len(family.names) for family in families}
    return sorted({-(-count // groups) for count in counts for groups in range(1, count + 1)})


def _laid_out(families: Sequence[Family], width: int, unit: int) -> Layout:
    """Deal each family's layers to as few groups as `width` tensors allow, as evenly as can be."""
    groups = []
    page_sizes: list[int] = []
    for number, family in enumerate(families):
        count = -(-len(family.names) // width)
        # law: LAYOUT-1
        groups += [(family.names[first::count], number) for first in range(count)]
        for tensor, page in enumerate(family.pages[::count]):
            # law: LAYOUT-8
            padded = _up(page, unit)
            if tensor == len(page_sizes):
                page_sizes.append(padded)
            # law: LAYOUT-3
            page_sizes[tensor] = max(page_sizes[tensor], padded)
    return Layout(tuple(families), tuple(groups), tuple(page_sizes))


def _packed(families: Sequence[Family], unit: int) -> Layout:
    """Lay each family's layers one behind the other in the pages of one tensor."""
    # law: LAYOUT-11
    ends = [list(accumulate(_up(page, unit) for page in family.pages)) for family in families]
    offsets = tuple((0, *each[:-1]) for each in ends)
    groups = tuple((family.names, number) for number, family in enumerate(families))
    return Layout(tuple(families), groups, (max(each[-1] for each in ends),), offsets)
