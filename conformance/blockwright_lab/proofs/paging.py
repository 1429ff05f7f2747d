"""Theorems about block tables with copy-on-write, and about places in tiers: what a scheduler is told of blocks.

Both sides are read from the source: `blockwright.paging`, `blockwright.offload.tiers`, and the specification's chapters
`counts` and `state` of part two.
"""

from collections.abc import Iterator
from typing import Any

from blockwright_spec.block_tables import counts as paged_counts
from blockwright_spec.block_tables import state as paged_state

from . import symbolic
from .symbolic import z3
from .theorem import Theorem

TABLE, MANAGER = "blockwright.paging.block_table", "blockwright.paging.block_manager"


def paging_theorems() -> Iterator[Theorem]:
    yield from of_counts()
    yield from of_appending()
    yield from of_windows()
    yield from of_marks()


def required(size: Any) -> Any:
    """Return the specification's count of the blocks of some tokens."""
    return lambda tokens, ahead=0: symbolic.Source(paged_counts).apply(
        "required", [None, tokens, ahead], {"config.block_size": size}
    )


def of_counts() -> Iterator[Theorem]:
    """Return the theorems about how many blocks tokens take, and how many an append touches."""
    n, ahead, full, b, held, k = z3.Ints("n ahead full b held k")
    code, manager, book = symbolic.Source(TABLE), symbolic.Source(MANAGER), symbolic.Source(paged_counts)
    given = [n >= 0, ahead >= 0, full >= 0, b >= 1, held >= 0, k >= 0]
    wanted = required(b)(n, ahead)
    sizes = {"len(token_ids)": n, "block_size": b, "num_lookahead_slots": ahead}
    counted = code.returned("BlockTable.get_num_required_blocks", sizes)
    yield Theorem("paged", "tokens take the blocks of the specification", given, counted == wanted)
    yield Theorem("paged", "the blocks required are as many as their slots", given, (k < wanted) == (k * b < n + ahead))
    config = {"config.block_size": b, "len(table.prefix[1])": full}
    touched = book.apply("touched", [None, None, n, ahead], config)
    answer = code.apply("BlockTable.num_touched", [n, ahead], {"self._size": b, "self._num_full": full})
    yield Theorem("paged", "an append touches the blocks of the specification", given, answer == touched)
    enough = touched >= required(b)(full, n + ahead) - full / b
    yield Theorem("paged", "an append touches no more than it says", given, enough)
    own = {"len(self._blocks)": held, "self._size": b, "self._num_full": full}
    beyond = code.apply("BlockTable.num_beyond_full", [], own)
    yield Theorem("paged", "what is not full of tokens is beyond the full blocks", given, beyond == held - full / b)
    own = {"seq.get_len()": n, "table.num_full_slots": full}
    unseen = manager.value("SelfAttnBlockSpaceManager._num_touched", "unseen", own)
    after = z3.And(unseen >= 0, z3.Implies(n >= full, unseen + full == n))
    yield Theorem("paged", "the tokens not yet written are those after the written ones", given, after)
    tracked = symbolic.Source("blockwright.paging.computed_blocks")
    count = tracked.value("ComputedBlocksTracker.hashes_of", "count", {"len(tokens)": n, "size": b})
    yield Theorem("paged", "full blocks are hashed", given, (k < count) == ((k + 1) * b <= n))
    cached = tracked.returned("ComputedBlocksTracker.num_cached_tokens", {"len(cached)": held, "self._size": b})
    own = {"ids[:self.get_num_cached_tokens(seq) // self.block_size]": cached / b}
    common = "SelfAttnBlockSpaceManager.get_common_computed_block_ids"
    entries = manager.passed(common, "computed.append", 0, own)
    yield Theorem("paged", "cached tokens are whole blocks", given, entries == held)


def of_appending() -> Iterator[Theorem]:
    """Return the theorems about which entries an append takes and writes."""
    n, ahead, full, b, held, at = z3.Ints("n ahead full b held at")
    code, book = symbolic.Source(TABLE), symbolic.Source(paged_counts)
    given = [n >= 0, ahead >= 0, full >= 0, b >= 1, held >= 1, at >= 0, full <= held * b]
    config = {"required": lambda config, *counts: required(b)(*counts)}
    slots = {"len(table.prefix[1])": full, "len(table.entries)": held}
    missing = book.apply("missing", [None, None, n + ahead], {**config, **slots})
    known = {"stop": full + n, "num_lookahead_slots": ahead, "size": b, "len(blocks)": held, "start": full}
    found = code.value("BlockTable.append_token_ids", "missing", known)
    yield Theorem("paged", "an append takes the blocks that are missing", given, symbolic.larger(found, 0) == missing)
    known |= {"self._num_full": full, "num_empty_slots": n + ahead, "self._size": b, "len(self._blocks)": held}
    found = code.value("BlockTable.ensure_num_empty_slots", "missing", known)
    yield Theorem("paged", "empty slots take the blocks that are missing", given, symbolic.larger(found, 0) == missing)
    first = code.value("BlockTable.append_token_ids", "first", known)
    stop = symbolic.smaller(required(b)(full, n), held)
    yield Theorem("paged", "the first token goes to the entry after the full ones", given, first == full / b)
    written = z3.And(first <= at, at < stop)
    place = symbolic.larger(full, at * b)
    goes = z3.Implies(written, z3.And(place < full + n, place / b == at))
    yield Theorem("paged", "every written entry gets a token", [*given, n >= 1], goes)
    count, chunk = z3.Ints("count chunk")
    whole = code.value("BlockTable.allocate", "whole", {"count": count, "size": b})
    rest = z3.If(whole < count, 1, 0)
    claim = z3.And(whole % b == 0, whole / b + rest == required(b)(count))
    yield Theorem("paged", "a prompt is cut into its full blocks and a rest", [*given, count >= 1, chunk >= 0], claim)


def of_windows() -> Iterator[Theorem]:
    """Return the theorems about windows: which entries they leave behind, and what admission counts of them."""
    marked, computed, full, b, held, window, tokens = z3.Ints("marked computed full b held window tokens")
    code, manager, book = symbolic.Source(TABLE), symbolic.Source(MANAGER), symbolic.Source(paged_state)

    def dead(count: Any) -> Any:
        known = {"config.window": window, "config.block_size": b, "table.computed": count, "len(table.entries)": held}
        return book.apply("dead_entries", [None, None], {**known, "None": -1, "config.window is None": False})

    given = [
        marked >= 0,
        marked <= full,
        computed >= 0,
        computed <= full,
        b >= 1,
        window >= 1,
        held >= 1,
        full <= held * b,
    ]
    known = {"self._window": window, "window is None": False, "self._size": b, "self._num_full": full}
    known |= {"self._num_null": dead(marked), "len(self._blocks)": held}
    found = code.apply("BlockTable._num_dead", [computed], known)
    left = found == dead(symbolic.larger(marked, computed))
    yield Theorem("paged", "the window leaves behind the entries of the specification", given, left)
    behind = z3.Implies(found >= 1, found * b - 1 <= full - 1)
    yield Theorem("paged", "no entry is left behind that is still written", given, behind)
    own = {"sliding_window is None": False, "sliding_window": tokens, "block_size": b, "None": -1}
    kept = manager.value("SelfAttnBlockSpaceManager.__init__", "self.max_block_sliding_window", own)
    start, p = z3.Ints("start p")
    reads = [tokens >= 1, b >= 1, start >= 0, p >= 0, p <= start, p > start - tokens, window == kept]
    yield Theorem("paged", "no token reads what its window has left behind", reads, p / b >= start / b - window)
    most, free, watermark, need = z3.Ints("most free watermark need")
    status = {"AllocStatus.NEVER": 2, "AllocStatus.LATER": 1, "AllocStatus.OK": 0}
    own = {"When.NEVER": 2, "When.NOT_NOW": 1, "None": 0, "len(free_on(state, device))": free}
    counts = symbolic.Source(paged_counts).apply("fits", [None, None, need, most - watermark, watermark], own)
    asked = {**status, "self.num_total_gpu_blocks": most, "self.watermark_blocks": watermark, "need": need}
    asked["self.get_num_free_gpu_blocks()"] = free
    never = manager.condition("SelfAttnBlockSpaceManager.can_allocate", asked, 2)
    now = manager.condition("SelfAttnBlockSpaceManager.can_allocate", asked, 3)
    fits, given = z3.If(never, 2, z3.If(now, 0, 1)) == counts, [need >= 0, free >= 0, watermark >= 0]
    yield Theorem("paged", "a prompt fits when the specification says", given, fits)


def of_marks() -> Iterator[Theorem]:
    """Return the theorems about the numbers of blocks on two devices, and of places in a tier."""
    block, first, count, used, freed, total = z3.Ints("block first count used freed total")
    pool = symbolic.Source("blockwright.paging.device_pool")
    given = [block >= 1, block < count, first >= 1]
    mark = pool.returned("DevicePool.take_mark", {"block": block, "self.first_id": first})
    own = {"mark": mark, "self.first_id": first, "self.null": 0}
    for name in ("is_held", "publish_words", "access"):
        back = pool.value(f"DevicePool.{name}", "block", own)
        yield Theorem("paged", f"{name} knows a block again by its mark", given, back == block)
    for name, callee in (
        ("hold_one", "i32"),
        ("release_one", "i32"),
        ("sharers", "self.num_sharers"),
        ("is_copy_target", "self.is_destination"),
        ("is_known", "self._index.has_key"),
        ("is_computed", "self._index.has_key"),
        ("copy_one", "self._copy_on_write"),
    ):
        asked = pool.passed(f"DevicePool.{name}", callee, 0, own)
        yield Theorem("paged", f"{name} asks about the block of a mark", given, asked == block)
    found = pool.returned("DevicePool.find_words", {"block": block, "self.first_id": first})
    yield Theorem("paged", "a block that is found has its mark", given, found == mark)
    total_blocks = pool.apply("DevicePool.num_total", [], {"self._count": count})
    yield Theorem("paged", "the null place of a pool is no block", given, total_blocks == count - 1)
    places = symbolic.Source("blockwright.offload.tiers.backend")
    known = {"self.num_blocks": total, "len(self._used)": used, "self._num_freed": freed}
    free = places.apply("SlotBackend.num_free_places", [], known)
    given, claim = [used <= total, freed <= used, freed >= 0], z3.And(free == total - (used - freed), free >= 0)
    yield Theorem("tier", "free places are those never used and those given back", given, claim)
