"""Property: the tiny model over paged storage computes what the dense recomputation does, however a request is cut.

How: tables are made by hand (blocks in random order, all storage NaN, blocks overwritten by NaN and taken out of the
table as soon as they are dead by the specification); prompts run whole, in chunks, token by token, beside each other
and with drafts that are rejected, for each kind alone and for all of them; lower precisions stay within stated bounds.
Not covered: what a manager does with tables, but for one short session (the numerics gate); whether the definition of
what is read is right (the specification's own tests).
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import getsource
from itertools import accumulate, pairwise
from math import gcd, lcm
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from blockwright import KVCacheManager, Request
from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.device import InputBatch, KVCacheStorage, plan_kv_cache
from blockwright.kinds import AttentionSpec, MambaSpec
from blockwright_lab.numerics.engine import dense
from blockwright_lab.numerics.engine.checker import bound
from blockwright_lab.numerics.engine.dense import Recomputation
from blockwright_lab.numerics.engine.drafts import DraftHead
from blockwright_lab.numerics.engine.model import HybridModel
from blockwright_lab.numerics.engine.weights import ModelConfig
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
LENGTH, BLOCKS = 40, 500


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Compute in one thread: the tensors are too small to share, and other tests run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
        self.config = KVCacheConfig(BLOCKS, groups)
        self.caches = {name: self.cache(spec) for name, spec in model.layers.items()}
        plan = SimpleNamespace(config=self.config)
        self.storage = cast(Any, SimpleNamespace(plan=plan, kv=self.caches.__getitem__, states=self.caches.__getitem__))
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
                model.write_encoder(encoder, slots, self.storage)

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

    def slots(self, tables: list[list[int]], group: int, positions: range) -> Any:
        size = self.kinds[group].block_size
        return torch.tensor([tables[group][position // size] * size + position % size for position in positions])

    def poison(self, request: int, length: int) -> None:
        """Overwrite the blocks that are dead after some tokens, and take them out of the tables."""
        for group, kind in enumerate(self.kinds):
            for entry, block in enumerate(self.tables[request][group]):
                if block and dead(kind.kind, kind.block_size, length, entry):
                    self.tables[request][group][entry] = 0
                    for name in self.config.kv_cache_groups[group].layer_names:
                        cache = self.caches[name]
                        for tensor in cache if isinstance(cache, tuple) else (cache,):
                            tensor.view(torch.uint8)[block] = 0xFF

    def step(self, parts: Sequence[tuple[int, range, int]]) -> Any:
        """Make the inputs of a step: of each part the request, its positions, and how many of them are drafts."""
        counts = [len(positions) for _, positions, _ in parts]
        every = range(len(self.kinds))
        return SimpleNamespace(
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

    def run(self, tokens: Sequence[Sequence[int]], parts: Sequence[tuple[int, range, int]]) -> tuple[Any, Any]:
        """Run the model over a step, and return the hidden states and the inputs."""
        inputs = self.step(parts)
        chosen = [tokens[request][position] for request, positions, _ in parts for position in positions]
        return self.model.forward(chosen, inputs, self.storage), inputs


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


def assert_close(actual: Any, expect: Any, atol: float = 1e-11) -> None:
    torch.testing.assert_close(actual.double(), expect, rtol=0.0, atol=atol)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("size", [LENGTH, 7, 4, 1])
def test_a_request_in_chunks_of_any_size_is_computed_as_without_a_cache(kinds: str, size: int) -> None:
    model = HybridModel(ModelConfig(KINDS[kinds]))
    tokens, encoder = drawn(LENGTH, 1), model.encoder_outputs(9, seed=2)
    actual = paged_logits(model, tokens, cuts(LENGTH, iter(lambda: size, 0)), encoder)
    assert_close(actual, Recomputation(model).logits(tokens, encoder))


@pytest.mark.parametrize("seed", range(8))
def test_requests_beside_each_other_are_computed_as_alone(seed: int) -> None:
    random = Random(seed)
    model = HybridModel(ModelConfig(KINDS["all"], seed=seed))
    encoder = model.encoder_outputs(5, seed)
    tokens = [drawn(random.randint(1, LENGTH), seed) for _ in range(4)]
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
        assert_close(torch.cat(logits[request]), Recomputation(model).logits(some, encoder))


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


class Drafting:
    """A request that decodes with drafts, of which some are its draft head's own and some are right."""

    def __init__(self, draft: Group, seed: int) -> None:
        self.random = Random(seed)
        self.model = HybridModel(ModelConfig(KINDS["all"], draft=draft, seed=seed))
        self.head, self.dense = DraftHead(self.model), Recomputation(self.model)
        self.encoder = self.model.encoder_outputs(5, seed)
        self.tables = Tables(self.model, 1, seed, self.encoder)
        self.tokens = drawn(self.random.randint(1, 12), seed)
        self.computed, self.drafts = 0, list[int]()

    def step(self) -> int:
        """Verify the drafts, write the entries of the draft head, propose anew; count the drafts accepted."""
        start, given = self.computed, [*self.tokens, *self.drafts]
        self.tables.poison(0, start)
        hidden, inputs = self.tables.run([given], [(0, range(start, len(given)), len(self.drafts))])
        best = self.model.logits(hidden).argmax(dim=-1).tolist()[len(self.tokens) - 1 - start :]
        right = next((at for at, draft in enumerate(self.drafts) if draft != best[at]), len(self.drafts))
        self.tokens += [*self.drafts[:right], best[right]]
        self.computed, self.tables.accepted[0] = len(self.tokens) - 1, right
        kept = self.computed - start
        expect = self.dense.logits(self.tokens[:-1], self.encoder)[start:]
        assert_close(self.model.logits(hidden[:kept]), expect)
        unknown = [0] * (len(self.drafts) - right)
        outputs = self.head.forward(hidden, [*self.tokens[start + 1 :], *unknown], inputs, self.tables.storage)
        expect = self.dense.draft_logits(self.tokens, self.encoder)[start:]
        assert_close(self.head.logits(outputs[:kept]), expect)
        self.drafts = self.propose(outputs[kept - 1 : kept], inputs)
        return right

    def propose(self, outputs: Any, inputs: Any) -> list[int]:
        """Have the head propose, and give some of it, with some right tokens among them."""
        proposed, scores = self.head.propose(outputs, [0], [self.computed - 1], 3, inputs, self.tables.storage)
        own = proposed[0].tolist()
        assert_close(scores[0], self.dense.proposal(self.tokens, own, self.encoder))
        drafts: list[int] = []
        for guess in own[: self.random.randint(0, 3)]:
            best = int(self.dense.logits([*self.tokens, *drafts], self.encoder)[-1].argmax())
            drafts.append(self.random.choice([guess, best, best]))
        return drafts


@pytest.mark.parametrize("draft", [Group(Full(), 4), Group(Sliding(5), 2)], ids=["full", "sliding"])
def test_drafts_are_verified_and_proposed_as_without_a_cache(draft: Group) -> None:
    accepted = set()
    for seed in range(4):
        drafting = Drafting(draft, seed)
        while len(drafting.tokens) < LENGTH - 6:
            accepted.add(drafting.step())
    assert accepted == {0, 1, 2, 3}


def test_an_entry_of_another_continuation_is_recomputed_as_such() -> None:
    """The draft head's entry of the last position before a fork was made with the other one's next token."""
    model = HybridModel(ModelConfig(KINDS["full"], draft=Group(Full(), 4)))
    head, tables, tokens, other = DraftHead(model), Tables(model, 1), drawn(12, 1), 47
    assert tokens[8] != other
    for positions, following in (range(8), [*tokens[1:8], other]), (range(8, 11), tokens[9:]):
        hidden, inputs = tables.run([tokens], [(0, positions, 0)])
        logits = head.logits(head.forward(hidden, following, inputs, tables.storage))
    adopted = [*tokens[1:8], other, *tokens[9:]]
    assert_close(logits, Recomputation(model).draft_logits(tokens, next_tokens=adopted)[8:])
    assert float((logits - Recomputation(model).draft_logits(tokens)[8:]).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked"])
def test_a_wrong_entry_at_any_position_that_is_read_is_seen(kind: str) -> None:
    model, tokens = HybridModel(ModelConfig(KINDS[kind])), drawn(LENGTH, 1)
    (layer,), tables = model.config.layers, Tables(model, 1)
    tables.run([tokens], [(0, range(LENGTH - 2), 0)])
    last, size = LENGTH - 2, layer.block_size
    right, cache = tables.run([tokens], [(0, range(last, last + 1), 0)])[0], tables.caches["layers.0"]
    for position in reads(layer.kind, last):
        entry = cache[tables.tables[0][0][position // size], :, position % size]
        kept = entry.clone()
        entry.mul_(-1)
        wrong = tables.run([tokens], [(0, range(last, last + 1), 0)])[0]
        assert float((wrong - right).abs().max()) > 1e-4, position
        entry.copy_(kept)


@pytest.mark.parametrize("kinds", KINDS)
def test_the_recomputation_reads_what_the_definition_says(kinds: str) -> None:
    """The last token's logits change with the tokens that its one attention layer reads, and with no others."""
    model, tokens = HybridModel(ModelConfig(KINDS[kinds][:1])), drawn(LENGTH, 1)
    right, (layer,) = Recomputation(model).logits(tokens)[-1], model.config.layers
    read = reads(Full() if isinstance(layer.kind, Mamba) else layer.kind, LENGTH - 1)
    for position in range(LENGTH - 1):
        changed = [*tokens[:position], (tokens[position] + 1) % 48, *tokens[position + 1 :]]
        assert torch.equal(Recomputation(model).logits(changed)[-1], right) == (position not in read)


ELEMENTS = (
    *(("float32", None), ("float16", None), ("bfloat16", None)),
    *(("float32", "bfloat16"), ("float32", "float8_e4m3fn")),
)


@pytest.mark.parametrize(("dtype", "cache"), ELEMENTS)
@pytest.mark.parametrize("seed", range(2))
def test_lower_precisions_stay_within_their_bounds(dtype: str, cache: str | None, seed: int) -> None:
    model = HybridModel(ModelConfig(KINDS["all"], seed=seed, dtype=dtype, cache_dtype=cache))
    tokens, encoder = drawn(LENGTH, seed), model.encoder_outputs(6, seed)
    actual = paged_logits(model, tokens, cuts(LENGTH, iter(lambda: 7, 0)), encoder)
    difference = (actual.double() - Recomputation(model).logits(tokens, encoder)).abs()
    assert actual.dtype == getattr(torch, dtype)
    assert 0 < float(difference.max()) < bound(model.config).largest
    assert float(difference.mean()) < bound(model.config).mean


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


def test_the_same_seed_gives_the_same_weights_in_every_precision() -> None:
    config = ModelConfig(KINDS["all"], draft=Group(Full(), 4), seed=3)
    double, single = HybridModel(config), HybridModel(replace(config, dtype="float32"))
    assert torch.equal(double.weights.embedding.float(), single.weights.embedding)
    assert double.weights.draft is not None
    assert single.weights.draft is not None
    assert torch.equal(double.weights.draft.join.float(), single.weights.draft.join)
    assert not torch.equal(double.weights.embedding, HybridModel(replace(config, seed=4)).weights.embedding)


def test_the_recomputation_shares_weights_only() -> None:
    """It names no operator of the device and, of the model, only its class."""
    imports = [node for node in ast.walk(ast.parse(getsource(dense))) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert not any(isinstance(node, ast.ImportFrom) and "device" in (node.module or "") for node in imports)
    names = [
        alias.name
        for node in imports
        if isinstance(node, ast.ImportFrom) and node.module == "model"
        for alias in node.names
    ]
    assert names == ["HybridModel"]
