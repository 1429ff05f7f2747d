"""A tree with locks under the kit: SGLang's `RadixCache` (0.5.23: match, lock, insert, evict), and its engine's table.

An entry of the tree is a page of slots. A request locks the path that it reads; what it computes is inserted, and where
the tree has the same already, the tree's pages stand in the table from then on.
"""

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from base import Adapter
from blockwright_conformance import Capabilities, Found, Observation


class Pages:
    """The allocator that the tree gives pages back to."""

    device = "cpu"

    def __init__(self, count: int, size: int) -> None:
        self.size, self.free = size, list(range(1, count))

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        self.free += [slot // self.size for slot in slots[:: self.size].tolist()]


class TreeAdapter(Adapter):
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"chunks", "preempt", "reset"}),
        features=frozenset({"caching", "extra keys"}),
        ways=frozenset({"forgets", "deduplicates"}),
    )

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.size = config.groups[0].block_size
        self.pages = Pages(config.num_blocks, self.size)
        self.tree = RadixCache.create_simulated(mock_allocator=self.pages, page_size=self.size)
        self.tables: dict[str, list[int]] = {}
        self.locks: dict[str, Any] = {}

    def send(self, name: str, prefix: Any) -> None:
        self.requests[name] = (str(prefix[0]), array("q", prefix[1]))

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.requests[name][1].extend(tokens)

    def key(self, name: str, end: int) -> RadixKey:
        extra, tokens = self.requests[name]
        return RadixKey(tokens[:end], extra)

    def path(self, node: Any) -> list[int]:
        slots = [] if node is self.tree.root_node else self.tree.path_device_indices(node).tolist()
        return [slot // self.size for slot in slots[:: self.size]]

    def match(self, name: str, end: int) -> tuple[Any, list[int]]:
        node = self.tree.match_prefix(MatchPrefixParams(self.key(name, end))).last_device_node
        return node, self.path(node)

    def find(self, name: str) -> Found:
        _, hit = self.match(name, len(self.requests[name][1]) - 1)
        return Found(len(hit) * self.size, (tuple(hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        end = computed + length + step.new
        if not computed:
            self.locks[name], self.tables[name] = self.match(name, length)
            self.tree.inc_lock_ref(self.locks[name])
        begin = len(self.tables[name])
        missing = -(-end // self.size) - begin
        self.tree.evict(EvictParams(num_tokens=max(0, missing - len(self.pages.free)) * self.size))
        if missing > len(self.pages.free):
            if not computed:
                self.free(name)
            return None
        new = tuple(self.pages.free.pop() for _ in range(missing))
        self.tables[name] += new
        self.insert(name, end)
        return (new,)

    def insert(self, name: str, end: int) -> None:
        slots = torch.tensor([page * self.size + at for page in self.tables[name] for at in range(self.size)])
        self.tree.insert(InsertParams(self.key(name, end), slots))
        node, owned = self.match(name, end)
        self.pages.free += [page for page in self.tables[name][: len(owned)] if page not in owned]
        self.tables[name][: len(owned)] = owned
        self.tree.inc_lock_ref(node)
        self.tree.dec_lock_ref(self.locks[name])
        self.locks[name] = node

    def free(self, name: str) -> None:
        node, table = self.locks.pop(name, None), self.tables.pop(name, [])
        if node is not None:
            self.pages.free += table[len(self.path(node)) :]
            self.tree.dec_lock_ref(node)

    def reset(self) -> bool:
        if not self.tables:
            self.tree.evict(EvictParams(num_tokens=self.tree.total_size()))
        return not self.tables

    def observe(self, names: tuple[str, ...]) -> Observation:
        nodes, slots = list(self.tree.root_node.children.values()), list[int]()
        for node in nodes:
            nodes += node.children.values()
            slots += node.value.tolist() if node.lock_ref == 0 else []
        kept = tuple(slot // self.size for slot in slots[:: self.size])
        shown = tuple((tuple(self.tables[name]),) if name in self.tables else None for name in names)
        return Observation(shown, free=len(self.pages.free) + len(kept), kept=kept)
