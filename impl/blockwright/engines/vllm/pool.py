"""The pool and the coordinator as vLLM's connectors know them: `blocks` by id, full hashes, holds, the free queue.

A connector may look at every block, hold one (`touch`) and let go of what it holds (`free_blocks`). Three things differ
inside, and are translated here:

- vLLM's `block_hash` is the whole hash and the group in four bytes. Blockwright's keys are the first 16 bytes of the
  hash, with the group beside them, so the whole hashes of what is published are kept, if a connector is bound.
- Blocks are published late. Before a connector reads a hash, everything that vLLM would have published is.
- vLLM links its block objects. Here a walk through the free blocks asks for one after the other, so that it costs
  only as much as is read of it.

What vLLM's objects offer to be read is offered here too, under the same names. What changes them is not, but for holds:
a name that is missing is an error that says so, and an `AttributeError` for those who ask (`hasattr`) before they read.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

from blockwright import KVCacheBlocks, KVCacheManager
from blockwright.engines.vllm.settings import Settings
from blockwright.errors import UnsupportedError


class MissingNameError(UnsupportedError, AttributeError):
    """vLLM's own object may have this name, and Blockwright's in its place does not."""

    def __init__(self, owner: str, name: str) -> None:
        """Say whose name is missing, and the remedy."""
        super().__init__(f"{owner}.{name} is not supported under Blockwright: unset BLOCKWRIGHT_VLLM")


class View:
    """What connectors read in place of one of vLLM's objects."""

    __slots__ = ()
    called = "view"
    replaces: tuple[str, str] | None = None
    """The class of vLLM's that this one passes for (`isinstance`): its module, and its name in it."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class that this object passes for."""
        if self.replaces is None:
            return type(self)
        module, name = self.replaces
        return getattr(importlib.import_module(module), name)

    def __getattr__(self, name: str) -> Any:
        """Refuse what vLLM's object may have and this one does not.

        Raises:
            MissingNameError: always, but for names that Python itself asks for.
        """
        # Python looks for protocols by names like these; to it an object without one is no error of the connector's.
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingNameError(self.called, name)


class Block(View):
    """A view of one block.

    Attributes:
        block_id: id within the pool; -1 before the first and behind the last free block.
    """

    __slots__ = ("_pool", "block_id")
    called = "block"
    replaces = "vllm.v1.core.kv_cache_utils", "KVCacheBlock"

    def __init__(self, pool: Pool, block_id: int) -> None:
        """Look at a block of a pool."""
        self._pool, self.block_id = pool, block_id

    @property
    def is_null(self) -> bool:
        """Whether it is the null block."""
        return self.block_id == 0

    @property
    def ref_cnt(self) -> int:
        """Number of holders now."""
        return self._pool.core.ref_count(self.block_id)

    @property
    def block_hash(self) -> bytes | None:
        """The hash of the prefix that it is published under and its group in four bytes, or None."""
        return self._pool.hash_of(self.block_id)

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens that the hash stands for: whole blocks are published, and nothing less. None if not published."""
        if self.block_hash is None:
            return None
        return self._pool.sizes[self._pool.core.block_group(self.block_id) or 0]

    @property
    def next_free_block(self) -> Block | None:
        """What is taken after this free block, at last the queue's end; None of a block that is held."""
        is_free = self.ref_cnt == 0 and not self.is_null
        return self._pool.free_block_queue.after(self.block_id) if is_free else None

    def __eq__(self, other: object) -> bool:
        """Compare pool and id."""
        # `isinstance` would say vLLM's class, see `__class__`.
        ours: Any = other  # its class says vLLM's
        return issubclass(type(other), Block) and ours.block_id == self.block_id and ours._pool is self._pool

    def __hash__(self) -> int:
        """Hash by id."""
        return hash(self.block_id)


class _End(Block):
    """Before the first free block, or behind the last."""

    __slots__ = ()
    ref_cnt = 0
    is_null = False
    block_hash = block_hash_num_tokens = None

    @property
    def next_free_block(self) -> Block | None:
        """The first free block, if this is the end before it."""
        queue = self._pool.free_block_queue
        return queue.after(0) if self is queue.fake_free_list_head else None


class _Blocks(Sequence[Block]):
    """All blocks by id, made when they are asked for."""

    __slots__ = ("_pool",)

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.core.num_blocks

    def __getitem__(self, block_id: Any) -> Any:
        ids = range(len(self))[block_id]
        return Block(self._pool, ids) if isinstance(ids, int) else [Block(self._pool, each) for each in ids]


class _ByHash(View):
    """The blocks that can be found, by the hash of their prefix and their group."""

    __slots__ = ("_pool",)
    called = "block_pool.cached_block_hash_to_block"
    replaces = "vllm.v1.core.block_pool", "BlockHashToBlockMap"

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def get_one_block(self, key: bytes) -> Block | None:
        """Return a block that is published under a hash with its group in four bytes, None if there is none."""
        found = self._pool.get_cached_block(key[:-4], [int.from_bytes(key[-4:], "big")])
        return None if found is None else found[0]

    def contain(self, key: bytes, block_id: int) -> bool:
        """Return whether a block is published under this hash."""
        return self._pool.hash_of(block_id) == key

    def __len__(self) -> int:
        """Return how many hashes can be found. O(num_blocks)."""
        self._pool.publish()
        core = self._pool.core
        found = zip(core.block_keys(), core.block_groups(), strict=True)
        # A prefix in two blocks is one hash; parts of blocks have none of vLLM's.
        return len({each for number, each in enumerate(found) if each[0] is not None and not core.has_tail(number)})


class _FreeQueue(View):
    """The free blocks, next to be taken first.

    Attributes:
        fake_free_list_head, fake_free_list_tail: its ends, as vLLM links them.
    """

    __slots__ = ("_pool", "fake_free_list_head", "fake_free_list_tail")
    called = "block_pool.free_block_queue"
    replaces = "vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue"

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.fake_free_list_head, self.fake_free_list_tail = _End(pool, -1), _End(pool, -1)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the queue."""
        return self._pool.core.num_free

    def get_all_free_blocks(self) -> list[Block]:
        """Return all of them. O(free blocks)."""
        return list(self.iter_blocks_after(None))

    def after(self, block_id: int) -> Block:
        """Return what is taken after a free block, or first (0); at last the end."""
        found = self._pool.core.free_block_after(block_id)
        return self.fake_free_list_tail if found is None else Block(self._pool, found)

    def iter_blocks_after(self, cursor: Any) -> Iterator[Block]:
        """Walk from the block after a free one, or from the first; stops after the last. O(blocks read)."""
        pool = self._pool
        pool.publish()
        block = pool.core.free_block_after(0 if cursor is None else max(0, cursor.block_id))
        while block is not None:
            yield Block(pool, block)
            block = pool.core.free_block_after(block)


class Blocks(View):
    """The blocks of one request, a list per group, as a connector is told of them."""

    __slots__ = ("_pool", "own")
    called = "KVCacheBlocks"
    replaces = "vllm.v1.core.kv_cache_manager", "KVCacheBlocks"

    def __init__(self, pool: Pool, own: KVCacheBlocks) -> None:
        """Show blocks as those of a pool."""
        self._pool, self.own = pool, own

    @property
    def blocks(self) -> tuple[list[Block], ...]:
        """Views of the blocks, a list per group. O(blocks)."""
        return tuple([[Block(self._pool, int(block)) for block in ids] for ids in self.own.ids])

    def __getattr__(self, name: str) -> Any:
        """Read ids of the blocks themselves."""
        if name in ("get_block_ids", "get_unhashed_block_ids", "get_unhashed_block_ids_all_groups", "ids"):
            return getattr(self.own, name)
        return super().__getattr__(name)

    def new_empty(self) -> Blocks:
        """Return an object of the same groups without blocks."""
        return Blocks(self._pool, self.own.new_empty())

    def __add__(self, other: Any) -> Blocks:
        """Return the blocks of both, group by group."""
        return Blocks(self._pool, self.own + getattr(other, "own", other))


class ByRequest(View, Mapping[str, Any]):
    """What vLLM keeps in a dictionary by the ids of the requests that run, looked up when it is read."""

    __slots__ = ("_names", "_read")

    called = "single_type_manager.req_to_blocks"

    def __init__(self, names: Callable[[], Collection[str]], read: Callable[[str], Any]) -> None:
        """Have `read(id)` of those in `names()`."""
        self._names, self._read = names, read

    def __getitem__(self, request_id: str) -> Any:
        """Return what is kept of a request that runs."""
        if request_id not in self._names():
            raise KeyError(request_id)
        return self._read(request_id)

    def __iter__(self) -> Iterator[str]:
        """Go through the requests that run."""
        return iter(list(self._names()))

    def __len__(self) -> int:
        """Return how many requests run."""
        return len(self._names())


class Pool(View):
    """What a connector is bound to.

    Attributes:
        core: the pool itself.
        sizes: tokens per block of each group.
        hash_block_size: tokens of a hash, None without prefix caching.
        blocks: all blocks, by id.
        free_block_queue: the free ones.
        cached_block_hash_to_block: those that can be found.
        thread: the one that the scheduler runs in. Another one may look, and then nothing is published for it.
        cached_block_hashes_by_block: further hashes of a block by its id: none, since hits end on whole blocks.
        metrics_collector: what vLLM samples the lives of blocks with (``--kv-cache-metrics``), or None.
    """

    called = "block_pool"
    replaces = "vllm.v1.core.block_pool", "BlockPool"

    def __init__(
        self, settings: Settings, core: KVCacheManager, publish: Callable[[], None], metrics_collector: Any
    ) -> None:
        """Stand in front of a manager's pool; nothing is kept before `keep_hashes`."""
        self.core, self.sizes, self.hash_block_size = core.block_pool, settings.sizes, settings.hash_unit
        self._publish = publish
        self.metrics_collector = metrics_collector
        self.blocks = _Blocks(self)
        self.free_block_queue = _FreeQueue(self)
        self.cached_block_hash_to_block = _ByHash(self)
        self.thread = threading.get_ident()
        self.cached_block_hashes_by_block: Mapping[int, tuple[bytes, ...]] = MappingProxyType({})
        self._hashes: dict[bytes, bytes] | None = None

    def publish(self) -> None:
        """Publish what vLLM would have published by now, if it is the scheduler's thread that asks."""
        if threading.get_ident() == self.thread:
            self._publish()

    def keep_hashes(self) -> None:
        """Keep the hashes of what is published from now on, since a connector is bound."""
        if self._hashes is None:
            self._hashes = {}

    @property
    def keeps_hashes(self) -> bool:
        """Whether a connector may ask for hashes."""
        return self._hashes is not None

    def note(self, hashes: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep hashes by their keys, which are about to be published, or are already."""
        # A key may begin another hash, which looks ahead. O(hashes), and O(num_blocks) now and then.
        kept = self._hashes
        if kept is None:
            return
        for key, each in hashes:
            # The core knows 16 bytes of a hash, and connectors want all of them.
            kept[key[:16]] = each
        # Nobody says when a block is lost: what is published no more is dropped once as many again have come.
        if len(kept) > 2 * self.core.num_blocks + 1024:
            live = [key for key in self.core.block_keys() if key in kept]
            self._hashes = {key: kept[key] for key in live if key is not None}

    def hash_of(self, block_id: int) -> bytes | None:
        """Return the hash of a block as vLLM writes it, None if it is not published as a whole."""
        self.publish()
        key = self.core.block_key(block_id)
        if key is None or self.core.has_tail(block_id):
            return None
        if self._hashes is None:
            raise UnsupportedError("block_hash: no connector was bound when the scheduler was made")
        group = self.core.block_group(block_id) or 0
        known = self._hashes.get(key)
        if known is None and threading.get_ident() != self.thread:  # published a moment ago
            return None
        return self._hashes[key] + group.to_bytes(4, "big")

    def carries(self, block_id: int, block_hash: bytes, group: int) -> bool:
        """Return whether a block is published under a hash of a group now; nothing more is published for it."""
        return self.core.block_key(block_id) == block_hash[:16] and self.core.block_group(block_id) == group

    @property
    def null_block(self) -> Block:
        """The null block, id 0."""
        return Block(self, 0)

    @property
    def enable_caching(self) -> bool:
        """Whether blocks are published at all."""
        return self.core.enable_caching

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks, the null block included."""
        return self.core.num_blocks

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be taken."""
        return self.core.num_free

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Return if none of the blocks can be found.

        Raises:
            UnsupportedError: one of them can, and blocks are not forgotten one by one.
        """
        self.publish()
        if found := [block_id for block_id in block_ids if self.core.is_published(block_id)]:
            raise UnsupportedError(
                f"block_pool.evict_blocks({found[0]}): a block that can be found is not forgotten alone under "
                "Blockwright: reset the prefix cache, or unset BLOCKWRIGHT_VLLM"
            )

    def is_block_writable(self, block: Any) -> bool:
        """Return whether only one holds a block, and it cannot be found."""
        return not block.is_null and block.ref_cnt == 1 and block.block_hash is None

    def get_usage(self) -> float:
        """Return the share of blocks that are held."""
        return self.core.get_usage()

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[Block] | None:
        """Return for each group a block that holds the prefix with this hash; None if a group has none."""
        # With a unit and EAGLE none is found, since keys look ahead.
        if not self.core.enable_caching:
            return None
        self.publish()
        found = self.core.get_cached_block(block_hash, kv_cache_group_ids)
        return None if found is None else [Block(self, block.block_id) for block in found]

    def touch(self, blocks: Iterable[Any]) -> None:
        """Hold each block once more."""
        ids = [block.block_id for block in blocks]
        self.core.touch(ids)
        if self.metrics_collector is not None:
            self.count(hits=ids)

    def count(self, new: Iterable[int] = (), hits: Iterable[int] = ()) -> None:
        """Tell the collector of blocks that were just taken, and of those hit."""
        # vLLM counts any block that is taken again as evicted. Here only those are that were cached.
        collector = self.metrics_collector
        evicted = {each.block_id for each in self.core.take_evictions()}
        for block_id in new:
            if block_id in evicted:
                collector.on_block_evicted(Block(self, block_id))
            # Without content its last life was no cached one: it is forgotten, and no eviction.
            elif block_id:
                collector.block_metrics.pop(block_id, None)
            if block_id:
                collector.on_block_allocated(Block(self, block_id))
        for block_id in hits:
            if block_id:
                collector.on_block_accessed(Block(self, block_id))

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Let go of each block once; the first one let go is evicted first."""
        self.core.free_blocks([block.block_id for block in ordered_blocks])


@HybridKVCacheCoordinator.register
class _Coordinator(View, SimpleNamespace):
    """vLLM's coordinator; some connectors ask whether it is one of several groups."""

    called = "kv_cache_manager.coordinator"


class _Group(View, SimpleNamespace):
    """vLLM's manager of one group."""

    called = "single_type_manager"


def coordinator_of(manager: Any, settings: Settings, hits: Callable[..., Any], demand: Callable[..., int]) -> Any:
    """Return what takes the place of vLLM's coordinator in a manager; `hits` and `demand` are its counts."""
    pool, names = manager.block_pool, manager.running.keys

    def blocks_of(group: int, name: str) -> Any:
        return manager.get_blocks(name).blocks[group]

    def num_published(group: int, name: str) -> int:
        return int(manager.core.num_published(name)[group])

    groups = zip(settings.sizes, settings.declared.kv_cache_groups, strict=True)
    return _Coordinator(
        single_type_managers=tuple(
            _Group(
                block_size=size,
                kv_cache_spec=group.kv_cache_spec,
                kv_cache_group_id=number,
                block_pool=pool,
                enable_caching=settings.caches,
                req_to_blocks=ByRequest(names, partial(blocks_of, number)),
                num_cached_block=ByRequest(names, partial(num_published, number)),
            )
            for number, (size, group) in enumerate(groups)
        ),
        block_pool=pool,
        kv_cache_config=settings.declared,
        enable_caching=settings.caches,
        group_block_sizes=settings.sizes,
        scheduler_block_size=settings.whole,
        retention_interval=settings.interval,
        get_blocks=lambda name: manager.get_blocks(name).blocks,
        enable_partial_hash_hits=settings.has_states and settings.match_unit is not None,
        full_attention_group_id=next((number for number, spec in enumerate(settings.specs) if spec.reads_all), None),
        get_num_blocks_to_allocate=demand,
        find_longest_cache_hit_per_group=hits,
    )


class NoBlocks(Blocks):
    """What most steps answer: the scheduler asks every answer for its ids, and this one costs it least."""

    __slots__ = ()

    def get_block_ids(self, allow_none: bool = False, *, group_ids: Any = None) -> tuple[list[int], ...] | None:
        """Return no ids, a list per group; None if `allow_none`."""
        return None if allow_none else tuple([] for _ in (self.own.ids if group_ids is None else group_ids))
