"""Random histories of a manager and of the batches that keep its tables, and what the inputs of a step must be."""

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from blockwright import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.core.outcomes import BatchAllocation
from blockwright.device import InputBatch, StepInputs
from blockwright.errors import UnsupportedError
from blockwright.kinds import KVCacheSpec

MAX_LEN, ENCODER = 48, 10
MOST_TOKENS = 64
HEADS = (1, 2, "float32")


def full(size: int) -> KVCacheSpec:
    return FullAttentionSpec(size, *HEADS)


def sliding(size: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(size, *HEADS, window)


def chunked(size: int, chunk: int) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(size, *HEADS, chunk)


def mamba(size: int, drafts: int = 0) -> KVCacheSpec:
    return MambaSpec(size, ((3,),), ("float32",), drafts)


def cross(size: int) -> KVCacheSpec:
    return CrossAttentionSpec(size, *HEADS)


def config_of(specs: Sequence[KVCacheSpec], num_blocks: int = 60) -> KVCacheConfig:
    return KVCacheConfig(num_blocks, [KVCacheGroupSpec([f"layers.{i}"], spec) for i, spec in enumerate(specs)])


def batch_of(config: KVCacheConfig, caching: bool = True, rows: int = 8, **options: Any) -> InputBatch:
    return InputBatch(
        config,
        max_num_requests=rows,
        max_num_tokens=MOST_TOKENS,
        max_model_len=MAX_LEN,
        max_encoder_len=ENCODER,
        enable_caching=caching,
        **options,
    )


def contents(inputs: StepInputs) -> dict[str, Any]:
    """Return all numbers of a step's inputs."""
    found: dict[str, Any] = {}
    for name in [name for name in inputs.__dataclass_fields__ if name[0] != "_"]:
        value = getattr(inputs, name)
        if isinstance(value, torch.Tensor):
            found[name] = value.tolist()
        elif isinstance(value, tuple):
            found[name] = [each.tolist() for each in value]
        elif isinstance(value, int):
            found[name] = value
    return found


class History:
    """A manager, the requests that run, and two batches: on the host, and staged."""

    def __init__(self, specs: Sequence[KVCacheSpec], seed: int, caching: bool = True, num_blocks: int = 60) -> None:
        self.specs, self.caching = specs, caching
        self.rng = Random(seed)
        config = config_of(specs, num_blocks)
        self.manager = KVCacheManager(config, MAX_LEN, enable_caching=caching)
        self.batches = [batch_of(config, caching), batch_of(config, caching, staged=True)]
        self.most_drafts = min([3] + [spec.num_speculative_blocks for spec in specs if isinstance(spec, MambaSpec)])
        self.unit = min(spec.block_size for spec in specs)
        self.requests: list[Request] = []
        self.encoders: dict[str, int] = {}
        self.prefixes = [[self.rng.randrange(9) for _ in range(MAX_LEN)] for _ in range(2)]
        self.given: dict[str, tuple[int, int]] = {}
        self.serial = 0
        self.events: set[str] = set()

    # ---------------------------------------------------------------- between steps

    def add(self, request: Request) -> None:
        """Set a request's rows from what the manager says that it holds."""
        name = request.request_id
        for batch in self.batches:
            drafts = self.manager.get_draft_block_ids(name)
            batch.add_request(name, self.manager.get_blocks(name), drafts, self.encoders.get(name, 0))

    def has_row(self, request: Request) -> bool:
        return request.request_id in self.batches[0].request_ids

    def drop(self, request: Request) -> None:
        """End a request, or preempt it: as far as the rows go that is the same."""
        self.manager.free(request)
        self.requests.remove(request)
        for batch in self.batches if self.has_row(request) else []:
            batch.remove_request(request.request_id)

    def admit(self) -> None:
        """Start a request with what is cached of it and slots for its first tokens, or leave that to the next batch."""
        self.serial += 1
        prompt = self.rng.choice(self.prefixes)[: self.rng.randint(1, 30)]
        prompt += [self.rng.randrange(9) for _ in range(self.rng.randint(0, 6))]
        request = Request(f"r{self.serial}", prompt, self.unit if self.caching else None)
        hit, computed = self.manager.get_computed_blocks(request)
        encoder = self.rng.randint(1, ENCODER) if any(isinstance(s, CrossAttentionSpec) for s in self.specs) else 0
        new = self.rng.randint(1, min(8, len(prompt) - computed))
        if computed == 0 and encoder == 0 and self.rng.random() < 0.3:  # the next batch admits it
            self.requests.append(request)
            return
        if self.manager.allocate_slots(request, new, computed, hit, num_encoder_tokens=encoder) is None:
            self.events.add("refused")
            return
        request.num_computed_tokens = computed
        self.given[request.request_id] = (new, 0)
        self.encoders[request.request_id] = encoder
        self.requests.append(request)
        self.add(request)
        self.events.add("hit" if computed else "admitted")

    def fork(self) -> None:
        parent = self.rng.choice(self.requests)
        if parent.num_computed_tokens == 0 or parent.request_id in self.given or not self.has_row(parent):
            return
        self.serial += 1
        child = parent.fork(f"r{self.serial}")
        try:
            if self.manager.fork(parent, child) is None:
                return
        except UnsupportedError:
            return
        self.encoders[child.request_id] = self.encoders.get(parent.request_id, 0)
        self.requests.append(child)
        self.add(child)
        self.events.add("forked")

    def shuffle(self) -> None:
        """Move rows about; the requests of the next step come in another order."""
        choice = self.rng.randrange(4)
        rows = self.batches[0].request_ids
        if choice == 0:
            moves = [batch.compact() for batch in self.batches]
            assert moves[0] == moves[1]
            assert None not in self.batches[0].request_ids
            assert all(rows[origin] == self.batches[0].request_ids[row] for origin, row in moves[0])
        elif choice == 1 and rows:
            pair = self.rng.randrange(8), self.rng.randrange(8)
            for batch in self.batches:
                batch.swap(*pair)
        elif choice == 2 and 0 < len(set(rows) - {None}) < 8:
            name = self.rng.choice([name for name in rows if name is not None])
            free = self.rng.choice([row for row in range(8) if row >= len(rows) or rows[row] is None])
            for batch in self.batches:
                batch.move_request(name, free)
                assert batch.row_of(name) == free
        else:
            self.rng.shuffle(self.requests)

    # ---------------------------------------------------------------- a step

    def wish(self, request: Request) -> tuple[int, int]:
        """Return new tokens and drafts of a request's next step."""
        left = request.num_tokens - request.num_computed_tokens
        if left > 1:
            return self.rng.randint(1, min(left, 8)), 0
        drafts = self.rng.randint(0, min(self.most_drafts, MAX_LEN - 1 - request.num_computed_tokens))
        return 1 + drafts, drafts

    def step(self) -> None:
        """Run a step of some of the requests, check its inputs, and accept some of its drafts.

        Requests that were given slots by single calls are in it, others pause.
        """
        requests = [r for r in self.requests if r.request_id not in self.given and self.rng.random() < 0.9]
        for request in [request for request in requests if self.rng.random() < 0.1]:
            self.give(request)
        requests = [request for request in requests if request.request_id not in self.given]
        wishes = {request.request_id: self.wish(request) for request in requests}
        news, drafts = [new for new, _ in wishes.values()], [draft for _, draft in wishes.values()]
        allocation: BatchAllocation | None
        allocation = self.manager.allocate_slots_batch(requests, news, self.rng.randint(0, self.most_drafts), drafts)
        self.note(allocation)
        requests, refused = requests[: allocation.num_served], requests[allocation.num_served :]
        for request in [request for request in requests if not self.has_row(request)]:
            for batch in self.batches:
                batch.add_request(request.request_id, (), self.manager.get_draft_block_ids(request.request_id))
            self.events.add("admitted by a batch")
        given = [request for request in self.requests if request.request_id in self.given]
        if self.rng.random() < 0.5:  # those of the batch stand first in the step, which applies it
            requests += given
        else:
            for batch in self.batches:
                batch.apply(requests, allocation)
            allocation = None
            requests += given
            self.rng.shuffle(requests)
        wishes.update(self.given)
        self.given = {}
        news = [wishes[request.request_id][0] for request in requests]
        drafts = [wishes[request.request_id][1] for request in requests]
        copies = self.manager.take_copies()
        steps = [batch.step(requests, news, allocation, copies, num_draft_tokens=drafts) for batch in self.batches]
        for batch, inputs in zip(self.batches, steps, strict=True):
            self.check(batch, inputs, requests, news, drafts)
            expected = [[list(pair) for pair in pairs] for pairs in copies] or [[] for _ in self.specs]
            assert [pairs.tolist() for pairs in inputs.copies] == expected
        assert contents(steps[0]) == contents(steps[1])
        for request, new, draft in zip(requests, news, drafts, strict=True):
            self.finish(request, new, draft)
        for request in refused:
            self.drop(request)

    def give(self, request: Request) -> None:
        """Give a running request slots by a single call, and set its rows anew."""
        new, drafts = self.wish(request)
        if (
            self.manager.allocate_slots(request, new, num_draft_tokens=drafts, num_lookahead_tokens=self.most_drafts)
            is not None
        ):
            self.add(request)
            self.given[request.request_id] = (new, drafts)
            self.events.add("set anew")

    def note(self, allocation: BatchAllocation) -> None:
        """Note which changes have occurred."""
        if allocation.refused is not None:
            self.events.add("preempted")
        if len(allocation.replaced_entries):
            self.events.add("replaced")
        if len(allocation.nulled_entries):
            self.events.add("nulled")

    def finish(self, request: Request, new: int, drafts: int) -> None:
        """Count a step as done, some of its drafts accepted; end a request that is long enough."""
        accepted = self.rng.randint(0, drafts)
        stop = request.num_computed_tokens + new - drafts + accepted
        if stop >= request.num_tokens:
            request.append_output_token_ids([self.rng.randrange(9) for _ in range(stop + 1 - request.num_tokens)])
        request.num_computed_tokens = stop
        if accepted:
            self.events.add("accepted")
        if stop >= MAX_LEN - 1 or self.rng.random() < 0.05:
            self.drop(request)

    def check(
        self, batch: InputBatch, inputs: StepInputs, requests: list[Request], news: list[int], drafts: list[int]
    ) -> None:
        """Compare a step's inputs with what the definition makes of the manager's tables."""
        begins = [request.num_computed_tokens for request in requests]
        starts = [sum(news[:i]) for i in range(len(news) + 1)]
        stops = [begin + new for begin, new in zip(begins, news, strict=True)]
        positions = [p for begin, stop in zip(begins, stops, strict=True) for p in range(begin, stop)]
        names = [request.request_id for request in requests]
        assert batch.request_ids[: len(names)] == names
        assert (inputs.num_requests, inputs.num_tokens) == (len(names), len(positions))
        assert (inputs.max_query_len, inputs.max_seq_len) == (max(news, default=0), max(stops, default=0))
        assert inputs.positions.tolist() == positions
        assert inputs.query_start_loc.tolist() == starts
        assert inputs.num_computed_tokens.tolist() == begins
        assert inputs.seq_lens.tolist() == stops
        assert inputs.encoder_lens.tolist() == [self.encoders.get(name, 0) for name in names]
        held = {request.request_id: self.manager.get_block_ids(request.request_id) for request in requests}
        for group, spec in enumerate(self.specs):
            for row, name in enumerate(names):
                ids = held[name][group]
                assert batch.block_ids(name)[group] == ids
                in_row = inputs.block_tables[group][row].tolist()
                assert in_row == ids + [0] * (len(in_row) - len(ids))
            slots = [-1] * len(positions)
            reads, writes = [0] * len(names), [[0] * inputs.state_writes[group].shape[1] for _ in names]
            if isinstance(spec, MambaSpec):
                assert inputs.state_writes[group].shape[1] == 1 + spec.num_speculative_blocks
                for row, request in enumerate(requests):
                    certain = stops[row] - drafts[row]
                    reads[row] = self.manager.get_state_block_ids(request)[group]
                    entry = (certain - 1) // spec.block_size if self.caching else 0
                    states = self.manager.get_draft_block_ids(names[row])[group][: drafts[row]]
                    written = [held[names[row]][group][entry], *states]
                    writes[row][: len(written)] = written
                    assert (reads[row] == 0) == (begins[row] == 0)
                    assert all(written)
            elif not isinstance(spec, CrossAttentionSpec):
                size = spec.block_size
                slots = [
                    held[names[row]][group][p // size] * size + p % size
                    for row in range(len(names))
                    for p in range(begins[row], stops[row])
                ]
            else:
                size = spec.block_size
                for name in names:
                    wanted = [held[name][group][p // size] * size + p % size for p in range(self.encoders[name])]
                    assert batch.slots(name, group, 0, self.encoders[name]).tolist() == wanted
            assert inputs.slot_mapping[group].tolist() == slots
            assert inputs.state_reads[group].tolist() == reads
            assert inputs.state_writes[group].tolist() == writes

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if len(self.requests) < 7 and self.rng.random() < 0.6:
                self.admit()
            if self.requests and len(self.requests) < 7 and self.rng.random() < 0.2:
                self.fork()
            if self.rng.random() < 0.3:
                self.shuffle()
            self.step()
