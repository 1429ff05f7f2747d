"""A tier below the host: shelves that outlive an engine, each for one identity of a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import blockwright.offload.identity  # noqa: F401  (not imported by the package)
from blockwright.offload import OffloadingHandler

from .schedule import EngineConfig

MEDIUM = "SHELF"

Shelf = dict[int, tuple[bytes, bytes]]


def shelf_of(package: Any, shelves: dict[bytes, Shelf], config: EngineConfig, model_seed: int) -> Shelf:
    identity = package.offload.identity.CacheIdentity(
        "tiny", "pages", f"{config.byte_order}f8", 1, b"", {"weights": model_seed}
    )
    return shelves.setdefault(identity.digest(), {})


def backend_of(package: Any, block_size: int, num_blocks: int, shelf: Shelf) -> Any:
    tiers = package.offload.tiers
    spec = type("ShelfSpec", (tiers.interfaces.BlockIDsLoadStoreSpec,), {"medium": staticmethod(lambda: MEDIUM)})

    class Places(tiers.backend.SlotBackend):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(block_size, MEDIUM, num_blocks)
            self.found = [(key, place) for place, (key, _) in sorted(shelf.items())]
            for _, place in self.found:
                self.claim_place(place)

        def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> Any:
            made = spec(block_ids)
            made.keys = block_hashes
            return made

        def recovered_blocks(self) -> list[tuple[bytes, Any]]:
            blocks = []
            for key, place in self.found:
                status = package.offload.status.PlacedBlockStatus(place)
                status.ref_cnt = 0
                blocks.append((key, status))
            return blocks

    return Places(), spec


class LateHandler(OffloadingHandler):
    """What handlers of transfers have in common here; takes the transfers of any copy of the package."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Any, float]] = {}
        self.finished: list[tuple[int, bool]] = []

    def polls_of(self, spec: Any) -> float:
        """Return how often results are asked for until a transfer has ended; -1: it ends at once."""
        raise NotImplementedError

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        raise NotImplementedError

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        self.waiting[job_id] = spec, (polls := self.polls_of(spec))
        if polls < 0:
            self.wait([job_id])
        return True

    def get_finished(self) -> list[tuple[int, bool]]:
        self.waiting = {job: (spec, polls - 1) for job, (spec, polls) in self.waiting.items()}
        self.wait([job for job, (_, polls) in self.waiting.items() if polls <= 0])
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        for job in job_ids:
            if job in self.waiting:
                (source, destination), _ = self.waiting.pop(job)
                self.finished.append((job, self.carry(job, source, destination)))


class Carrier(LateHandler):
    """Carries blocks between the host and a shelf, as late as it may; some of what goes down is lost."""

    def __init__(self, host: Any, shelf: Shelf, config: EngineConfig, fired: Counter[str]) -> None:
        super().__init__()
        self.host, self.shelf, self.config, self.fired = host, shelf, config, fired
        self.num_lowered = 0

    def polls_of(self, spec: Any) -> int:
        return self.config.load_steps

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        return (self.lower if destination.medium() == MEDIUM else self.lift)(source, destination)

    def lower(self, source: Any, destination: Any) -> bool:
        self.num_lowered += 1
        every = self.config.lose_lowered_every
        if every and self.num_lowered % every == 0:
            self.fired["lowering lost"] += 1
            return False
        for block, place, key in zip(source.block_ids, destination.block_ids, destination.keys, strict=True):
            self.shelf[place] = key, self.ordered(bytes(self.host.block_view(block)))
        self.fired["lowered"] += 1
        return True

    def lift(self, source: Any, destination: Any) -> bool:
        for place, block in zip(source.block_ids, destination.block_ids, strict=True):
            nothing = b"", b"\xff" * self.host.bytes_per_block
            self.host.block_view(block)[:] = self.ordered(self.shelf.get(place, nothing)[1])
        self.fired["lifted"] += 1
        return True

    def ordered(self, data: bytes) -> bytes:
        if self.config.byte_order == "<":
            return data
        return b"".join(data[at : at + 8][::-1] for at in range(0, len(data), 8))
