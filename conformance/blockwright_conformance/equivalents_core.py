"""Mutants of the core that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

EQUIVALENT: dict[str, str] = {
    "core/request.py Request._extra_keys: place = (item.offset - start).to_bytes(8, 'little', signed=True) + "
    "item.length.to_bytes(8, 'little') -> place = (item.offset - start).to_bytes(8, 'little', signed=True) + "
    "item.length.to_bytes(7, 'little')": "a length has at most 31 bits, so that both encode it one to one",
    "core/group.py GroupTables.missing: if more > 1 and self._layout == LAST_STATE -> "
    "if more >= 1 and self._layout == LAST_STATE": "where more is 1, both return 1",
    "core/request.py _tagged: return tag + len(data).to_bytes(8, 'little') + data -> "
    "return tag + len(data).to_bytes(9, 'little') + data": "both encode a length one to one",
}

RULES: tuple[Rule, ...] = (
    Rule(
        r"core/store.py .*: self\.version \+= 1 -> self\.version \+= 2( #\d+)?",
        "versions are only compared for equality, and only grow",
    ),
    Rule(r"core/store.py .*: self\.version = 0 -> self\.version = -?1", "versions are only compared for equality"),
    Rule(
        r"core/store.py .*: while block != 0 and i64\(len\(ids\)\) <= self\._count -> "
        r"while block != 0 and i64\(len\(ids\)\) < self\._count",
        "a sound queue has fewer blocks than the pool, a broken one is noticed one entry sooner",
    ),
    Rule(
        r"core/store.py BlockStore.take: .* append\(ids, 0\) if .* -> .* append\(ids, -?1\) if .*",
        "the new entry is written before anybody reads it",
    ),
    Rule(
        r".*\.copy: return (\w+)\(0, source=self\) -> return \1\(-?1, source=self\)",
        "the number of blocks is not read where there is a source",
    ),
)
