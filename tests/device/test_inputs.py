"""Property: after every step a worker's rows are the manager's tables, its slots those of the definition, and the
states that are read and written those that the manager names; on the host and staged alike.

How: seeded random histories of the real manager over each mix of kinds: admission with and without hits and by a batch,
chunked prefill, drafts with rejection, forks, refusals with preemption, rows that are moved, requests that pause.
Not covered: steps in flight, and what kernels do with the inputs (the gate of numerics); devices (test_inputs_cuda.py).
"""

from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

from tests.device.histories import History, chunked, cross, full, mamba, sliding

from blockwright.kinds import KVCacheSpec

MIXES: dict[str, tuple[Sequence[KVCacheSpec], bool]] = {
    "full": ([full(4)], True),
    "full without caching": ([full(4)], False),
    "windows": ([full(4), sliding(4, 9), sliding(8, 5)], True),
    "sizes that are no powers of two": ([full(3), sliding(6, 7), full(12)], True),
    "chunks": ([full(2), chunked(4, 8)], True),
    "states": ([full(4), mamba(4)], True),
    "states and drafts": ([full(4), mamba(4, 3), mamba(8, 2)], True),
    "states without caching": ([full(4), mamba(4, 2), mamba(3)], False),
    "an encoder": ([full(4), cross(4), mamba(4, 1), sliding(4, 6)], False),
    "all that is cached": ([full(4), sliding(4, 6), chunked(4, 8), mamba(4, 1)], True),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mix", MIXES)
def test_random_histories(mix: str, seed: int) -> None:
    specs, caching = MIXES[mix]
    History(specs, seed, caching, num_blocks=60 if seed % 2 else 40).run(60)


def test_histories_pass_every_kind_of_change() -> None:
    seen: set[str] = set()
    for seed in range(4):
        for name in ("windows", "states and drafts"):
            history = History(MIXES[name][0], seed, num_blocks=40)
            history.run(60)
            seen |= history.events
    assert seen == {
        "hit", "admitted", "admitted by a batch", "refused", "preempted", "forked", "replaced", "nulled", "accepted",
        "set anew",
    }  # fmt: skip
