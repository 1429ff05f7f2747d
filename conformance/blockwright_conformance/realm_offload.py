"""Mutants of offloading's books: their sources, and where they are at work."""

from . import chain_walks, offload_places, tier_oddities, tier_trials
from .equivalents_offload import EQUIVALENT, RULES
from .exhibit import OffloadPlace, Where
from .mutant_realm import Realm
from .offload_scopes import FIRST, KEYS, SECOND, TierScope, chain_scope, lists, request
from .offload_walk import walk

WIDE = (request(2, (KEYS[0], 0)), request(2, (KEYS[1], 1)))
"""Two blocks, each of which spans two of the device."""

PLACES: tuple[Where, ...] = (
    offload_places.NEAR,
    offload_places.BACK,
    offload_places.TIER,
    offload_places.BELOW,
    offload_places.SHARED,
    offload_places.OVER,
    OffloadPlace(TierScope("mutants, ARC", "ARC", 1, (*lists(3, 1), KEYS[:2]))),
    OffloadPlace(TierScope("mutants, foreign", "LRU foreign", 1, (*lists(2, 1), KEYS[:2]), recovered=KEYS[1:2])),
    OffloadPlace(TierScope("mutants, silent", "LRU silent", 1, lists(2, 1))),
    OffloadPlace(chain_scope("mutants, wrong calls", (2, 1), reserve=(0,), misuse=True, most=2)),
    OffloadPlace(chain_scope("mutants, no room", (2, 0), reserve=(1,), under_way=1)),
    OffloadPlace(
        chain_scope(
            "mutants, whole requests", (2, 1), reserve=(1,), stores=(FIRST, SECOND), loads=(FIRST,), under_way=1
        )
    ),
    walk,
    OffloadPlace(
        chain_scope(
            "mutants, handed out late", (1, 1), through=True, frees=True, loads=(FIRST[:1],), eager=False, under_way=2
        )
    ),
    OffloadPlace(chain_scope("mutants, span 2", (1, 1), 4, span=2, stores=WIDE, loads=WIDE, under_way=2)),
    *tier_trials.TRIALS,
    *chain_walks.WALKS,
    *tier_oddities.ODDITIES,
)

FILES = tuple(
    f"offload/tiers/{name}.py"
    for name in (
        "arc",
        "backend",
        "books",
        "chain",
        "entries",
        "ghosts",
        "keys",
        "lru",
        "manager",
        "moves",
        "ring",
        "transfers",
    )
)

CONSTRUCTOR = "checks of a constructor's arguments: no scope makes a wrong one; unit tests do"
FOUND = "blocks that a disk has kept; the crash gate and unit tests of the disk tier"

LEFT_OUT: dict[str, str] = {
    "offload/tiers/backend.py SlotBackend.claim_place": FOUND,
    "offload/tiers/keys.py shown": "the beginning of a key in the text of an error",
    "guards of offload/tiers/chain.py OffloadChain.__init__": CONSTRUCTOR,
    "offload/tiers/backend.py checked_count": CONSTRUCTOR,
}

TESTS = (
    "tests/offload/test_arc.py",
    "tests/offload/test_backends.py",
    "tests/offload/test_bad_input.py",
    "tests/offload/test_bad_places.py",
    "tests/offload/test_chain.py",
    "tests/offload/test_tiers.py",
    "tests/offload/test_disk.py",
    "tests/offload/test_disk_directory.py",
    "tests/offload/test_shared_manager.py",
    "tests/offload/test_host.py",
)
"""Unit tests, for what no place calls or notices."""

REALM = Realm("offload", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT, TESTS)
