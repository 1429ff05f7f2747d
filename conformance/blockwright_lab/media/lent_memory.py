"""Fault runs of a Mooncake store: its processes die, stop or fill up, and its objects are damaged, while it is in use.

The runs are those of `faults`, on a client that answers with the library's codes, and on real processes in ``nightly``.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from blockwright.offload.shared.manager import SharedStoreManager
from blockwright_conformance.gates import GateResult

from .cluster import FakeCluster, RealCluster, missing
from .faults import BACKOFF, IDENTITY, OPERATIONS, SLACK, Act, FaultRun, StoreFaultError

LONGEST = 20.0
"""Seconds of a call while a process is stopped: the bounds add up to 6, and the library's own timeouts begin at 30."""
REAL_OPERATIONS = 24
FILLERS = [(b"%d filler %d" % (size, at), size) for size in (6 << 20, 1 << 20, 100_000) for at in range(20)]
"""Keys and sizes of blocks that fill all memory, the large ones first."""
MOONCAKE_EVERYTHING = frozenset(
    "put load store lookup found missed absent foreign corrupt refused unavailable down".split()
)


class MooncakeRun(FaultRun):
    """One cluster, one store, and the operations on it."""

    def __init__(self, cluster: FakeCluster | RealCluster, seed: int) -> None:
        self.cluster, self.random = cluster, Random(seed)
        self.fired = Counter()
        self.direct = cluster.open(IDENTITY)
        self.store = cluster.open(IDENTITY, failures=3, backoff=BACKOFF, longest_backoff=4 * BACKOFF)
        self.manager = SharedStoreManager(self.store, 16)
        self.keys = [bytes([number]) + b"block" for number in range(16)]

    def timed(self, what: str, seconds: float, work: Callable[[], Any]) -> Any:
        return super().timed(what, LONGEST - SLACK, work)  # one bound for a call, however many blocks it has

    def fill(self) -> None:
        for key, size in FILLERS:
            self.direct.put_many([(key, None, [memoryview(bytes(size))])])

    def empty(self) -> None:
        self.direct.remove([key for key, _ in FILLERS])

    def _replace_values(self, spoiled: Callable[[bytes], bytes]) -> None:
        names, client = [*map(self.direct._name, self.keys)], self.direct._client
        client.batch_remove(names, True)
        for key, name in zip(self.keys, names, strict=True):
            if (value := spoiled(key)) and client.put(name, value):
                raise RuntimeError("the object was not replaced")


PROCESS_FAULTS: dict[str, tuple[Act, Act]] = {
    "kill the owner": (lambda run: run.cluster.kill("owner"), lambda run: run.cluster.start("owner")),
    "stop the owner": (lambda run: run.cluster.stop("owner"), lambda run: run.cluster.resume("owner")),
    "kill the master": (lambda run: run.cluster.kill("master"), lambda run: run.cluster.start("master")),
    "stop the master": (lambda run: run.cluster.stop("master"), lambda run: run.cluster.resume("master")),
    "fill the memory": (MooncakeRun.fill, MooncakeRun.empty),
    "damaged values": (lambda run: run._replace_values(run._damaged), lambda run: None),
    "foreign values": (lambda run: run._replace_values(run._foreign), lambda run: None),
}

REAL_RUNS = tuple(f"mooncake: {fault}" for fault in PROCESS_FAULTS)
CLIENT_RUNS = tuple(f"mooncake client: {fault}" for fault in PROCESS_FAULTS)


def mooncake_run(name: str, profile: str, seed: int = 0) -> GateResult:
    is_real, fault = name in REAL_RUNS, name.partition(": ")[2]
    if is_real and (why := missing()):
        return GateResult("faults", name, "MooncakeStore", 0, 0, 0, 0.0, detail=f"not run: {why}", left_out=True)
    began, found = time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        cluster = RealCluster(Path(folder)) if is_real else FakeCluster()
        run = MooncakeRun(cluster, seed)
        try:
            run.under(*PROCESS_FAULTS[fault], REAL_OPERATIONS if is_real else OPERATIONS[profile])
        except StoreFaultError as error:
            found = str(error)
        finally:
            run.close()
            cluster.close()
    return run.row(name, found, began)
