"""Exhibits of the museum that corrupt no data, each with the reason: whatever goes wrong, what is read stays right."""

LEAKS = "blocks are lost to the pool; nobody reads or is given them"
ORDER = "another block is evicted first; what is found is right"
MISSES = "something cached is not found, and computed again"
TOLD = "what is told to others differs; nothing here is read by it"
WAITS = "a request waits, for ever perhaps; what runs is right"

HARMLESS: dict[str, str] = {
    # blocks
    "B18": LEAKS,
    "B20": LEAKS,
    "B21": "the pool believes that it has fewer free blocks than it has, and refuses too early",
    "B54a": ORDER,
    "B55": MISSES,
    "B56a": "what is marked cannot be found; dropping it searches for ever",
    "B56c": MISSES,
    "B66": ORDER,
    "B64a": TOLD,
    "B64b": TOLD,
    "B64c": TOLD,
    "B65": "statistics are wrong",
    # demand
    "B05a": LEAKS,
    "B09": "the table that is kept is empty: the next call is refused, or right",
    "B34b": WAITS,
    # tables
    "B13": LEAKS,
    "B17": LEAKS,
    "B28a": "states stay held that nobody reads any more",
    "D03": "a block more is held than is read",
    # prefixes
    "B36": MISSES,
    "B39": MISSES,
    "B46": "the hit is right; but no token is left to compute, so the request stands still",
    "B60a": "keys can be foreseen, so that someone may search for prefixes that collide; by itself none does",
    "B61a": "the model reads no salt: a tenant finds another's prefix, which would have been computed alike",
    "B61b": "the model reads no salt: a tenant finds another's first block, which would have been computed alike",
    "D05": MISSES,
    # time
    "B35a": WAITS,
    "B35b": WAITS,
    "B54b": ORDER,
    "B59c": LEAKS,
    # forks
    "B01a": LEAKS,
    "B01b": LEAKS,
    # block tables
    "B01c": LEAKS,
    "B02b": LEAKS,
    "B23": "a swap that was promised to fit does not, and fails before anything is copied",
    "B24a": "blocks of the host are lost",
    "B24b": WAITS,
    "D07": "slots that were promised to fit do not, and are refused",
    "D08": ORDER,
    # tiers
    "B18b": LEAKS,
    "B18c": LEAKS,
    "B64d": TOLD,
    "B64e": TOLD,
    "B64f": TOLD,
    "B17b": LEAKS,
    "B20b": LEAKS,
}
"""By id."""
