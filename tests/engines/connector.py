"""A connector for the stub worker: it offers prefixes of prompts by their names, and some of its loads fail."""

import zlib
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA


def draw(name: str, what: str, most: int) -> int:
    """Return a number below `most` that depends on the names alone, so that both sides draw the same."""
    return zlib.crc32(f"{name} {what}".encode()) % most


class Connector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side. Offers, by request: nothing, some whole blocks, or, asynchronously, the whole prompt.

    Attributes:
        loads: begun since they were last taken: request, first token, end, tables.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.loads: list[tuple[Any, int, int, tuple[list[int], ...]]] = []
        self._extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._block_size = vllm_config.cache_config.block_size
        self._starts: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return how many tokens can be loaded behind those that are computed."""
        is_async = self._extra["is_async"]
        count = request.num_prompt_tokens
        kind = draw(request.request_id, "offer", 4)
        if kind == 0:
            return 0, False
        if kind == 1 or not is_async or self._extra["leaves_last"]:
            count = draw(request.request_id, "length", count)
            count -= count % self._block_size
        self._starts[request.request_id] = num_computed_tokens
        found = max(0, count - num_computed_tokens)
        return found, is_async and found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load that begins."""
        if num_external_tokens:
            start = self._starts[request.request_id]
            self.loads.append((request, start, start + num_external_tokens, blocks.get_block_ids()))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return nothing: the stub worker reads `loads`."""
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Keep nothing."""
        return False, None

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Do nothing: this is the worker's side."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Do nothing."""

    def wait_for_save(self) -> None:
        """Do nothing."""
