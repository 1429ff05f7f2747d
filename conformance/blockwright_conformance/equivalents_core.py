"""Mutants of the core that nothing can tell from the original, each with the reason."""

from .mutant_realm import Rule

EQUIVALENT: dict[str, str] = {
    "core/index.py PrefixIndex.copy: return PrefixIndex(0, source=self) -> return PrefixIndex(1, source=self)": (
        "the number of blocks is not read where there is a source"
    ),
    "core/request.py Request._extra_keys: place = (item.offset - start).to_bytes(8, 'little', signed=True) + "
    "item.length.to_bytes(8, 'little') -> place = (item.offset - start).to_bytes(8, 'little', signed=True) + "
    "item.length.to_bytes(7, 'little')": "a length has at most 31 bits, so that both encode it one to one",
    "core/group.py GroupTables.missing: if more > 1 and self._layout == LAST_STATE -> "
    "if more >= 1 and self._layout == LAST_STATE": "where more is 1, both return 1",
    "core/request.py _tagged: return tag + len(data).to_bytes(8, 'little') + data -> "
    "return tag + len(data).to_bytes(9, 'little') + data": "both encode a length one to one",
}

RULES: tuple[Rule, ...] = ()
