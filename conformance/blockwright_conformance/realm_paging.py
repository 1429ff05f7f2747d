"""Mutants of the block tables with copy-on-write: their sources, and where they are at work."""

from . import paged_places, paged_trials
from .equivalents_paging import EQUIVALENT, RULES
from .exhibit import TablesPlace, Where
from .mutant_realm import Realm
from .paged_scopes import PAGED_PR

FILES: tuple[str, ...] = tuple(
    f"paging/{name}.py"
    for name in (
        "block_manager",
        "block_table",
        "computed_blocks",
        "cpu_gpu",
        "device_pool",
        "interfaces",
        "naive",
        "null_block",
        "pool_allocator",
        "prefix_caching",
        "sequence",
    )
)

PLACES: tuple[Where, ...] = (
    paged_places.RETURNS,
    paged_places.ACCESS,
    paged_places.EVICTIONS,
    paged_places.SWAPS,
    paged_places.NAIVE,
    paged_places.FORKS,
    paged_places.appends_under_a_window,
    paged_places.comes_back,
    *paged_trials.TRIALS,
    *(TablesPlace(scope) for scope in PAGED_PR),
)

SELF_CHECK = "the self-check: it is what finds other mutants, and is tested on states broken by hand"

LEFT_OUT: dict[str, str] = {
    "paging/block_table.py BlockTable.check": SELF_CHECK,
    "paging/device_pool.py DevicePool.check_holders": SELF_CHECK,
    "paging/cpu_gpu.py CpuGpuBlockAllocator.check": SELF_CHECK,
    "paging/block_manager.py SelfAttnBlockSpaceManager.check": SELF_CHECK,
    "paging/block_manager.py SelfAttnBlockSpaceManager._has_idle_null": SELF_CHECK,
}

TESTS = (
    "tests/paging/test_access_times.py",
    "tests/paging/test_adoption.py",
    "tests/paging/test_allocators.py",
    "tests/paging/test_bare_interfaces.py",
    "tests/paging/test_beam_search.py",
    "tests/paging/test_block_manager.py",
    "tests/paging/test_block_table.py",
    "tests/paging/test_blocks_alone.py",
    "tests/paging/test_device_books.py",
    "tests/paging/test_eviction.py",
    "tests/paging/test_interfaces.py",
    "tests/paging/test_manager_books.py",
    "tests/paging/test_nothing_lost.py",
    "tests/paging/test_swap.py",
    "tests/paging/test_table_books.py",
    "tests/paging/test_walk.py",
)

REALM = Realm("paging", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT, TESTS)
