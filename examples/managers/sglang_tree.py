"""A tree with locks under the kit: SGLang's `RadixCache` (0.5.23: match, lock, insert, evict), and its engine's table.

An entry of the tree is a page of slots. A request locks the path that it reads; what it computes is inserted, and where
the tree has the same already, the tree's pages stand in the table from then on.
"""

import copy
from array import array
from typing import Any, Self

import torch
from blockwright_conformance import Capabilities, Found, Observation
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class Pages:
    """The allocator that the tree gives pages back to."""

    device = "cpu"

    def __init__(self, count: int, size: int) -> None:
        self.size, self.free = size, list(range(1, count))

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        self.free += [slot // self.size for slot in slots[:: self.size].tolist()]


class TreeAdapter:
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"chunks", "preempt", "reset"}),
        features=frozenset({"caching", "extra keys"}),
        ways=frozenset({"forgets", "deduplicates"}),
    )
    errors, stale, follows_policy = (), (), False

    def __init__(self, config: Any) -> None:
        self.size = config.groups[0].block_size
        self.pages = Pages(config.num_blocks, self.size)
        self.tree = RadixCache.create_simulated(mock_allocator=self.pages, page_size=self.size)
        self.tokens, self.tables, self.locks = {}, {}, {}

    def copy(self) -> Self:
        return copy.deepcopy(self)

    def send(self, name: str, prefix: Any) -> None:
        self.tokens[name] = (str(prefix[0]), array("q", prefix[1]))

    def forget(self, name: str) -> None:
        self.tokens.pop(name, None)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.tokens[name][1].extend(tokens)

    def match(self, name: str, end: int) -> Any:
        extra, tokens = self.tokens[name]
        node = self.tree.match_prefix(MatchPrefixParams(RadixKey(tokens[:end], extra))).last_device_node
        slots = self.tree.path_device_indices(node) if node is not self.tree.root_node else torch.empty(0)
        return node, [slot // self.size for slot in slots[:: self.size].int().tolist()]

    def find(self, name: str) -> Found:
        _, hit = self.match(name, len(self.tokens[name][1]) - 1)
        return Found(len(hit) * self.size, (tuple(hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        end = computed + length + step.new
        if not computed:
            self.locks[name], self.tables[name] = self.match(name, length)
            self.tree.inc_lock_ref(self.locks[name])
        begin = len(self.tables[name])
        missing = -(-end // self.size) - begin
        if missing > len(self.pages.free):
            self.tree.evict(EvictParams(num_tokens=(missing - len(self.pages.free)) * self.size))
        if missing > len(self.pages.free):
            if not computed:
                self.free(name)
            return None
        new = tuple(self.pages.free.pop() for _ in range(missing))
        self.tables[name] += new
        self.insert(name, end)
        return (new,)

    def insert(self, name: str, end: int) -> None:
        extra, tokens = self.tokens[name]
        slots = torch.tensor([page * self.size + at for page in self.tables[name] for at in range(self.size)])
        there = self.tree.insert(InsertParams(RadixKey(tokens[:end], extra), slots)).prefix_len // self.size
        node, owned = self.match(name, end)
        self.pages.free += [page for page in self.tables[name][:there] if page not in owned]
        self.tables[name][: len(owned)] = owned
        self.tree.inc_lock_ref(node)
        self.tree.dec_lock_ref(self.locks[name])
        self.locks[name] = node

    def free(self, name: str) -> None:
        node, table = self.locks.pop(name, None), self.tables.pop(name, [])
        if node is not None:
            owned = self.tree.path_device_indices(node).tolist() if node is not self.tree.root_node else []
            self.pages.free += table[len(owned) // self.size :]
            self.tree.dec_lock_ref(node)

    def reset(self) -> bool:
        if not self.tables:
            self.tree.evict(EvictParams(num_tokens=self.tree.total_size()))
        return not self.tables

    def common_prefix(self, name: str, running: int) -> None: ...

    def observe(self, names: tuple[str, ...]) -> Observation:
        nodes, slots = list(self.tree.root_node.children.values()), []
        for node in nodes:
            nodes += node.children.values()
            slots += node.value.tolist() if node.lock_ref == 0 else []
        kept = tuple(slot // self.size for slot in slots[:: self.size])
        shown = tuple((tuple(self.tables[name]),) if name in self.tables else None for name in names)
        return Observation(shown, free=len(self.pages.free) + len(kept), kept=kept)

    def check(self) -> None: ...
