"""Property: what a step writes and sends depends on what has changed, not on the length of the contexts; its tensors
stay where they are; padding stands for nothing; and another device is sent the same as the host holds.

How: decode steps of contexts of different length, counted; addresses compared from step to step; the path to a device
with the CPU as the device, and on a GPU where there is one, with steps that outrun the host.
Not covered: that staged inputs equal those on the host in long histories (test_inputs.py); time (benchmarks/).
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import torch
from tests.device.batches import batch_of, config_of, contents, cross, full, mamba, sliding
from torch.utils._python_dispatch import TorchDispatchMode

from blockwright import KVCacheManager, Request
from blockwright.device import InputBatch, StepInputs, plan_kv_cache
from blockwright.errors import InvalidArgumentError
from blockwright_conformance.checker.history import History, walk
from blockwright_conformance.worker import blockwright as worker
from blockwright_conformance.worker.scopes import LARGE, WorkerScope
from blockwright_conformance.worker.world import WorkerWorld

SPECS = [full(4), sliding(4, 8), mamba(4, 2)]


def tensors(inputs: StepInputs) -> list[torch.Tensor]:
    named = [inputs.positions, inputs.query_start_loc, inputs.num_computed_tokens, inputs.seq_lens, inputs.encoder_lens]
    per_group = (inputs.block_tables, inputs.slot_mapping, inputs.state_reads, inputs.state_writes)
    return [*named, inputs.cu_seqlens_k, *inputs.paged_kv(0), *(tensor for each in per_group for tensor in each)]


class Decoding:
    """Requests whose contexts have a given length, in a staged batch."""

    def __init__(self, length: int, count: int = 4, device: str = "cpu", staged: bool = True) -> None:
        config = config_of([full(4), sliding(4, 8)], num_blocks=count * (length // 4 + 20) * 2)
        self.manager = KVCacheManager(config, length + 64)
        limits: dict[str, Any] = {"max_num_requests": count, "max_num_tokens": 64, "max_model_len": 4096}
        self.batch = InputBatch(config, **limits, device=device, staged=staged or None)
        self.requests = [Request(f"r{i}", [i] * (length + i), 4) for i in range(count)]
        for request in self.requests:
            assert self.manager.allocate_slots(request, length + count) is not None
            self.batch.add_request(request.request_id, self.manager.get_blocks(request.request_id))
            request.append_output_token_ids([0] * count)
            request.num_computed_tokens = length + count

    def step(self) -> StepInputs:
        inputs = self.last = self.batch.step(self.requests, 1, self.manager.allocate_slots_batch(self.requests, 1))
        for request in self.requests:
            request.num_computed_tokens += 1
            request.append_output_token_ids(0)
        return inputs


class Takes(TorchDispatchMode):
    """Notes the addresses of all that operators return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel():
            self.found.add(result.untyped_storage().data_ptr())
        return result


@pytest.mark.parametrize("staged", [False, True])
def test_memory_is_taken_once(staged: bool) -> None:
    """After the first step no operator returns other memory than was there, but for the changes that are sent."""
    run, lay = Decoding(20, staged=staged), set[int]()
    for step in range(12):
        with Takes() as takes:
            run.step().paged_kv(0)
        assert not step or staged or takes.found <= lay
        lay |= takes.found
    with Takes() as takes:
        run.last.paged_kv(0)
    assert takes.found <= lay


def test_what_is_sent_does_not_depend_on_the_length_of_the_contexts() -> None:
    sent: list[list[int]] = []
    for length in (64, 512, 2000):
        run = Decoding(length)
        run.step()  # brings the tables of the requests that were added
        sent.append([])
        for _ in range(12):
            run.step()
            sent[-1].append(run.batch.num_bytes_sent)
    assert sent[0] == sent[1] == sent[2]
    assert max(sent[0]) < 1500
    assert len(set(sent[0])) > 1  # at block boundaries there is more to send


@pytest.mark.parametrize("staged", [False, True])
def test_what_is_written_does_not_depend_on_the_length_of_the_contexts(staged: bool) -> None:
    written: list[list[int]] = []
    for length in (64, 512, 2000):
        run = Decoding(length, staged=staged)
        run.step()
        written.append([])
        for _ in range(12):
            allocation = run.manager.allocate_slots_batch(run.requests, 1)
            run.batch.apply(run.requests, allocation)
            written[-1].append(int(run.batch.replica.rows.num_changes))
            run.batch.step(run.requests, 1)
            for request in run.requests:
                request.num_computed_tokens += 1
                request.append_output_token_ids(0)
    assert written[0] == written[1] == written[2]
    # Per request, two blocks and the rows' two lengths at a block boundary, and a null where a window leaves one.
    assert sorted(set(written[0])) == [0, 4 * 1, 4 * 4]


@pytest.mark.parametrize("staged", [False, True])
def test_addresses_stay(staged: bool) -> None:
    batch = batch_of(config_of(SPECS), staged=staged)
    request = Request("r", list(range(9)))
    batch.add_request("r", [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    places = [tensor.data_ptr() for tensor in tensors(batch.step([request], 9))]
    for new in range(1, 9):
        inputs = batch.step([request], new)
        assert [tensor.data_ptr() for tensor in tensors(inputs)] == places
        assert [tensor.data_ptr() for tensor in tensors(inputs.padded(8, 64))] == places
        assert not any(tensor.requires_grad for tensor in tensors(inputs))


@pytest.mark.parametrize("staged", [False, True])
def test_types_and_shapes(staged: bool) -> None:
    batch = batch_of(config_of([full(4), mamba(4, 2), cross(4)]), caching=False, staged=staged)
    request = Request("r", list(range(9)))
    batch.add_request("r", [[1, 2, 3], [7], [4, 5]], [[], [8, 9], []], 6)
    inputs = batch.step([request], 5, copies=[[], [(1, 2)], []])
    assert [tuple(table.shape) for table in inputs.block_tables] == [(8, 12), (8, 1), (8, 3)]
    assert {table.dtype for table in inputs.block_tables} == {torch.int32}
    assert [tuple(slots.shape) for slots in inputs.slot_mapping] == [(5,)] * 3
    assert {slots.dtype for slots in inputs.slot_mapping} == {torch.int64}
    assert [slots.tolist() for slots in inputs.slot_mapping] == [[4, 5, 6, 7, 8], [-1] * 5, [-1] * 5]
    assert [tuple(writes.shape) for writes in inputs.state_writes] == [(1, 1), (1, 3), (1, 1)]
    assert {states.dtype for states in inputs.state_reads + inputs.state_writes} == {torch.int32}
    assert inputs.positions.dtype == torch.int64
    lens = (inputs.query_start_loc, inputs.num_computed_tokens, inputs.seq_lens, inputs.encoder_lens)
    assert {each.dtype for each in lens} == {torch.int32}
    assert [tuple(pairs.shape) for pairs in inputs.copies] == [(0, 2), (1, 2), (0, 2)]
    assert {pairs.dtype for pairs in inputs.copies} == {torch.int64}
    assert batch.slots("r", 2, 0, 6).tolist() == [16, 17, 18, 19, 20, 21]
    assert batch.slots("r", 2, 3, 3).tolist() == []


@pytest.mark.parametrize("staged", [False, True])
def test_padding_stands_for_nothing(staged: bool) -> None:
    batch = batch_of(config_of(SPECS), caching=False, staged=staged)
    requests = [Request(f"r{i}", list(range(9))) for i in range(3)]
    for i, request in enumerate(requests):
        batch.add_request(request.request_id, [[1, 2, 3], [4, 5, 6], [7]], [[], [], [8, 9]])
        assert batch.row_of(request.request_id) == i
    batch.step(requests, 9)  # leaves its own numbers behind those of the next
    inputs = batch.step(requests[:2], [2, 3], num_draft_tokens=[0, 2])
    own = contents(inputs)
    padded = batch.step(requests[:2], [2, 3], num_draft_tokens=[0, 2]).padded(5, 8)
    assert contents(inputs) == own
    assert (padded.num_requests, padded.num_tokens) == (5, 8)
    assert padded.positions.tolist() == [0, 1, 0, 1, 2, 0, 0, 0]
    assert padded.query_start_loc.tolist() == [0, 2, 5, 5, 5, 5]
    assert padded.seq_lens.tolist() == [2, 3, 0, 0, 0]
    assert padded.num_computed_tokens.tolist() == [0] * 5
    assert padded.encoder_lens.tolist() == [0] * 5
    assert [slots.tolist()[:5] for slots in padded.slot_mapping] == own["slot_mapping"]
    assert [slots.tolist()[5:] for slots in padded.slot_mapping] == [[-1] * 3] * 3
    assert padded.state_writes[2].tolist() == [[7, 0, 0], [7, 8, 9], [0] * 3, [0] * 3, [0] * 3]
    assert (padded.max_query_len, padded.max_seq_len) == (3, 3)


def test_many_changes_need_larger_buffers() -> None:
    batches = [batch_of(config_of(SPECS, num_blocks=400), staged=staged) for staged in (False, True)]
    requests = [Request(f"r{i}", list(range(9))) for i in range(8)]
    steps = []
    for batch in batches:
        for turn in range(20):  # the same rows again and again: every write is kept until a step sends it
            for i, request in enumerate(requests):
                lists = [list(range(1 + i + turn + group, 13 + i + turn + group)) for group in range(3)]
                batch.add_request(request.request_id, lists)
        steps.append(contents(batch.step(requests, 1)))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_what_could_not_be_sent_is_sent_by_the_next_step(fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is short for larger buffers, on the host or on the device: nothing of the tables is lost on the way."""
    batches = [batch_of(config_of(SPECS, num_blocks=400), staged=staged) for staged in (False, True)]
    requests = [Request(f"r{i}", list(range(9))) for i in range(8)]
    for batch in batches:
        for i, request in enumerate(requests):
            for turn in range(20):
                lists = [list(range(1 + i + turn + group, 13 + i + turn + group)) for group in range(3)]
                batch.add_request(request.request_id, lists)
    made, empty = [0], torch.empty

    def short(*shape: Any, **options: Any) -> torch.Tensor:
        made[0] += 1
        if made[0] == fails_at:
            raise torch.OutOfMemoryError("no memory")
        return empty(*shape, **options)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", short)
        with pytest.raises(torch.OutOfMemoryError):
            batches[1].step(requests, 2)
    steps = [contents(batch.step(requests, 1)) for batch in batches]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("caching", [False, True])
def test_a_batch_for_a_plan(caching: bool) -> None:
    layers = {"full": full(4), "states": mamba(4, 2)} | ({} if caching else {"cross": cross(4)})
    plan = plan_kv_cache(
        layers, 1 << 20, 48, enable_caching=caching, max_num_encoder_tokens=0 if caching else 10, max_padding=1.0
    )
    batch = InputBatch.for_plan(plan, max_num_requests=3, max_num_tokens=20, staged=True)
    limits: dict[str, Any] = {"max_num_requests": 3, "max_num_tokens": 20, "max_model_len": 48}
    wanted = InputBatch(plan.config, **limits, enable_caching=caching, max_encoder_len=0 if caching else 10)
    steps = [each.step([], 1) for each in (batch, wanted)]
    assert [tensor.shape for tensor in tensors(steps[0])] == [tensor.shape for tensor in tensors(steps[1])]
    assert [tensor.shape for tensor in tensors(steps[0].padded(3, 20))] == [
        tensor.shape for tensor in tensors(steps[1].padded(3, 20))
    ]
    batch.add_request("r")
    with pytest.raises(InvalidArgumentError, match="46 new tokens"):
        batch.step([SimpleNamespace(request_id="r", num_computed_tokens=3)], 46)
    with pytest.raises(InvalidArgumentError, match="plan: must be a KVCachePlan"):
        InputBatch.for_plan(plan.config, max_num_requests=3, max_num_tokens=20)  # type: ignore[arg-type]


def test_a_step_of_nothing() -> None:
    for staged in (False, True):
        batch = batch_of(config_of(SPECS), staged=staged)
        inputs = batch.step([], 1)
        assert (inputs.num_requests, inputs.num_tokens, inputs.max_query_len, inputs.max_seq_len) == (0, 0, 0, 0)
        assert inputs.query_start_loc.tolist() == [0]
        assert inputs.padded(2, 2).slot_mapping[0].tolist() == [-1, -1]


@pytest.mark.parametrize("staged", [False, True])
def test_a_step_made_again_is_the_same(staged: bool) -> None:
    batch = batch_of(config_of(SPECS), staged=staged)
    request = Request("r", list(range(6)))
    batch.add_request("r", [[1, 2, 3], [4, 5, 6], [0, 7, 8]], [[], [], [9, 10]])
    batch.step([request], 6)
    request.num_computed_tokens = 6
    batch.step([request], 3, num_draft_tokens=2)
    request.num_computed_tokens = 8  # one draft accepted
    batch.add_request("r", [[1, 2, 3], [4, 5, 6], [0, 7, 8]], [[], [], [9, 10]])  # keeps what it knows of that step
    steps = [contents(batch.step([request], 3, num_draft_tokens=2)) for _ in range(2)]
    assert steps[0] == steps[1]
    assert steps[0]["state_reads"] == [[0], [0], [9]]
    assert steps[0]["state_writes"][2] == [[8, 9, 10]]


class Streams:
    """Streams and events that note who waits for what, in place of torch's."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self.current = "a"
        notes, streams = self.notes, self

        class Event:
            def record(self, stream: Any) -> None:
                notes.append(f"{stream.name} records {self.number}")

            def synchronize(self) -> None:
                notes.append(f"host waits for {self.number}")

            def __init__(self) -> None:
                self.number = streams.count = streams.count + 1

        class Stream:
            def __init__(self, name: str) -> None:
                self.name = name

            def wait_event(self, event: Event) -> None:
                notes.append(f"{self.name} waits for {event.number}")

        self.count = 0
        patched.setattr(torch.cuda, "Event", Event)
        patched.setattr(torch.cuda, "current_stream", lambda device: Stream(self.current))


def test_a_stream_waits_for_what_another_has_still_to_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of waits and records, on events in place of a GPU's."""
    run = Decoding(64)
    run.step()
    streams = Streams(monkeypatch)
    staging: Any = run.batch._staging
    staging._is_cuda, staging._spread = True, torch.cuda.Event()
    run.step()
    assert streams.notes == ["a waits for 1", "a records 2", "a records 1"]
    streams.notes.clear()
    streams.current = "b"
    run.step()
    assert streams.notes == ["b waits for 1", "b records 3", "b records 1"]
    streams.notes.clear()
    run.step()
    assert streams.notes == ["host waits for 2", "b waits for 1", "b records 2", "b records 1"]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("scope", [each for each in LARGE.values() if each.staged], ids=lambda each: each.name)
def test_histories_on_a_gpu(scope: WorkerScope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "InputBatch", partial(InputBatch, device="cuda"))
    assert walk(History(WorkerWorld(scope)), 1, 120).fired["HandOut"] > 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_host_may_run_ahead_of_a_gpu() -> None:
    runs = [Decoding(200, device="cpu", staged=False), Decoding(200, device="cuda")]
    expected, found = [], []
    weight = torch.ones((2048, 2048), device="cuda")
    for _ in range(40):
        expected.append([tensor.clone() for tensor in tensors(runs[0].step())])
        for _ in range(20):
            weight = weight @ weight.clamp(max=1e-3)  # keeps the GPU busy, so that it is behind by several steps
        found.append([tensor.clone() for tensor in tensors(runs[1].step())])
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(a, b.cpu()) for a, b in zip(one, other, strict=True))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_stays_on_the_gpu_that_was_current_when_it_was_made() -> None:
    assert batch_of(config_of(SPECS), device="cuda").device == torch.device("cuda", torch.cuda.current_device())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_on_two_streams_come_one_after_the_other() -> None:
    """The first is late: what it sends must not come after, or amid, what the second sends."""
    runs = [Decoding(200, device="cpu", staged=False), Decoding(200, device="cuda")]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for turn in range(40):
        expected = contents(runs[0].step())
        with torch.cuda.stream(streams[turn % 2]):
            if turn % 2 == 0:
                torch.cuda._sleep(50_000_000)
            found = runs[1].step()
        if turn % 2:
            torch.cuda.synchronize()
            assert contents(found) == expected
