"""Property: `examples/nano_vllm` gives nano-vllm's scheduler the right blocks, and the answers of its own BlockManager.

How: the schedulers of the package run without its model, which needs a GPU; a worker writes into each slot a hash of
the history up to its token, and compares every slot that a step of attention would read. Answers depend on the history
alone.
Not covered: nano-vllm's processes and kernels; pairs of sequences (classifier-free guidance), which are refused.
"""

import importlib.util
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import BlockwrightError

if importlib.util.find_spec("nanovllm") is None:
    pytest.skip("nano-vllm is not installed; make test-transformers", allow_module_level=True)

pytestmark = pytest.mark.without_vllm
EXAMPLE = Path(__file__).parents[2] / "examples" / "nano_vllm" / "scheduler.py"
VOCABULARY = 97


def loaded() -> Any:
    """Return nano-vllm's scheduler, the example's, and sequences, without the kernels that its package imports."""
    folder = importlib.util.find_spec("nanovllm").submodule_search_locations[0]  # type: ignore[union-attr, index]
    package = types.ModuleType("nanovllm")
    package.__path__ = [folder]
    sys.modules["nanovllm"] = package
    from nanovllm.engine import scheduler, sequence
    from nanovllm.sampling_params import SamplingParams

    spec = importlib.util.spec_from_file_location("nano_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(example)  # type: ignore[union-attr]
    return types.SimpleNamespace(
        own=scheduler.Scheduler, ours=example.Scheduler, sequence=sequence.Sequence, params=SamplingParams
    )


@pytest.fixture(scope="module")
def nano() -> Any:
    return loaded()


class Worker:
    """Knows which history wrote each slot."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self.held, self.size = [0] * (num_blocks * size), size

    def run(self, batch: list[Any]) -> list[int]:
        reading = []
        for seq in batch:
            slots = [seq.block_table[at // self.size] * self.size + at % self.size for at in range(len(seq))]
            hashes = [1]
            for token in seq.token_ids:
                hashes.append(hash((hashes[-1], token)))
            begin = seq.num_cached_tokens if seq.num_completion_tokens == 0 or seq.fresh else len(seq) - 1
            seq.fresh = False
            for slot, value in zip(slots[begin:], hashes[1 + begin :], strict=True):
                self.held[slot] = value
            reading.append((slots, hashes))
        assert all([self.held[slot] for slot in slots] == hashes[1:] for slots, hashes in reading), "a wrong read"
        return [hashes[-1] % VOCABULARY for _, hashes in reading]


def engine(nano: Any, kind: Any, prompts: Any, num_blocks: int, size: int, budget: int) -> Any:
    """Return a scheduler of a kind, and the sequences that it is to serve."""
    nano.sequence.block_size = size
    config = types.SimpleNamespace(
        max_num_seqs=64, max_num_batched_tokens=budget, eos=-1, kvcache_block_size=size, num_kvcache_blocks=num_blocks
    )
    seqs = [nano.sequence(prompt, nano.params(max_tokens=answer, ignore_eos=True)) for prompt, answer in prompts]
    return kind(config), seqs


def serve(nano: Any, kind: Any, prompts: Any, num_blocks: int, budget: int = 256) -> Any:
    """Serve prompts of given answers; return the answers, the steps and the tokens computed."""
    made, seqs = engine(nano, kind, prompts, num_blocks, 8, budget)
    coming, steps, computed, worker = list(seqs), 0, 0, Worker(num_blocks, 8)
    while coming or not made.is_finished():
        for seq in coming[:3]:
            made.add(seq)
        del coming[:3]
        batch, is_prefill = made.schedule()
        for seq in batch:
            seq.fresh = is_prefill
            computed += len(seq) - seq.num_cached_tokens if is_prefill else 1
        made.postprocess(batch, worker.run(batch))
        steps += 1
    if hasattr(made, "manager"):
        made.manager.check()
        assert made.manager.block_pool.get_num_free_blocks() == num_blocks - 1
    answers = [seq.completion_token_ids for seq in seqs]
    return types.SimpleNamespace(answers=answers, steps=steps, computed=computed)


def prompts_of(
    seed: int, number: int, shared: int = 37, own: int = 30, answer: int = 40
) -> list[tuple[list[int], int]]:
    draw = random.Random(seed)
    systems = [[draw.randrange(VOCABULARY) for _ in range(draw.choice([8, 24, shared]))] for _ in range(3)]
    made = []
    for _ in range(number):
        rest = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, own))]
        made.append((draw.choice(systems) + rest, draw.randrange(1, answer)))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_the_answers_are_those_of_its_block_manager(nano: Any, seed: int) -> None:
    """In a pool of the same size; and where there is too little room: there nano-vllm's own scheduler breaks down."""
    prompts = prompts_of(seed, 24)
    own, ours, tight = (
        serve(nano, *each) for each in ((nano.own, prompts, 400), (nano.ours, prompts, 400), (nano.ours, prompts, 25))
    )
    print(
        f"{ours.computed} tokens computed in {ours.steps} steps, own {own.computed} in {own.steps}; tight {tight.steps}"
    )
    assert ours.answers == tight.answers == own.answers
    assert (ours.computed, ours.steps) <= (own.computed, own.steps)


def test_a_wrong_table_and_a_missing_release_are_noticed(nano: Any) -> None:
    class Exchanged(nano.ours):  # type: ignore[misc]
        def decode(self) -> Any:
            seqs = super().decode()
            for seq in seqs:
                if len(seq.block_table) > 2:
                    seq.block_table[0], seq.block_table[1] = seq.block_table[1], seq.block_table[0]
            return seqs

    with pytest.raises(AssertionError, match="a wrong read"):
        serve(nano, Exchanged, prompts_of(0, 6), 200)

    class Kept(nano.ours):  # type: ignore[misc]
        def deallocate(self, seq: Any) -> None:
            seq.num_cached_tokens, seq.block_table = 0, []

    with pytest.raises(BlockwrightError, match="runs already"):  # where one is preempted, and comes back
        serve(nano, Kept, prompts_of(0, 24), 25)


def test_pairs_are_refused(nano: Any) -> None:
    made, _ = engine(nano, nano.ours, [], 10, 8, 8)
    pair = nano.sequence([1, 2], nano.params(cfg_scale=2.0))
    with pytest.raises(ValueError, match="cfg_scale"):
        made.add(pair)


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 70
