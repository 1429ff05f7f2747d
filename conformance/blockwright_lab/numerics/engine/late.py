"""Transfers that happen as late as they may: when they are waited for, or after so many polls."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class LateHandler:
    """What handlers of transfers have in common here; takes the transfers of any copy of the package."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[Any, int]] = {}
        self.finished: list[tuple[int, bool]] = []

    def polls_of(self, spec: Any) -> int:
        """Say after how many polls a transfer happens by itself."""
        raise NotImplementedError

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        """Do a transfer; say whether it succeeded."""
        raise NotImplementedError

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        """Take a transfer."""
        self.waiting[job_id] = spec, self.polls_of(spec)
        return True

    def get_finished(self) -> list[tuple[int, bool]]:
        """Do what has waited long enough, and tell of all that has ended."""
        self.waiting = {job: (spec, polls - 1) for job, (spec, polls) in self.waiting.items()}
        self.wait([job for job, (_, polls) in self.waiting.items() if polls <= 0])
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Do these now."""
        for job in job_ids:
            if job in self.waiting:
                (source, destination), _ = self.waiting.pop(job)
                self.finished.append((job, self.carry(job, source, destination)))
