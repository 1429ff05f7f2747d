"""What is mutated, and what must notice it: each target has sources, places where they are at work, and unit tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

from blockwright_conformance.block_tables.scopes import PAGED_PR
from blockwright_conformance.kv_cache.scopes import of_groups, scope, strings
from blockwright_conformance.offload.scopes import FIRST, KEYS, SECOND, TierScope, chain_scope, lists, request
from blockwright_spec.reads import Chunked, Full, Kind, Mamba, Prefix, Sliding

from ..known_bugs import offload_places, paged_places, places
from ..known_bugs.instrumented import CrowdedAdapter, KeylessAdapter, ToldAdapter, ToldFineAdapter
from ..known_bugs.known_bug import Place, Trial
from ..trials import (
    alone_trials,
    call_trials,
    check_trials,
    edge_trials,
    lone_trials,
    name_trials,
    paged_trials,
    part_trials,
    replica_oddities,
    replica_trials,
    running_trials,
    store_model,
    store_trials,
    tier_oddities,
    tier_trials,
    trials,
    value_trials,
    worker_trials,
)
from ..trials.handed_out import handed_out
from . import world_walks
from .mutator import Mutation, Source
from .walks import WALKS


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the implementation whose mutants are looked for in the same places and by the same tests."""

    name: str
    files: tuple[str, ...]
    """The sources that are mutated, by their path in the package."""
    places: tuple[Place | Trial, ...]
    """Where a mutant may show itself, cheap ones first."""
    tests: tuple[str, ...]
    """Files of unit tests, for what no place executes or notices."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is not mutated: a function, a class, or ``guards of`` a function, with the reason."""


def title_of(where: Place | Trial) -> str:
    """Return the name of a place."""
    if callable(where):
        return f"trial: {where.__name__}"
    adapter = getattr(where, "adapter", None)
    name = adapter.__name__.removesuffix("Adapter").lower() if adapter else "variant"
    config = getattr(where.scope, "config", None)
    uncached = "" if getattr(config, "caching", True) else ", uncached"
    eagle = ", eagle" if getattr(config, "eagle", False) else ""
    return where.title + uncached + eagle + (f", {name}" if name != "variant" else "")


def paths(pattern: str, names: str) -> tuple[str, ...]:
    """Return a path for each of some names."""
    return tuple(pattern.format(name) for name in names.split())


def named(module: ModuleType, names: str) -> tuple[Place | Trial, ...]:
    """Return the places and trials of a module that have some names."""
    return tuple(getattr(module, name) for name in names.split())


# --- the core

FEW: tuple[Prefix, ...] = ((0, (0,)), (0, (0, 0)), (0, (1, 1)))
SINGLE: tuple[Kind, ...] = (Full(), Sliding(2), Chunked(2), Mamba())
PAIRS: tuple[tuple[tuple[Kind, int], ...], ...] = (((Full(), 2), (Sliding(2), 1)), ((Full(), 1), (Mamba(), 2)))
LONG: dict[str, Any] = {"prompts": ((0, (0,) * 5), (0, (0, 0, 1, 1, 1))), "max_model_len": 5}
ONES: dict[str, Any] = {"prompts": strings(1, 1, 3), "max_model_len": 4}
TWOS: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 4}
QUIET: dict[str, Any] = {"slots": 1, "caching": False}

CORE = Target(
    "core",
    paths(
        "core/{}.py",
        "store index group window state outcomes preconditions plans publication effects transitions laws manager "
        "request managers pool check journal in_time/in_flight in_time/forks in_time/explain",
    ),
    (
        *named(name_trials, "arguments shown bare_pool packing"),
        *named(check_trials, "self_checks"),
        *named(call_trials, "refusals pins batches plans keyless"),
        *named(alone_trials, "alone"),
        *named(store_trials, "explained index crowds stale_plans lined_up"),
        *named(trials, "keys pool"),
        *named(store_model, "store_beside_model store_alone"),
        *named(running_trials, "running_refusals running_plans running_pins running_facts running_checks"),
        *named(value_trials, "peaks refused_counts requests copies manager_answers probes"),
        *edge_trials.TRIALS,
        *lone_trials.TRIALS,
        handed_out,
        *WALKS,
        *(where for where in vars(places).values() if isinstance(where, Place)),
        *(
            Place(scope(kind, 1, "mutants, explained", 4, 4, "explain reset", prompts=strings(1, 2, 3)))
            for kind in SINGLE
        ),
        *(Place(of_groups(groups, "mutants, explained", 12, 5, "explain", **LONG)) for groups in PAIRS),
        Place(scope(Full(), 2, "mutants, told", 4, 5, "", lookaheads=(0, 2), slots=1), ToldAdapter),
        Place(scope(Full(), 2, "mutants, told in fine units", 4, 5, "", slots=1), ToldFineAdapter),
        Place(scope(Sliding(2), 1, "mutants, told", 4, 4, ""), ToldAdapter),
        Place(scope(Mamba(), 2, "mutants, told", 4, 5, "chunks", slots=1), ToldAdapter),
        Place(scope(Sliding(2), 2, "mutants, quiet", 5, 6, "chunks batch", lookaheads=(0, 1, 2), **QUIET)),
        Place(scope(Sliding(3), 2, "mutants, quiet", 5, 7, "chunks batch", slots=1, lookaheads=(0, 2))),
        Place(scope(Chunked(4), 2, "mutants, quiet", 6, 8, "chunks batch", lookaheads=(0, 2), **QUIET)),
        Place(scope(Chunked(2), 2, "mutants, quiet", 5, 6, "chunks batch", lookaheads=(0, 2), **QUIET)),
        Place(scope(Chunked(4), 2, "mutants, long", 5, 8, "", slots=1, prompts=strings(1, 7, 7))),
        Place(scope(Sliding(2), 1, "mutants, eagle", 4, 5, "", eagle=True)),
        Place(scope(Sliding(2), 2, "mutants, drafts", 5, 5, "", slots=1, drafts=2, max_model_len=7)),
        Place(scope(Full(), 2, "mutants, quiet batches", 5, 5, "chunks batch", lookaheads=(0, 1), caching=False)),
        Place(scope(Sliding(2), 1, "mutants, keyless", 4, 4, "chunks batch", caching=False), KeylessAdapter),
        Place(scope(Full(), 2, "mutants, forked", 5, 4, "fork batch plan", prompts=strings(1, 3, 3), slots=3)),
        Place(of_groups(PAIRS[1], "mutants, forked", 7, 3, "fork", prompts=strings(1, 2, 2), caching=False)),
        Place(scope(Full(), 1, "mutants, held", 4, 3, "hold reset trim adopt")),
        Place(scope(Mamba(), 1, "mutants", 4, 4, "chunks batch")),
        Place(scope(Mamba(), 1, "mutants, put off", 4, 3, "later chunks")),
        Place(scope(Chunked(4), 2, "mutants", 4, 6, "chunks trim")),
        paged_places.EVICTIONS,
        Place(of_groups(PAIRS[1], "mutants, wrong calls", 7, 3, "misuse load", in_flight=1, drafts=1, slots=1, **TWOS)),
        Place(scope(Mamba(1), 2, "mutants, forked", 6, 3, "fork misuse", **TWOS)),
        Place(scope(Mamba(), 2, "mutants", 4, 5, "chunks misuse preempt batch trim", caching=False)),
        Place(scope(Full(), 2, "mutants, two forked", 5, 3, "fork", prompts=strings(1, 1, 1))),
        Place(of_groups(PAIRS[0], "mutants, admitted", 7, 4, "whole plan", **ONES, watermark=1)),
        Place(scope(Sliding(2), 1, "mutants, drafts", 5, 4, "batch", lookaheads=(0, 1), drafts=1, max_model_len=5)),
        Place(scope(Sliding(3), 2, "mutants, wrong calls", 4, 5, "chunks misuse trim")),
        Place(
            scope(Full(), 1, "mutants, crowded", 4, 3, "reset", prompts=strings(2, 1, 2), outputs=(0, 1)),
            CrowdedAdapter,
        ),
        Place(scope(Full(), 1, "mutants, wrong calls", 4, 3, "chunks misuse preempt", prompts=FEW)),
        Place(of_groups(PAIRS[0], "mutants, forked", 7, 3, "fork", prompts=strings(1, 1, 1))),
        Place(scope(Mamba(), 1, "mutants, wrong calls", 4, 3, "chunks misuse trim")),
        paged_places.ACCESS,
        Place(scope(Mamba(1), 1, "mutants, wrong calls", 7, 3, "misuse", in_flight=2, drafts=1, slots=1, **TWOS)),
    ),
    paths(
        "tests/core/test_{}.py",
        "admission bad_input check config drafts encoder evictions explain forks groups hashing integers loads manager "
        "managers plans pool pool_keys pool_model results slots step_integers time windows",
    ),
    {
        "core/outcomes.py Ask.__init__": "initial values, each written before it is read",
        "core/group.py GroupTables.state_block": "asked by workers that run a model, not by a scheduler; unit tests",
    },
)

PARTS = Target(
    "parts",
    paths("{}.py", "core/block_hash core/access_order worker/rows worker/replica"),
    (
        *named(part_trials, "digests order losses handles"),
        *replica_trials.WALKS,
        *replica_oddities.ODDITIES,
        *worker_trials.WALKS,
        *named(trials, "keys"),
        *named(store_trials, "crowds"),
        *named(store_model, "store_alone"),
        *named(call_trials, "batches refusals"),
        places.TOLD,
    ),
    paths(
        "tests/core/test_{}.py",
        "evictions hashing integers odd_hashers pool pool_keys pool_model siphash slots step_integers",
    )
    + paths("tests/device/test_{}.py", "inputs_refusals inputs_staged inputs step_refusals"),
)

# --- block tables

SELF_CHECK = "the self-check: it is what finds other mutants, and is tested on states broken by hand"

TABLES = Target(
    "paging",
    paths(
        "paging/{}.py",
        "block_manager block_table computed_blocks cpu_gpu device_pool interfaces naive null_block pool_allocator "
        "prefix_caching sequence",
    ),
    (
        *paged_trials.TRIALS,
        *named(paged_places, "EVICTIONS appends_under_a_window comes_back FORKS SWAPS NAIVE RETURNS ACCESS"),
        *(Place(each) for each in PAGED_PR),
    ),
    paths(
        "tests/paging/test_{}.py",
        "access_times adoption allocators bare_interfaces beam_search block_manager block_table blocks_alone "
        "device_books eviction ids_told interfaces manager_books nothing_lost swap table_books walk",
    ),
    {
        "paging/block_table.py BlockTable.check": SELF_CHECK,
        "paging/device_pool.py DevicePool.check_holders": SELF_CHECK,
        "paging/cpu_gpu.py CpuGpuBlockAllocator.check": SELF_CHECK,
        "paging/block_manager.py SelfAttnBlockSpaceManager.check": SELF_CHECK,
        "paging/block_manager.py SelfAttnBlockSpaceManager._has_idle_null": SELF_CHECK,
    },
)

# --- offloading: the books of tiers, and what moves blocks between the device and them

WIDE = (request(2, (KEYS[0], 0)), request(2, (KEYS[1], 1)))
"""Two blocks, each of which spans two of the device."""
CONSTRUCTOR = "checks of a constructor's arguments: no scope makes a wrong one; unit tests do"

TIERS = Target(
    "offload",
    paths("offload/tiers/{}.py", "arc backend books chain entries ghosts keys lru manager moves ring transfers"),
    (
        *tier_oddities.ODDITIES,
        *tier_trials.TRIALS,
        *world_walks.CHAINS,
        *named(offload_places, "NEAR SHARED BELOW"),
        Place(TierScope("mutants, silent", "LRU silent", 1, lists(2, 1))),
        Place(chain_scope("mutants, no room", (2, 0), reserve=(1,), under_way=1)),
        Place(TierScope("mutants, foreign", "LRU foreign", 1, (*lists(2, 1), KEYS[:2]), recovered=KEYS[1:2])),
        Place(chain_scope("mutants, span 2", (1, 1), 4, span=2, stores=WIDE, loads=WIDE, under_way=2)),
        Place(
            chain_scope(
                "mutants, handed out late", (1, 1), through=True, frees=True, loads=(FIRST[:1],), eager=False,
                under_way=2,
            )
        ),
        Place(chain_scope("mutants, wrong calls", (2, 1), reserve=(0,), misuse=True, most=2)),
        *world_walks.TIERS,
        Place(
            chain_scope(
                "mutants, whole requests", (2, 1), reserve=(1,), stores=(FIRST, SECOND), loads=(FIRST,), under_way=1
            )
        ),
        *named(offload_places, "OVER BACK TIER"),
        Place(TierScope("mutants, ARC", "ARC", 1, (*lists(3, 1), KEYS[:2]))),
    ),
    paths(
        "tests/offload/test_{}.py",
        "arc backends bad_input bad_places chain tiers disk disk_directory shared_manager host",
    ),
    {
        "offload/tiers/backend.py SlotBackend.claim_place": "blocks that a disk has kept: the crash gate, tests",
        "offload/tiers/keys.py shown": "the beginning of a key in the text of an error",
        "guards of offload/tiers/chain.py OffloadChain.__init__": CONSTRUCTOR,
        "offload/tiers/backend.py checked_count": CONSTRUCTOR,
    },
)  # fmt: skip

MEDIA = {
    "checksum disk disk_files disk_folder disk_store envelope": "bytes on a disk: the gate of faults and unit tests",
    "fsspec_store shared_store valkey_client valkey_store": "bytes on a server: the gate of faults and unit tests",
    "failures": "names of failures in a log",
    "host host_copies host_moves host_streams media": "bytes in the memory of host and device: unit tests with tensors",
    "metrics results status": "counters and records that decide nothing",
    "__init__ shared": "names only",
}
"""Sources of offloading that are not mutated, and what checks them."""

CONNECTOR = Target(
    "connector",
    paths(
        "offload/{}.py",
        "breaker connector disk_index disk_slots hits host_pool identity jobs loads queue relay shared_manager stores "
        "transfers worker",
    ),
    (),  # no scope calls the connector, its jobs or its queue
    paths(
        "tests/offload/test_{}.py",
        "connector_books connector_calls connector jobs queue relay worker worker_books identity breaker shared_books "
        "shared_manager stores_books disk disk_directory bad_places bad_input chain host",
    ),
    {"offload/connector.py OffloadingConnector.check": "the self-check: it is tested on states broken by hand"},
)

TARGETS = (CORE, PARTS, TABLES, TIERS, CONNECTOR)


def target(name: str) -> Target:
    """Return a target by its name."""
    return next(each for each in TARGETS if each.name == name)


@cache
def target_of(file: str) -> Target:
    """Return the target that a source belongs to."""
    return next(each for each in TARGETS if file in each.files)


@cache
def parsed(file: str) -> Source:
    """Return a source, parsed once per process."""
    return Source(file, target_of(file).left_out)


def all_mutations() -> list[Mutation]:
    """Return every mutant of every target, in the order of the sources."""
    return [mutation for each in TARGETS for file in each.files for mutation in parsed(file).mutations]
