"""Property: what the tiny model is compared with, the dense recomputation, reads what the definition says and no more.

How: tokens are changed one at a time; a longer sequence answers for its beginnings; one session
of the real parts is computed as without a cache.
Not covered: requests in chunks, beside each other, with drafts and in lower precisions, which the gate `numerics`
compares with it.
"""

from collections.abc import Iterator
from math import gcd, lcm
from random import Random
from typing import Any

import pytest
import torch

from blockwright import KVCacheManager, Request
from blockwright.device import InputBatch, KVCacheStorage, plan_kv_cache
from blockwright_lab.numerics.engine.dense import Recomputation
from blockwright_lab.numerics.engine.model import HybridModel
from blockwright_lab.numerics.engine.weights import ModelConfig
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding, reads

KINDS = {
    "full": (Group(Full(), 4),),
    "sliding": (Group(Sliding(5), 2),),
    "chunked": (Group(Chunked(6), 3),),
    "mamba": (Group(Mamba(drafts=3), 4),),
    "cross": (Group(Full(), 2), Group(Cross(), 4)),
    "all": (
        *(Group(Full(), 4), Group(Sliding(5), 2), Group(Mamba(drafts=3), 4), Group(Chunked(6), 3), Group(Cross(), 4)),
        *(Group(Sliding(5), 2), Group(Mamba(drafts=3), 4), Group(Sliding(9), 4), Group(Full(), 4)),
    ),
}
LENGTH = 40


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Compute in one thread: the tensors are too small to share, and other tests run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(length: int, seed: int) -> list[int]:
    return Random(seed).choices(range(48), k=length)


def assert_close(actual: Any, expect: Any, atol: float = 1e-11) -> None:
    torch.testing.assert_close(actual.double(), expect, rtol=0.0, atol=atol)


def test_a_session_of_the_real_parts_is_computed_as_without_a_cache() -> None:
    """The plan may choose other block sizes; a second request hits what the first one computed."""
    model = HybridModel(ModelConfig(tuple(layer for layer in KINDS["all"] if layer.kind != Cross())))
    plan = plan_kv_cache(model.layers, 1 << 22, LENGTH)
    storage, manager = KVCacheStorage(plan), KVCacheManager(plan.config, max_model_len=LENGTH)
    batch = InputBatch(plan.config, max_num_requests=2, max_num_tokens=LENGTH, max_model_len=LENGTH)
    storage.fill(None, float("nan"))
    tokens, hits = drawn(LENGTH, 1), []
    size = lcm(*(group.kv_cache_spec.block_size for group in plan.config.kv_cache_groups))
    for name, step in ("first", size), ("second", 5):
        request = Request(name, tokens, block_size=gcd(*(spec.block_size for spec in plan.layers.values())))
        found, computed = manager.get_computed_blocks(request)
        hits.append(computed)
        while computed < LENGTH:
            count = min(step, LENGTH - computed)
            adopted = (computed, found) if computed == hits[-1] else ()
            assert manager.allocate_slots(request, count, *adopted) is not None
            request.num_computed_tokens = computed
            batch.add_request(name, manager.get_blocks(name), manager.get_draft_block_ids(name))
            inputs = batch.step([request], count)
            hidden = model.forward(tokens[computed : computed + count], inputs, storage)
            computed = request.num_computed_tokens = computed + count
            assert_close(model.logits(hidden), Recomputation(model).logits(tokens)[computed - count : computed])
        manager.free(request)
        batch.remove_request(name)
    assert hits == [0, (LENGTH - 1) // size * size]


@pytest.mark.parametrize("kinds", KINDS)
def test_the_recomputation_reads_what_the_definition_says(kinds: str) -> None:
    """The last token's logits change with the tokens that its one attention layer reads, and with no others."""
    model, tokens = HybridModel(ModelConfig(KINDS[kinds][:1])), drawn(LENGTH, 1)
    right, (layer,) = Recomputation(model).logits(tokens)[-1], model.config.layers
    read = reads(Full() if isinstance(layer.kind, Mamba) else layer.kind, LENGTH - 1)
    for position in range(LENGTH - 1):
        changed = [*tokens[:position], (tokens[position] + 1) % 48, *tokens[position + 1 :]]
        assert torch.equal(Recomputation(model).logits(changed)[-1], right) == (position not in read)


def test_a_longer_sequence_answers_for_its_beginnings() -> None:
    model = HybridModel(ModelConfig(KINDS["all"], draft=Group(Full(), 4)))
    tokens, encoder, known = drawn(LENGTH, 1), model.encoder_outputs(6, 1), Recomputation(model)
    whole = known.logits(tokens, encoder)
    assert_close(known.logits(tokens[:9], encoder), whole[:9], 1e-12)
    assert_close(whole[:9], Recomputation(model).logits(tokens[:9], encoder), 1e-12)
    assert_close(known.draft_logits(tokens[:9], encoder), Recomputation(model).draft_logits(tokens[:9], encoder), 1e-12)
    assert known.num_passes == 1
    assert float((known.logits(tokens[:9]) - whole[:9]).abs().max()) > 1e-3  # another encoder is another sequence
    assert known.num_passes == 2
