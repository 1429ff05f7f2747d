"""What a line of the table is: a path through one of our systems, and how to measure it on each side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Sample

MANAGER, TOKENS, STEP, LOOP, PAGING, OFFLOAD = "manager", "tokens", "step", "loop", "paging", "offload"
"""The systems that are measured, each beside a peer of its own."""


@dataclass(frozen=True)
class Path:
    """One line of the table.

    Attributes:
        name: short name, for ``--only``.
        title, unit: what is measured, and per what.
        target: ratio over the peer to reach, None where the number only informs.
        ours, peer: make the sample of each side; the peer's takes the loaded peer of the system, and is None where only
            our own numbers are compared.
        floor: name of the floor's number beside it, if it has one.
        base: a smaller task of ours, timed in turn with this path, to tell what the difference between them costs.
        growth: what differs from the base, and the largest ratio over it to reach, None where it only informs.
        system: which of our systems is measured, hence which peer.
        most_of_floor: largest ratio over the floor to reach, None where there is no such target.
        limit: largest time of ours per unit to reach, in ns, None where there is no such target.
        needs: packages, beyond this one, without which the path is left out.
    """

    name: str
    title: str
    unit: str
    target: float | None
    ours: Callable[[], Sample]
    peer: Callable[[Any], Sample] | None
    floor: str | None = None
    base: Callable[[], Sample] | None = None
    growth: tuple[str, float | None] = ("", None)
    system: str = MANAGER
    limit: float | None = None
    most_of_floor: float | None = None
    needs: tuple[str, ...] = ()
