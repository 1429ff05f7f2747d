"""What is mutated, and what must notice it: each target has sources and tests, those of lock-step among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from .mutator import Mutation, Source

LOCK_STEP = "conformance/blockwright_lab/mutation/lock_step.py::test_"


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the implementation whose mutants are looked for by the same tests."""

    name: str
    files: tuple[str, ...]
    """The sources that are mutated, by their path in the package."""
    tests: tuple[str, ...]
    """Files, folders or functions of tests, by their path in the tree."""
    left_out: Mapping[str, str]
    """What is not mutated: a function, a class, or ``guards of`` a function, with the reason."""


def paths(pattern: str, names: str) -> tuple[str, ...]:
    """Return a path for each of some names."""
    return tuple(pattern.format(name) for name in names.split())


SELF_CHECK = "the self-check: it is what finds other mutants, and is tested on states broken by hand"
CONSTRUCTOR = "checks of a constructor's arguments: no scope makes a wrong one; unit tests do"

CORE = Target(
    "core",
    paths(
        "core/{}.py",
        "store index group window state outcomes preconditions plans publication effects transitions laws manager "
        "request managers pool check journal block_hash access_order picture in_time/in_flight in_time/forks "
        "in_time/explain",
    )
    + paths("worker/{}.py", "rows replica"),
    (
        *paths(LOCK_STEP + "{}", "managers large_managers block_tables"),
        "tests/core",
        *paths("tests/paging/test_{}.py", "access_times eviction"),
        *paths("tests/device/test_{}.py", "inputs inputs_refusals inputs_staged"),
    ),
    {
        "core/outcomes.py Ask.__init__": "initial values, each written before it is read",
        "core/group.py GroupTables.state_block": "asked by workers that run a model, not by a scheduler; unit tests",
    },
)

TABLES = Target(
    "paging",
    paths(
        "paging/{}.py",
        "block_manager block_table computed_blocks cpu_gpu device_pool interfaces naive null_block pool_allocator "
        "prefix_caching sequence",
    ),
    (LOCK_STEP + "block_tables", "tests/paging"),
    {
        "paging/block_table.py BlockTable.check": SELF_CHECK,
        "paging/device_pool.py DevicePool.check_holders": SELF_CHECK,
        "paging/cpu_gpu.py CpuGpuBlockAllocator.check": SELF_CHECK,
        "paging/block_manager.py SelfAttnBlockSpaceManager.check": SELF_CHECK,
        "paging/block_manager.py SelfAttnBlockSpaceManager._has_idle_null": SELF_CHECK,
    },
)

OFFLOAD = Target(
    "offload",
    paths("offload/tiers/{}.py", "arc backend books chain entries ghosts keys lru manager moves ring transfers")
    + paths(
        "offload/{}.py",
        "breaker connector disk_index disk_slots hits host_pool identity jobs loads queue relay shared_manager stores "
        "transfers worker",
    ),
    (
        LOCK_STEP + "offloading",
        *paths("tests/offload/{}", "connector tiers transfers"),
        *paths(
            "tests/offload/stores/test_{}.py",
            "bad_places breaker disk disk_directory identity shared_books shared_manager stores_books",
        ),
    ),
    {
        "offload/tiers/backend.py SlotBackend.claim_place": "blocks that a disk has kept: the crash gate, tests",
        "offload/tiers/keys.py shown": "the beginning of a key in the text of an error",
        "guards of offload/tiers/chain.py OffloadChain.__init__": CONSTRUCTOR,
        "offload/tiers/backend.py checked_count": CONSTRUCTOR,
        "offload/connector.py OffloadingConnector.check": SELF_CHECK,
    },
)

MEDIA = {
    "checksum disk disk_files disk_folder disk_store envelope": "bytes on a disk: the gate of faults and unit tests",
    "fsspec_store shared_store valkey_client valkey_store": "bytes on a server: the gate of faults and unit tests",
    "failures": "names of failures in a log",
    "host host_copies host_moves host_streams media": "bytes in the memory of host and device: unit tests with tensors",
    "metrics results status": "counters and records that decide nothing",
    "__init__ shared": "names only",
}
"""Sources of offloading that are not mutated, and what checks them."""

TARGETS = (CORE, TABLES, OFFLOAD)


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
