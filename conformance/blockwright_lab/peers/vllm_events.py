"""What vLLM's events tell of its prefix cache, and whether that is what is in it (EV-1)."""

from collections import Counter
from typing import Any

from .following import LawError
from .vllm_engine import VllmEngine

Entry = tuple[Any, int | None]
"""A hash as events name it, and a group; None where events name no group."""


class Mirror:
    """What one who hears all events believes to be cached: how many blocks there are of each hash."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.entries: Counter[Entry] = Counter()

    def copy(self) -> "Mirror":
        twin = Mirror(self.engine)
        twin.entries = self.entries.copy()
        return twin

    def listen(self, manager: Any) -> None:
        torn = [detail for event in manager.take_events() if (detail := self.hear(event))]
        index = self.index(manager.block_pool)
        if torn:
            raise LawError("EV-1", torn[0])
        if +self.entries != index:
            gone, false = index - self.entries, self.entries - index
            raise LawError(
                "EV-1", f"{gone.total()} cached blocks are told of nowhere, {false.total()} told of are none"
            )

    def hear(self, event: Any) -> str:
        """Take in one event; return why it could not be replayed from its tokens, if so."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.entries.clear()
            return ""
        group = getattr(event, "group_idx", None)
        sign = 1 if kind == "BlockStored" else -1
        for digest in event.block_hashes:
            self.entries[digest, group] += sign
        if kind == "BlockStored" and len(event.token_ids) != len(event.block_hashes) * event.block_size:
            count = len(event.block_hashes)
            return f"a stored event of {count} blocks of {event.block_size} has {len(event.token_ids)} tokens"
        return ""

    def index(self, pool: Any) -> Counter[Entry]:
        utils, cells = self.engine.utils, pool.cached_block_hash_to_block._cache
        entries: Counter[Entry] = Counter()
        for key, blocks in cells.items():
            entries[self.name(utils, key)] += len(blocks) if isinstance(blocks, dict) else 1
        return entries

    def name(self, utils: Any, key: Any) -> Entry:
        digest = utils.maybe_convert_block_hash(utils.get_block_hash(key))
        return digest, utils.get_group_id(key) if self.engine.is_new else None
