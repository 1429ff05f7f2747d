"""Adapters on variants of the implementation, set up in ways that a scope does not cover.

`adapter_on` puts an adapter on another copy of the package. The others are the implementation's adapter with another
hasher, or with options of the manager, and with the laws that go with them watched at every call:

    HASH-1    one digest stands for one prefix (in every adapter)
    STAT-1    the statistics count exactly the lookups of requests admitted since they were last taken, and apart those
              of requests that go on
    DEMAND-1  the blocks that a manager of one kind says are missing are those that growth takes, never below none
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Self

from blockwright_conformance.kv_cache.adapter import Found, Observation
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter, Shared, errors_of, hash_unit
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import wanted
from blockwright_spec.manager.state import NULL, Config, Hit, Running, Table, heads, span
from blockwright_spec.reads import Prefix, drafts_beside


class LawError(AssertionError):
    """A law that an adapter watches is broken; `law` is its id."""

    def __init__(self, law: str, fault: str) -> None:
        super().__init__(f"{law}: {fault}")
        self.law = law


class VariantAdapter(BlockwrightAdapter):
    """The implementation with a hasher of a known secret, so that every run is the same."""

    units: ClassVar[int] = 1
    """Hashed units per block: requests are hashed with blocks this much smaller than the manager's."""

    def hasher(self, lookahead: int) -> Any:
        return self.package.SipHasher(bytes(range(16)), key_lookahead=lookahead)

    def sharing(self, config: Config) -> Shared:
        """Return what all copies of this adapter share: the hasher, too."""
        lookahead = config.added.key_lookahead
        make = partial(self.package.Request, hasher=self.hasher(lookahead))
        return Shared(hash_unit(config) // self.units, make, lookahead)


class FineAdapter(VariantAdapter):
    """Requests hashed in units of half a block: a block's key is that of its last unit."""

    units = 2


class SplitAdapter(VariantAdapter):
    """Two ranks that share a block's tokens: the layer's own blocks are half as wide as the manager's."""

    options: ClassVar[dict[str, Any]] = {"dcp_world_size": 2}

    def __init__(self, config: Config) -> None:
        halves = tuple(replace(group, block_size=group.block_size // 2) for group in config.groups)
        super().__init__(replace(config, groups=halves))


class CollidingAdapter(VariantAdapter):
    """Every key equals every other: only the comparison of tokens distinguishes prefixes. Keys are not compared."""

    options: ClassVar[dict[str, Any]] = {"verify_tokens": True}

    def hasher(self, lookahead: int) -> Any:
        return self.package.FunctionHasher(lambda parent, block: bytes(16))

    def sharing(self, config: Config) -> Shared:
        """Return the shared record, without looking at digests."""
        shared = super().sharing(config)
        shared.learn = lambda request, prefix: None  # type: ignore[method-assign]
        return shared

    def observe(self, names: tuple[str, ...]) -> Observation:
        self.shared.prefixes = {key: (0, ()) for key in self.manager.block_pool.block_keys() if key is not None}
        return super().observe(names)._replace(keys=None)


class ToldAdapter(VariantAdapter):
    """With evictions and statistics, in scopes with events."""

    options: ClassVar[dict[str, Any]] = {"log_stats": True, "track_evictions": True}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        self.was_reset = False
        self.lookups: dict[str, tuple[int, int]] = {}
        self.admitted: frozenset[str] = frozenset()

    def hasher(self, lookahead: int) -> Any:
        """Return a hasher with keys that may leave the process."""
        return self.package.Sha256Hasher(b"", lookahead)

    def copy(self) -> Self:
        twin = super().copy()
        twin.config, twin.was_reset = self.config, self.was_reset
        twin.lookups, twin.admitted = self.lookups.copy(), self.admitted
        return twin

    def observe(self, names: tuple[str, ...]) -> Observation:
        """Show the whole state, after asking for missing blocks."""
        shown = super().observe(names)
        for name, tables in zip(names, shown.tables, strict=True):
            for group, table in enumerate(tables or ()):
                self.demand(name, group, len(table))
        return shown

    def reset(self) -> bool:
        """Reset the prefix cache, and remember it if it was."""
        happened = super().reset()
        self.was_reset |= happened
        return happened

    def find(self, name: str) -> Found:
        """Look a request up; the statistics count it once it is admitted, and apart if it was before."""
        self.owned(name)
        found = super().find(name)
        self.counted(0, 0)
        self.lookups[name] = len(self.prefixes[name][1]), found.length
        if name not in self.manager.request_ids():
            for group, table in enumerate(heads(self.config, Hit(found.length, found.tables))):
                self.demand(name, group, 0, table)
        return found

    def given(self, name: str, blocks: Any) -> tuple[Table, ...]:
        """Take blocks; those that admit a request count its lookup."""
        if (lookup := self.lookups.pop(name, None)) is not None:
            self.counted(*lookup, apart=name in self.admitted)
        self.admitted |= {name}
        return super().given(name, blocks)

    def forget(self, name: str) -> None:
        super().forget(name)
        self.lookups.pop(name, None)
        self.admitted -= {name}

    def fork(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        """Fork a request: the child goes on, too."""
        happened = super().fork(name, child, prefix, computed)
        self.admitted |= {child} if happened and prefix == self.prefixes[name] else set()
        return happened

    def counted(self, tokens: int, hits: int, apart: bool = False) -> None:
        """Demand that the statistics count a lookup of some tokens, or none, and are drained by that."""
        own, none = (min(tokens, 1), tokens, hits), (0, 0, 0)
        wants = (self.was_reset, *none, *own) if apart else (self.was_reset, *own, *none)
        self.was_reset = False
        stats = self.manager.make_prefix_cache_stats()
        if stats is None or tuple(stats) != wants:
            raise LawError("STAT-1", f"expected {wants}, the statistics say {stats}")

    def demand(self, name: str, number: int, held: int, hits: Table = ()) -> None:
        """Ask the manager of a group for the missing blocks for every number of slots, after the hits."""
        config, group, held = self.config, self.config.groups[number], held + len(hits)
        begin, is_new = held * span(config, group), name not in self.manager.request_ids()
        states = drafts_beside(group.kind) if is_new else 0
        new = Running((0, ()), 0, 0, 0, (), ())
        counts = self.manager.block_pool.ref_counts()
        free = sum(block != NULL and counts[block] == 0 for block in hits)
        for slots in range(config.max_model_len + 1):
            takes = sum(wanted(config, group, held, new, begin, Step(slots - begin))) + states + free
            missing = self.manager.managers[number].get_num_blocks_to_allocate(name, slots, hits)
            if missing != takes:
                which = f"{slots} slots of {name} in group {number}"
                raise LawError("DEMAND-1", f"{missing} missing for {which}, growth takes {takes}")


def adapter_on(package: ModuleType, base: type[BlockwrightAdapter] = VariantAdapter) -> type[BlockwrightAdapter]:
    """Return an adapter on another copy of the package."""
    names = {"package": package, "errors": errors_of(package), "stale": (package.errors.StaleHitError,)}
    return type(base.__name__, (base,), names)
