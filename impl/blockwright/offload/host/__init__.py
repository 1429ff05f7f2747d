"""The host's tier: a pool of blocks in its memory, and the handler that moves blocks between it and the device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from blockwright.device.layout import Caches
from blockwright.errors import InvalidArgumentError
from blockwright.offload.host.copies import CopyHandler
from blockwright.offload.host.moves import Sides
from blockwright.offload.host.pool import HostPool
from blockwright.offload.host.streams import StreamHandler
from blockwright.offload.metrics import Pair, TransferStats
from blockwright.offload.worker import OffloadingHandler, TransferResult, TransferSpec

__all__ = ["HostHandler", "HostPool"]


class HostHandler(OffloadingHandler):
    """Moves blocks between the device and a `HostPool`, in both directions.

    Register it for (`GPULoadStoreSpec`, `CPULoadStoreSpec`) and the other way round. A host block's device blocks are
    neighbours in the device's spec, so that there are `device_blocks_per_block` ids for each id of the host's.

    On a GPU the copies run on separate streams, after the work that the current stream held at `transfer_async`, and
    `wait` lets the current stream wait. Where the "device" is the CPU, threads copy, and `wait` blocks the caller: data
    to store must have been computed when `transfer_async` is called.
    """

    def __init__(
        self,
        device_caches: Caches,
        pool: HostPool,
        *,
        block_dim: int | Sequence[int] = 0,
        threads: int | None = None,
        max_queued: int = 64,
        timeout: float | None = None,
    ) -> None:
        """Start the threads, or make the streams.

        Args:
            device_caches: as for `blockwright.device.swap_blocks`; they stay where they are in memory.
            pool: made for caches like these.
            block_dim: the dimension that counts blocks, for all tensors or one for each.
            threads: that copy on a CPU; None for torch's own number.
            max_queued: how many transfers may wait (on a GPU: be under way); more are refused.
            timeout: seconds, as for `ThreadedHandler`; of no effect on a GPU, whose copies cannot be called back.

        Raises:
            InvalidArgumentError: an argument is not as described, or the pool does not fit the caches.
        """
        sides = Sides(device_caches, pool, block_dim)
        self._sides = sides
        kind = sides.tensors[0].device.type
        self._handler: OffloadingHandler
        if kind == "cuda":
            self._handler = StreamHandler(sides, max_queued)
        elif kind == "cpu":
            self._handler = CopyHandler(sides, threads, max_queued, timeout)
        else:
            raise InvalidArgumentError(f"device_caches are on {kind!r}; pass tensors of a CPU or of a GPU")

    def places_of(self, medium: str) -> int | None:
        """Return the blocks of the device's tensors, or of the pool."""
        return {"GPU": self._sides.num_blocks, "CPU": self._sides.pool.num_blocks}.get(medium)

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Check a transfer and begin it. O(its blocks).

        Returns:
            False if too many wait already, if the id is under way, or if the handler is closed.

        Raises:
            InvalidArgumentError: not one side on the device and one on the host, or numbers that do not fit.
            BlockError: an id out of range, or a block that is written twice. Nothing has moved.
        """
        return self._handler.transfer_async(job_id, spec)

    def get_finished(self) -> list[TransferResult]:
        return self._handler.get_finished()

    def cancel(self, job_id: int) -> bool:
        """Drop the rest of a transfer; False if it is not under way, or on a GPU."""
        return self._handler.cancel(job_id)

    def wait(self, job_ids: Collection[int]) -> None:
        self._handler.wait(job_ids)

    def stats(self) -> Mapping[Pair, TransferStats]:
        return self._handler.stats()

    def close(self) -> None:
        """Cancel all transfers that can be cancelled, and wait for the others; later transfers are refused."""
        self._handler.close()
