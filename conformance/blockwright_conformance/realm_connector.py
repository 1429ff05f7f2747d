"""Mutants of what moves blocks between the device and the tiers: its books, not the media that hold the bytes.

No scope calls the connector, its jobs or its queue; unit tests do, so that there are no places here.
"""

from .equivalents_connector import EQUIVALENT, RULES
from .exhibit import Where
from .mutant_realm import Realm

FILES: tuple[str, ...] = tuple(
    f"offload/{name}.py"
    for name in (
        "breaker",
        "connector",
        "disk_index",
        "disk_slots",
        "hits",
        "host_pool",
        "identity",
        "jobs",
        "loads",
        "queue",
        "relay",
        "shared_manager",
        "stores",
        "transfers",
        "worker",
    )
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

PLACES: tuple[Where, ...] = ()

TESTS = (
    "tests/offload/test_connector_books.py",
    "tests/offload/test_connector_calls.py",
    "tests/offload/test_connector.py",
    "tests/offload/test_jobs.py",
    "tests/offload/test_queue.py",
    "tests/offload/test_relay.py",
    "tests/offload/test_worker.py",
    "tests/offload/test_worker_books.py",
    "tests/offload/test_identity.py",
    "tests/offload/test_breaker.py",
    "tests/offload/test_shared_books.py",
    "tests/offload/test_shared_manager.py",
    "tests/offload/test_stores_books.py",
    "tests/offload/test_disk.py",
    "tests/offload/test_disk_directory.py",
    "tests/offload/test_bad_places.py",
    "tests/offload/test_bad_input.py",
    "tests/offload/test_chain.py",
    "tests/offload/test_host.py",
)

LEFT_OUT: dict[str, str] = {
    "offload/connector.py OffloadingConnector.check": "the self-check: it is tested on states broken by hand",
}

REALM = Realm("connector", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT, TESTS)
