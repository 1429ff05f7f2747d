"""Property: the tiny model over paged storage computes what the dense recomputation does, however a request is cut.

How: tables are made by hand (blocks in random order, all storage NaN, blocks overwritten by NaN and taken out of the
table as soon as they are dead by the specification); prompts run whole, in chunks, token by token and beside each other,
with drafts that are rejected, for each kind alone and for all of them; lower precisions stay within stated bounds.
Not covered: a manager's tables and the inputs made of them (the numerics gate); whether the definition is right.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import getsource
from itertools import accumulate, chain, pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import AttentionSpec, MambaSpec
from blockwright_conformance.engine import dense
from blockwright_conformance.engine.dense import (
    Recomputation,
    dense_draft_logits,
    dense_hidden,
    dense_logits,
    dense_proposal,
)
from blockwright_conformance.engine.drafts import DraftHead
from blockwright_conformance.engine.model import HybridModel
from blockwright_conformance.engine.weights import DRAFT, ModelConfig
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding, dead, reads

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
CLOSE = {"rtol": 0.0, "atol": 1e-11}
LENGTH, BLOCKS = 40, 500


@dataclass(frozen=True)
class Inputs:
    """A step's inputs, made by hand."""

    num_requests: int
    max_query_len: int
    max_seq_len: int
    block_tables: tuple[Any, ...]
    slot_mapping: tuple[Any, ...]
    positions: Any
    query_start_loc: Any
    seq_lens: Any
    encoder_lens: Any
    state_reads: tuple[Any, ...]
    state_writes: tuple[Any, ...]


class Tables:
    """Storage of a model, and the block tables of some requests, each with room for `LENGTH` tokens."""

    def __init__(self, model: HybridModel, num_requests: int, seed: int = 0, encoder: Any = None) -> None:
        self.model, self.encoder = model, encoder
        layers = (*model.config.layers, *((model.config.draft,) if model.config.draft else ()))
        self.kinds = list(dict.fromkeys(layers))
        names = {
            kind: [name for name, layer in zip(model.layers, layers, strict=True) if layer == kind] for kind in layers
        }
        groups = [KVCacheGroupSpec(names[kind], model.layers[names[kind][0]]) for kind in self.kinds]
        self.plan = SimpleNamespace(config=KVCacheConfig(BLOCKS, groups))
        self.caches = {name: self.cache(spec) for name, spec in model.layers.items()}
        ids = Random(seed).sample(range(1, BLOCKS), BLOCKS - 1)
        self.tables = [
            [[ids.pop() for _ in range(-(-LENGTH // kind.block_size))] for kind in self.kinds]
            for _ in range(num_requests)
        ]
        self.drafts = [[[ids.pop() for _ in range(3)] for _ in self.kinds] for _ in range(num_requests)]
        self.accepted = [0] * num_requests
        if encoder is not None:
            for tables in self.tables:
                slots = {group: self.slots(tables, group, range(len(encoder))) for group in range(len(self.kinds))}
                model.write_encoder(encoder, slots, self)

    def cache(self, spec: Any) -> Any:
        """Make a layer's cache, all NaN."""
        if isinstance(spec, AttentionSpec):
            shape = BLOCKS, 2, spec.block_size, spec.num_kv_heads, spec.head_size
            return torch.full(shape, torch.nan, dtype=torch.float32).to(getattr(torch, str(spec.dtype)))
        assert isinstance(spec, MambaSpec)
        pairs = zip(spec.shapes, spec.dtypes, strict=True)
        return tuple(
            torch.full((BLOCKS, *shape), torch.nan, dtype=getattr(torch, str(dtype))) for shape, dtype in pairs
        )

    def layer(self, name: str) -> Any:
        return self.caches[name]

    def slots(self, tables: list[list[int]], group: int, positions: range) -> Any:
        size = self.kinds[group].block_size
        return torch.tensor([tables[group][position // size] * size + position % size for position in positions])

    def poison(self, request: int, length: int) -> None:
        """Overwrite the blocks that are dead after some tokens, and take them out of the tables."""
        for group, kind in enumerate(self.kinds):
            for entry, block in enumerate(self.tables[request][group]):
                if block and dead(kind.kind, kind.block_size, length, entry):
                    self.tables[request][group][entry] = 0
                    for name in self.plan.config.kv_cache_groups[group].layer_names:
                        cache = self.caches[name]
                        for tensor in cache if isinstance(cache, tuple) else (cache,):
                            tensor.view(torch.uint8)[block] = 0xFF

    def step(self, parts: Sequence[tuple[int, range, int]]) -> Inputs:
        """Make the inputs of a step: of each part the request, its positions, and how many of them are drafts."""
        counts = [len(positions) for _, positions, _ in parts]
        every = range(len(self.kinds))
        return Inputs(
            num_requests=len(parts),
            max_query_len=max(counts),
            max_seq_len=max(positions.stop for _, positions, _ in parts),
            block_tables=tuple(self.rows([self.tables[request][group] for request, _, _ in parts]) for group in every),
            slot_mapping=tuple(self.mapping(parts, group) for group in every),
            positions=torch.tensor([position for _, positions, _ in parts for position in positions]),
            query_start_loc=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
            seq_lens=torch.tensor([positions.stop for _, positions, _ in parts], dtype=torch.int32),
            encoder_lens=torch.full((len(parts),), 0 if self.encoder is None else len(self.encoder), dtype=torch.int32),
            state_reads=tuple(self.state_reads(parts, group) for group in every),
            state_writes=tuple(self.state_writes(parts, group) for group in every),
        )

    def rows(self, tables: list[list[int]]) -> Any:
        return torch.tensor([*tables, [0] * len(tables[0])], dtype=torch.int32)  # a row more than there are requests

    def mapping(self, parts: Sequence[tuple[int, range, int]], group: int) -> Any:
        if isinstance(self.kinds[group].kind, Mamba | Cross):
            return torch.full((sum(len(positions) for _, positions, _ in parts),), -1)
        return torch.cat([self.slots(self.tables[request], group, positions) for request, positions, _ in parts])

    def state_reads(self, parts: Sequence[tuple[int, range, int]], group: int) -> Any:
        size, found = self.kinds[group].block_size, []
        for request, positions, _ in parts:
            accepted, table = self.accepted[request], self.tables[request][group]
            draft = self.drafts[request][group][accepted - 1] if accepted else None
            found.append(0 if not positions.start else draft or table[-(-positions.start // size) - 1])
        mamba = isinstance(self.kinds[group].kind, Mamba)
        return torch.tensor(found if mamba else [0] * len(parts), dtype=torch.int32)

    def state_writes(self, parts: Sequence[tuple[int, range, int]], group: int) -> Any:
        size, found = self.kinds[group].block_size, torch.zeros(len(parts), 4, dtype=torch.int32)
        for row, (request, positions, drafts) in enumerate(parts):
            certain = self.tables[request][group][-(-(positions.stop - drafts) // size) - 1]
            found[row, : drafts + 1] = torch.tensor([certain, *self.drafts[request][group][:drafts]])
        return found if isinstance(self.kinds[group].kind, Mamba) else torch.zeros_like(found)

    def run(self, tokens: Sequence[Sequence[int]], parts: Sequence[tuple[int, range, int]]) -> tuple[Any, Inputs]:
        """Run the model over a step, and return the hidden states and the inputs."""
        inputs = self.step(parts)
        chosen = [tokens[request][position] for request, positions, _ in parts for position in positions]
        return self.model.forward(chosen, inputs, self), inputs


def cuts(length: int, sizes: Iterator[int]) -> list[range]:
    """Cut a request's tokens into chunks of the sizes given."""
    ends = [0]
    while ends[-1] < length:
        ends.append(min(length, ends[-1] + next(sizes)))
    return [range(*pair) for pair in pairwise(ends)]


def drawn(length: int, seed: int) -> list[int]:
    return Random(seed).choices(range(48), k=length)


def paged_logits(model: HybridModel, tokens: list[int], chunks: list[range], encoder: Any) -> Any:
    """Run one request through paged storage, chunk by chunk, poisoning what is dead."""
    tables, logits = Tables(model, 1, encoder=encoder), []
    for chunk in chunks:
        tables.poison(0, chunk.start)
        logits.append(model.logits(tables.run([tokens], [(0, chunk, 0)])[0]))
    return torch.cat(logits)


def assert_close(actual: Any, expect: Any, atol: float = CLOSE["atol"]) -> None:
    torch.testing.assert_close(actual.double(), expect, rtol=0.0, atol=atol)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("size", [LENGTH, 7, 4, 1])
def test_a_request_in_chunks_of_any_size_is_computed_as_without_a_cache(kinds: str, size: int) -> None:
    model = HybridModel(ModelConfig(KINDS[kinds]))
    tokens, encoder = drawn(LENGTH, 1), model.encoder_outputs(9, seed=2)
    actual = paged_logits(model, tokens, cuts(LENGTH, iter(lambda: size, 0)), encoder)
    assert_close(actual, dense_logits(model, tokens, encoder))


@pytest.mark.parametrize("seed", range(8))
def test_requests_beside_each_other_are_computed_as_alone(seed: int) -> None:
    random = Random(seed)
    model = HybridModel(ModelConfig(KINDS["all"], seed=seed))
    encoder = model.encoder_outputs(5, seed)
    tokens = [drawn(random.randint(1, LENGTH), random.random()) for _ in range(4)]
    tables = Tables(model, 4, seed, encoder)
    left = [cuts(len(some), iter(lambda: random.choice([1, 1, 2, 3, 5, 16]), 0)) for some in tokens]
    logits: list[list[Any]] = [[], [], [], []]
    while running := [request for request in range(4) if left[request]]:
        chosen = random.sample(running, random.randint(1, len(running)))
        parts = [(request, left[request].pop(0), 0) for request in chosen]
        for request, positions, _ in parts:
            tables.poison(request, positions.start)
        scored = model.logits(tables.run(tokens, parts)[0]).split([len(positions) for _, positions, _ in parts])
        for request, scores in zip(chosen, scored, strict=True):
            logits[request].append(scores)
    for request, some in enumerate(tokens):
        assert_close(torch.cat(logits[request]), dense_logits(model, some, encoder))


@pytest.mark.parametrize("draft", [Group(Full(), 4), Group(Sliding(5), 2)], ids=["full", "sliding"])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_verified_and_proposed_as_without_a_cache(draft: Group, seed: int) -> None:
    """A request decodes with drafts of its own head, of which some are right: states and entries go back with it."""
    random = Random(seed)
    model = HybridModel(ModelConfig(KINDS["all"], draft=draft, seed=seed))
    head, encoder, prompt = DraftHead(model), model.encoder_outputs(5, seed), random.randint(1, 12)
    tokens = drawn(prompt, seed)
    tables = Tables(model, 1, seed, encoder)
    positions, drafts = range(prompt), 0
    accepts: list[int] = []
    while len(tokens) < LENGTH - 4:
        tables.poison(0, positions.start)
        hidden, inputs = tables.run([tokens], [(0, positions, drafts)])
        best = model.logits(hidden).argmax(dim=-1).tolist()
        certain, guessed = tokens[: positions.stop - drafts], tokens[positions.stop - drafts :]
        right = next((at for at, guess in enumerate(guessed) if guess != best[at - drafts - 1]), drafts)
        tokens = [*certain, *guessed[:right], best[len(positions) - drafts - 1 + right]]
        computed = len(tokens) - 1
        kept = computed - positions.start
        assert_close(model.logits(hidden[:kept]), dense_logits(model, tokens[:-1], encoder)[positions.start :])
        outputs = head.forward(hidden, [*tokens[positions.start + 1 :], *([0] * (drafts - right))], inputs, tables)
        expect = dense_draft_logits(model, tokens, encoder)[positions.start :]
        assert_close(head.logits(outputs[:kept]), expect)
        proposed, scores = head.propose(outputs[kept - 1 : kept], [0], [computed - 1], 3, inputs, tables)
        assert_close(scores[0], dense_proposal(model, tokens, proposed[0].tolist(), encoder))
        accepts.append(right)
        tables.accepted[0] = right
        drafts = random.randint(0, 3)
        target = [*tokens]
        for _ in range(drafts):  # some proposals are made right, so that some are accepted
            target.append(int(dense_logits(model, target, encoder)[-1].argmax()))
        mixed = [
            random.choice([own, own, draft])
            for own, draft in zip(target[len(tokens) :], proposed[0].tolist(), strict=False)
        ]
        positions, tokens = range(computed, computed + 1 + drafts), [*tokens, *mixed]
    assert {0, 1} < set(accepts)
