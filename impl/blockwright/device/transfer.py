"""When a movement of blocks is done, and who must wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from blockwright.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Transfer:
    """A movement of blocks that was queued; on the CPU it is done when the call returns.

    Until it is done, keep both pools alive, write no source block and touch no destination block. The transfer comes
    after the work that the current stream held before. Call `wait` before later work on another stream than the
    transfer's own, and `synchronize` before the host reads or writes a pool in its memory.

    Attributes:
        event: recorded behind the last copy; None if nothing is under way.
        device: the device of the event; None without one.
    """

    event: torch.cuda.Event | None = None
    device: torch.device | None = None

    @property
    def done(self) -> bool:
        """True once every block is in place. Does not wait."""
        return self.event is None or bool(self.event.query())

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        """Make `stream` run later work after the transfer; the host does not wait.

        Args:
            stream: None for the current stream of the transfer's device.
        """
        if self.event is not None:
            (torch.cuda.current_stream(self.device) if stream is None else stream).wait_event(self.event)

    def synchronize(self) -> None:
        """Let the host wait until the transfer is done."""
        if self.event is not None:
            self.event.synchronize()


def device_of_stream(src: torch.device, dst: torch.device, stream: torch.cuda.Stream | None) -> torch.device | None:
    """Return the GPU with the streams that order a movement: the destination's, else the source's, or None."""
    device = next((device for device in (dst, src) if device.type == "cuda"), None)
    if stream is not None and device is None:
        raise InvalidArgumentError(f"stream: neither {src} nor {dst} has streams; leave it out")
    if stream is not None and stream.device != device:
        raise InvalidArgumentError(f"stream is of {stream.device}; pass one of {device}")
    return device


def run(device: torch.device | None, stream: torch.cuda.Stream | None, work: Callable[[], None]) -> Transfer:
    """Do `work` behind all that the current stream holds, on `stream` if there is one.

    In inference mode, where caches may be written whether or not they were made in it.
    """
    if device is None:
        with torch.inference_mode():
            work()
        return Transfer()
    current = torch.cuda.current_stream(device)
    queue = current if stream is None else stream
    # Blocks that the current stream still writes must be complete before they are copied.
    if queue != current:
        queue.wait_stream(current)
    with torch.inference_mode(), torch.cuda.stream(queue):
        work()
        event = torch.cuda.Event()
        event.record(queue)
    return Transfer(event, device)
