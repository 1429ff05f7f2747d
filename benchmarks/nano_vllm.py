"""The time that nano-vllm's scheduler takes for a step, its own and that of `examples/nano_vllm`; no model runs.

In the environment of `make test-transformers`, with PYTHONPATH=impl: `python -m benchmarks.nano_vllm`.
"""

import time
from typing import Any

from tests.engines import test_nano_vllm as bed


def seconds_of_a_step(nano: Any, kind: Any, prompts: Any) -> float:
    made, seqs = bed.engine(nano, kind, prompts, 3000, 16, 4096)
    for seq in seqs:
        made.add(seq)
    tokens, steps, start = [5] * len(seqs), 0, time.thread_time()
    while not made.is_finished():
        batch, _ = made.schedule()
        made.postprocess(batch, tokens[: len(batch)])
        steps += 1
    return (time.thread_time() - start) / steps


def main() -> None:
    nano, prompts = bed.loaded(), bed.prompts_of(0, 64, shared=400, own=200, answer=100)
    pairs = [[seconds_of_a_step(nano, kind, prompts) for kind in (nano.ours, nano.own)] for _ in range(9)]
    ours, own = (min(each) * 1e6 for each in zip(*pairs, strict=True))
    print(f"a step of 64 sequences, least of {len(pairs)}: {ours:.0f} us, its own {own:.0f} us: {ours / own:.2f} of it")


if __name__ == "__main__":
    main()
