"""Mutants of single parts of the core that nothing can tell from the original, each with the reason."""

from .equivalents_rows import EQUIVALENT as OF_ROWS
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

LISTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        (
            "with 0 words before the message the fifth and sixth arguments are not mixed in (`_sip` "
            "mixes them only where there are 2)"
        ),
        (
            (
                "core/block_hash.py _SipKey.hash_bytes: return _sip(self.v0, self.v1, self.v2, "
                "self.v3, rounds, 0, 0, 0, message, 0, whole, last) -> return _sip(self.v0, self.v1, "
                "self.v2, self.v3, rounds, 0, 1, 0, message, 0, whole, last)"
            ),
            (
                "core/block_hash.py _SipKey.hash_bytes: return _sip(self.v0, self.v1, self.v2, "
                "self.v3, rounds, 0, 0, 0, message, 0, whole, last) -> return _sip(self.v0, self.v1, "
                "self.v2, self.v3, rounds, 0, -1, 0, message, 0, whole, last)"
            ),
            (
                "core/block_hash.py _SipKey.hash_bytes: return _sip(self.v0, self.v1, self.v2, "
                "self.v3, rounds, 0, 0, 0, message, 0, whole, last) -> return _sip(self.v0, self.v1, "
                "self.v2, self.v3, rounds, 0, 0, 1, message, 0, whole, last)"
            ),
            (
                "core/block_hash.py _SipKey.hash_bytes: return _sip(self.v0, self.v1, self.v2, "
                "self.v3, rounds, 0, 0, 0, message, 0, whole, last) -> return _sip(self.v0, self.v1, "
                "self.v2, self.v3, rounds, 0, 0, -1, message, 0, whole, last)"
            ),
        ),
    ),
    (
        "written by `extend` before they are read",
        (
            ("core/block_hash.py SipHasher.next_words: words = vec[i64]([0, 0]) -> words = vec[i64]([1, 0])"),
            ("core/block_hash.py SipHasher.next_words: words = vec[i64]([0, 0]) -> words = vec[i64]([-1, 0])"),
            ("core/block_hash.py SipHasher.next_words: words = vec[i64]([0, 0]) -> words = vec[i64]([0, 1])"),
            ("core/block_hash.py SipHasher.next_words: words = vec[i64]([0, 0]) -> words = vec[i64]([0, -1])"),
        ),
    ),
    (
        "`read_i64_le` reads 8 bytes at 0 and 8 at 8: what stands behind the first 16 is not read",
        (
            (
                "core/block_hash.py _FunctionChain.extend: key = (digest + bytes(16))[:16] -> key = "
                "(digest + bytes(16))[:17]"
            ),
            (
                "core/block_hash.py _FunctionChain.extend: key = (digest + bytes(16))[:16] -> key = "
                "(digest + bytes(17))[:16]"
            ),
        ),
    ),
    (
        "without extra keys, and of an even size, blocks are copied as they are, nothing between them, and start at 0",
        (
            (
                "core/block_hash.py _SipChain.extend: if len(extra) > 0 or size % 2 == 1 -> "
                "if len(extra) >= 0 or size % 2 == 1"
            ),
            (
                "core/block_hash.py _SipChain.extend: if len(extra) > 0 or size % 2 == 1 -> "
                "if len(extra) > -1 or size % 2 == 1"
            ),
        ),
    ),
    (
        "the filler behind the last block is not read: `_sip` reads `whole` words from each block's start",
        ("core/block_hash.py _spread: while start < i64(len(data)) -> while start <= i64(len(data))",),
    ),
)
"""Families of equivalent mutants: a reason, and their names."""

EQUIVALENT |= {key: reason for reason, keys in LISTED for key in keys} | OF_ROWS

RULES: tuple[Rule, ...] = (
    Rule(
        r".*\.copy: return (Losses|AccessOrder)\(0, source=self\) -> return \1\(-?1, source=self\)",
        "the number of blocks is not read where there is a source",
    ),
)
