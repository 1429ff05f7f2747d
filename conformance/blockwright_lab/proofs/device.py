"""Theorems about the device: slots, first positions read, and the arithmetic of plans.

Both sides are read from the source: `blockwright.device` (which is not imported, so torch is not needed), and the
specification's chapters `reads`, `inputs` and `storage`. What is said of numbers holds of tensors element by element.
"""

from collections.abc import Iterator
from typing import Any

from blockwright.core.tables import window
from blockwright_spec import reads
from blockwright_spec.worker import inputs, storage

from . import symbolic
from .symbolic import z3
from .theorem import Theorem

SPECS = {"sliding": "SlidingWindowSpec", "chunked": "ChunkedLocalAttentionSpec", "full": "FullAttentionSpec"}


def device_theorems() -> Iterator[Theorem]:
    yield from of_slots()
    yield from of_reads()
    yield from of_plans()
    yield from of_layouts()
    yield from of_tiles()


def of_slots() -> Iterator[Theorem]:
    block, b, p = z3.Ints("block b p")
    code, book = symbolic.Source("blockwright.device.slots"), symbolic.Source(inputs)
    given = [block >= 1, b >= 1, p >= 0]
    slot = book.returned("slot_at", {"block": block, "size": b, "position": p, "NULL": 0, "None": -1})
    rest = z3.Int("rest")  # the position's place in its block
    at, place = code.value("write_kv", "places", {"slots": z3.substitute(slot, (p % b, rest)), "block_size": b})
    stated = z3.And(at == block, place == rest)
    yield Theorem("all", "a place lies within its block", given, z3.And(p % b >= 0, p % b < b))
    yield Theorem("all", "a slot is written in its block, at its place", [*given, rest >= 0, rest < b], stated)
    row = {"positions": p, "block_size": b, "row[positions // block_size]": p / b}
    entry, place = (code.passed("gather_kv", "gathered", number, row) for number in (1, 2))
    yield Theorem("all", "a position is read where its slot is", given, entry * b + place == p)


def of_reads() -> Iterator[Theorem]:
    n, width, chunk, queries, length = z3.Ints("n width chunk queries length")
    code, book = symbolic.Source("blockwright.device.operands"), symbolic.Source(reads)
    attention = symbolic.Source("blockwright.device.attention")
    known: dict[str, Any] = {"spec.sliding_window": width, "spec.attention_chunk_size": chunk}
    known["torch.zeros_like"] = lambda positions: z3.IntVal(0)
    given = [n >= 0, width >= 1, chunk >= 1, queries >= 1, length >= n + queries]
    for name, kind in (("sliding", ("Sliding", (width,))), ("chunked", ("Chunked", (chunk,))), ("full", ("Full", ()))):
        spec = (SPECS[name], ())
        first = code.apply("first_read", [spec, n], known)
        start, _ = book.apply("reads", [kind, n], {})
        yield Theorem(name, "attention reads from where the specification says", given, first == start)
        span = attention.apply("_longest_span", [spec, queries, length], known)
        yield Theorem(name, "consecutive tokens read no more than the longest span", given, n + queries - first <= span)
    rule = symbolic.Source(window).apply("SlidingRule.first_needed", [n], {"self._window": width})
    same = code.apply("first_read", [(SPECS["sliding"], ()), n], known) == rule
    yield Theorem("sliding", "attention reads what the manager keeps", given, same)


def of_plans() -> Iterator[Theorem]:
    """Return the theorems about plans of a device's memory (LAYOUT-3 to LAYOUT-8)."""
    memory, size, page, unit, count, width, k, most = z3.Ints("memory size page unit count width k most")
    plan, pages = symbolic.Source("blockwright.device.plan"), symbolic.Source("blockwright.device.pages")
    planned, book = symbolic.Source("blockwright.device.planned"), symbolic.Source(storage)
    known = {"self.available": memory, "layout.block_bytes": size, "_MOST": most, "self.num_blocks is None": True}
    fit = plan.apply("_Memory.blocks", [None], known)
    given = [memory >= 0, size >= 1, k >= 0, most >= 1, page >= 0, unit >= 1, count >= 0, width >= 1]
    fits = (k <= fit) == z3.And(k * size <= memory, k <= most)
    yield Theorem("plan", "as many blocks as fit the memory, and none more", given, fits)
    asked = plan.apply("_Memory.blocks", [None], {**known, "self.num_blocks is None": False, "self.num_blocks": k})
    given_all = asked == z3.If(z3.And(k * size <= memory, k <= most), k, 0)
    yield Theorem("plan", "blocks that were asked for are given if they fit", given, given_all)
    whole = book.apply("whole", [page, unit], {"entries": symbolic.entries})
    padded = pages.value("_laid_out", "padded", {"page": page, "unit": unit})
    yield Theorem("plan", "pages are rounded up as the specification does", given, padded == whole)
    units = symbolic.entries(unit, page)
    yield Theorem("plan", "pages are whole units", [*given, k == units], z3.And(padded == k * unit, k >= 0))
    yield Theorem("plan", "pages grow by less than a unit", given, z3.And(whole >= page, whole < page + unit))
    groups = pages.value("_laid_out", "count", {"len(family.names)": count, "width": width})
    dealt = z3.Implies(k < groups, k + (width - 1) * groups < count + width * groups)
    enough = z3.And(groups * width >= count, z3.Or(count == 0, (groups - 1) * width < count))
    yield Theorem("plan", "layers are dealt to as few groups as the tensors allow", given, z3.And(enough, dealt))
    block, largest, growing = z3.Ints("block largest growing")
    own = {"page": page, "self.pages[0]": size, "max_block_size": largest, "self.spec.block_size": block}
    factor, positive = pages.value("Family.growth", "factor", own), [*given, block >= 1, largest >= 1]
    grown = (growing <= factor) == z3.Or(growing <= 1, z3.And(growing * size <= page, growing * block <= largest))
    yield Theorem("plan", "blocks grow as far as their page and the limit allow", positive, grown)
    each, length = z3.Ints("each length")
    own = {"self.num_blocks": count, "self.limits.max_model_len": length, "self.blocks_per_request": each}
    tokens, positive = planned.apply("KVCachePlan.num_tokens", [], own), [*given, each >= 1, length >= 1, count >= 1]
    shares = z3.And(tokens * each <= (count - 1) * length, (tokens + 1) * each > (count - 1) * length)
    yield Theorem("plan", "the tokens that fit are a request's for each share of blocks", positive, shares)
    total = planned.apply("KVCachePlan.total_bytes", [], {"self.num_blocks": count, "self.block_bytes": size})
    yield Theorem("plan", "all tensors together are all blocks", given, total == count * size)
    low, high = z3.Ints("low high")
    middle = plan.value("_largest", "middle", {"low": low, "high": high})
    closer = z3.And(low < middle, middle <= high)
    yield Theorem("plan", "the search for the largest fit comes closer", [low >= 0, low < high], closer)


def of_layouts() -> Iterator[Theorem]:
    """Return the theorems about what layouts are tried, and what is asked of a plan."""
    count, groups, page, largest, k = z3.Ints("count groups page largest k")
    pages, planned = symbolic.Source("blockwright.device.pages"), symbolic.Source("blockwright.device.planned")
    step = symbolic.Source("blockwright.device.step")
    given = [count >= 1, groups >= 1, groups <= count, page >= 1, largest >= page, k >= 1]
    width = pages.element("_widths", {"count": count, "groups": groups}, 1)
    fewest = width == symbolic.entries(groups, count)
    yield Theorem("plan", "layers are spread over as few tensors as a number of groups allows", given, fewest)
    target = pages.element("_grown", {"largest": largest, "page": page}, 1)
    first = z3.And(target == symbolic.entries(page, largest) * page, target >= largest, target < largest + page)
    yield Theorem("plan", "a page grows to the first multiple that holds the largest", given, first)
    slots, ahead = z3.Ints("slots ahead")
    own = {"self.max_num_batched_tokens": slots, "self.num_lookahead_tokens": ahead}
    asked = planned.passed("RequestLimits.blocks_of", "most_blocks", 2, own)
    same = asked == symbolic.Source(storage).value("held", "slots", {"limits.step": slots, "limits.lookahead": ahead})
    yield Theorem("plan", "a plan counts lookahead slots as the specification does", [slots >= 1, ahead >= 0], same)
    low, high, p, b = z3.Ints("low high p b")
    first, last = step.value("_check_table", "(first, last)", {"low": low, "high": high, "block_size": b})
    inside = z3.Implies(z3.And(low <= p, p < high), z3.And(first <= p / b, p / b < last))
    yield Theorem("all", "every position that is read has its entry checked", [low >= 0, b >= 1, high > low], inside)


def of_tiles() -> Iterator[Theorem]:
    """Return the theorem about the tiles of slots that a block lies in, for masks of fused kernels."""
    start, size, ahead, tile = z3.Ints("start size ahead tile")
    code = symbolic.Source("blockwright.device.fused")
    known = {"start": start, "size": size, "SLOT_TILE": 128}
    tiles = code.passed("_visited", "range", 0, known)
    at = code.value("_visited", "slot_tile", {**known, "ahead": ahead})
    given = [start >= 0, size >= 1, tile * 128 < start + size, (tile + 1) * 128 > start, ahead == tile - start / 128]
    visited = z3.And(ahead >= 0, ahead < tiles, at == tile)
    yield Theorem("all", "every tile that a block lies in is visited", given, visited)
