"""Mutants of single parts of the core that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

RING = "where a ring starts is not seen: its slots are taken in turn from there"
NULL = "block 0 never has a key"
SAME = "equal ones were excluded by the condition before"
WRITTEN = "written before it is read"

EQUIVALENT: dict[str, str] = {
    "core/blocks.py KVCacheBlocks.__hash__: return hash(tuple([len(ids) for ids in self.ids])) -> "
    "return hash(tuple([len(ids) for ids in self.ids])) + 1": "any number will do that equal objects share",
    "core/losses.py Losses.__init__: self._last = 0 -> self._last = 1": RING,
    "core/losses.py Losses.__init__: self._last = 0 -> self._last = -1": RING,
    "core/losses.py Losses.lose_all: block: i64 = 1 -> block: i64 = 0": NULL,
    "core/losses.py Losses.cause: return i64(self._causes[slot]) if slot > 0 else 0 -> "
    "return i64(self._causes[slot]) if slot >= 0 else 0": "the cause of slot 0, which is never written, is 0",
    "core/losses.py Losses.cause: return i64(self._causes[slot]) if slot > 0 else 0 -> "
    "return i64(self._causes[slot]) if slot > -1 else 0": "the cause of slot 0, which is never written, is 0",
    "core/access_order.py AccessOrder._precedes: return times[one] < times[other] -> "
    "return times[one] <= times[other]": SAME,
    "core/access_order.py AccessOrder._precedes: return lengths[one] > lengths[other] -> "
    "return lengths[one] >= lengths[other]": SAME,
    "core/access_order.py AccessOrder._precedes: return one < other -> return one <= other": (
        "no block is compared with itself"
    ),
    "core/block_hash.py _sip: first: i64 = 0 -> first: i64 = 1": WRITTEN,
    "core/block_hash.py _sip: first: i64 = 0 -> first: i64 = -1": WRITTEN,
}

RULES: tuple[Rule, ...] = (
    Rule(
        r".*\.copy: return (Losses|AccessOrder)\(0, source=self\) -> return \1\(-?1, source=self\)",
        "the number of blocks is not read where there is a source",
    ),
)
