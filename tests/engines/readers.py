"""Connectors that read vLLM's pool in ways of their own; what they have seen is the same with either manager."""

import functools
import threading
from typing import Any

from tests.engines import helper
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.v1.core.block_pool import BlockPool

SEEN: list[Any] = []
KEPT: Any = None


class Reads(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Loads nothing, and looks at each admission."""

    def look(self) -> Any:
        return None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if (seen := self.look()) is not None:
            SEEN.append(seen)
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


class ByProperty(Reads):
    def bind_gpu_block_pool(self, mine: Any) -> None:
        self._mine = mine

    @property
    def mine(self) -> Any:
        return self._mine

    def look(self) -> Any:
        return self.mine.num_gpu_blocks, [each.block_hash for each in self.mine.blocks if each.ref_cnt == 1]


class ByPartial(Reads):
    def bind_gpu_block_pool(self, mine: Any) -> None:
        self.count = functools.partial(helper.look, mine)

    def look(self) -> Any:
        return self.count()


class ByHelper(ByProperty):
    def look(self) -> Any:
        from tests.engines.helper import look

        return look(self.mine)


class ByKeeper(Reads):
    def bind_kv_cache_manager(self, mine: Any) -> None:
        self.keeper = helper.Keeper(mine.coordinator.single_type_managers[0].block_pool)

    def look(self) -> Any:
        return self.keeper.count()


class ByCoordinator(Reads):
    def bind_kv_cache_manager(self, mine: Any) -> None:
        self.coordinator = mine.coordinator

    def look(self) -> Any:
        group = self.coordinator.single_type_managers[0]
        tables = group.req_to_blocks.items()
        return [(name, [each.block_id for each in table]) for name, table in tables], group.block_size


class OfItsOwn(Reads):
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        SEEN.extend((each.block_id, each.block_hash, each.ref_cnt) for each in blocks.blocks[0])


class ByIsinstance(ByProperty):
    def look(self) -> Any:
        return isinstance(self.mine, BlockPool), self.mine.get_usage()


class ByAsking(ByProperty):
    def look(self) -> Any:
        return hasattr(self.mine, "blocks"), getattr(self.mine, "no_such_name", 5)


class ByName(ByProperty):
    def look(self) -> Any:
        return [getattr(self.mine, "_".join(("enable", word))) for word in ("caching",)]


class ByThread(ByProperty):
    def look(self) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda pool: found.append(len(pool.blocks)), args=(self.mine,))
        thread.start()
        thread.join()
        return found


class ByGlobal(Reads):
    def bind_gpu_block_pool(self, mine: Any) -> None:
        global KEPT
        KEPT = mine

    def look(self) -> Any:
        return KEPT.get_num_free_blocks()


class ByStar(Reads):
    def bind_gpu_block_pool(self, *mine: Any) -> None:
        self.some = mine

    def look(self) -> Any:
        return self.some[0].get_num_free_blocks()


class ByDictionary(Reads):
    hidden: Any

    def bind_gpu_block_pool(self, mine: Any) -> None:
        self.__dict__["hidden"] = mine

    def look(self) -> Any:
        return self.hidden.get_num_free_blocks()


class ByDecorator(Reads):
    @functools.lru_cache  # noqa: B019
    def bind_gpu_block_pool(self, mine: Any) -> None:
        self.cached = mine

    def look(self) -> Any:
        return self.cached.get_num_free_blocks()


class ByEvicting(ByProperty):
    def look(self) -> Any:
        return self.mine.evict_blocks(set()) is None


class Deeper(ByProperty):
    def look(self) -> Any:
        return helper.deeper(self.mine.blocks[9]) is None


class DeeperByPartial(Reads):
    def bind_gpu_block_pool(self, mine: Any) -> None:
        self.back = functools.partial(helper.deeper, mine.blocks[9])

    def look(self) -> Any:
        return self.back() is None
