"""Property: a wrong argument raises a typed error that names it and leaves a batch as it was: rows, tables, inputs.

How: each call below must raise the error with the words; then every number of the batch's memory is as before, and a
right step after it gives what a batch that has never seen the wrong call gives.
Not covered: memory that is too small for the tables.
"""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

import numpy as np
import torch
from librt.vecs import vec
from mypy_extensions import i32
from tests.device.batches import MAX_LEN, MOST_TOKENS, batch_of, config_of, contents, cross, full, mamba, sliding

from blockwright import KVCacheManager, Request
from blockwright.device import InputBatch
from blockwright.errors import (
    BlockError,
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnknownStepError,
    UnsupportedError,
)

SPECS = [full(4), sliding(4, 3), mamba(4, 2), cross(4)]


class Running:
    """Three requests that run, a batch, and the allocation of the next step, which is not yet applied."""

    def __init__(self, staged: bool) -> None:
        config = config_of(SPECS)
        self.manager = KVCacheManager(config, MAX_LEN, enable_caching=False)
        self.batch: Any = batch_of(config, caching=False, rows=4, staged=staged)
        self.requests = [Request(f"r{i}", list(range(5 + i))) for i in range(3)]
        for request in self.requests:
            assert self.manager.allocate_slots(request, request.num_tokens, num_encoder_tokens=3) is not None
            self.add(request.request_id)
        news = [request.num_tokens for request in self.requests]
        self.batch.step(self.requests, news)
        for request, new in zip(self.requests, news, strict=True):
            request.num_computed_tokens = new
            request.append_output_token_ids([1])
        self.last = self.batch.step(self.requests[:1], [0])
        self.allocation = self.manager.allocate_slots_batch(self.requests, 3, num_draft_tokens=2)

    def add(self, name: str) -> None:
        drafts = self.manager.get_draft_block_ids(name)
        self.batch.add_request(name, self.manager.get_blocks(name), drafts, 3)

    def memory(self) -> object:
        replica = self.batch.replica
        numbers = list(replica.rows.tables), list(replica.words), list(replica.counts), self.batch.request_ids
        return numbers, contents(self.last)

    def next_allocation(self) -> Any:
        """Reject the drafts of the step, and give slots for the next one."""
        for request in self.requests:
            request.num_computed_tokens += 1
            request.append_output_token_ids([1])
        return self.manager.allocate_slots_batch(self.requests, 3, num_draft_tokens=2)

    def right_step(self) -> object:
        return contents(self.batch.step(self.requests, 3, self.allocation, num_draft_tokens=2)), self.memory()


FIELDS = (
    "num_served", "refused", "new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets",
    "replaced_entries", "number", "request_ids",
)  # fmt: skip


def altered(allocation: Any, **changes: Any) -> Any:
    """Return an allocation with other attributes, as a message that knows no number and no ids."""
    return SimpleNamespace(**{name: getattr(allocation, name) for name in FIELDS[:-2]} | changes)


def step(
    new: Any = 3,
    drafts: Any = 2,
    pick: Callable[[list[Any]], Sequence[Any]] = list,
    copies: Any = (),
    applies: bool = True,
    **changes: Any,
) -> Callable[[Running], object]:
    def call(run: Running) -> object:
        given = altered(run.allocation, **changes) if applies else None
        return run.batch.step(pick(run.requests), new, given, copies, num_draft_tokens=drafts)

    return call


def at(position: int, **attributes: Any) -> Callable[[list[Any]], list[Any]]:
    """Put an object that is no `Request` in the place of one of the requests."""

    def pick(requests: list[Any]) -> list[Any]:
        known = {"request_id": requests[position].request_id}
        known["num_computed_tokens"] = requests[position].num_computed_tokens
        return [*requests[:position], SimpleNamespace(**known | attributes), *requests[position + 1 :]]

    return pick


def blocks(*lists: Sequence[Any]) -> Callable[[Running], object]:
    return lambda run: run.batch.add_request("r9", lists)


WRONG: dict[str, tuple[Callable[[Running], object], type[Exception], str]] = {
    "an unknown request": (step(pick=at(1, request_id="r7")), UnknownRequestError, "'r7' has no row"),
    "no id": (step(pick=at(1, request_id=None)), InvalidArgumentError, "request_id: must be a string"),
    "nothing": (step(pick=lambda r: [*r, None]), InvalidArgumentError, "request_id: must be a string"),
    "a request twice": (step(pick=lambda r: [r[0], r[1], r[0]]), DuplicateRequestError, "'r0' is given twice"),
    "an id twice": (step(pick=at(1, request_id="r0")), DuplicateRequestError, "'r0' is given twice"),
    "more requests than rows": (step(pick=lambda r: r * 2), InvalidArgumentError, "6 of them, but there are 4 rows"),
    "a negative count": (step(new=-1), InvalidArgumentError, "num_new_tokens"),
    "too few counts": (step(new=[3, 3]), InvalidArgumentError, "2 counts for 3 requests"),
    "a huge count": (step(new=2**70), InvalidArgumentError, "num_new_tokens"),
    "negative drafts": (step(drafts=-1), InvalidArgumentError, "num_draft_tokens"),
    "only drafts": (step(new=2), InvalidArgumentError, "2 drafts among 2 new tokens of 'r0'"),
    "more drafts than tokens": (step(new=1), InvalidArgumentError, "2 drafts among 1 new tokens of 'r0'"),
    "more drafts than states": (
        step(new=[3, 4, 3], drafts=[2, 3, 2]), BlockError, "3 drafts of 'r1', but it has 2 blocks",
    ),
    "too long a request": (step(new=[3, 45, 3]), InvalidArgumentError, "6 computed and 45 new tokens of 'r1'"),
    "too many tokens": (step(new=[22, 22, 22]), InvalidArgumentError, f"66 in all, but .* at most {MOST_TOKENS}"),
    "negative computed": (step(pick=at(2, num_computed_tokens=-1)), InvalidArgumentError, "-1 computed"),
    "huge computed": (step(pick=at(2, num_computed_tokens=2**70)), InvalidArgumentError, "computed and 3 new"),
    "computed that is no count": (step(pick=at(2, num_computed_tokens=None)), InvalidArgumentError, "num_computed"),
    "no allocation": (step(applies=False), BlockError, "position 8 of 'r1' in group 0 has no block"),
    "slots beyond": (step(new=[3, 3, 8]), BlockError, "position 12 of 'r2' in group 0 has no block"),
    "slots trimmed": (step(pick=at(2, num_computed_tokens=0)), BlockError, "position 0 of 'r2' in group 1"),
    "more accepted than there are": (
        step(new=1, drafts=0, pick=at(1, num_computed_tokens=9)), BlockError, "the state after 9 tokens of 'r1'",
    ),
    "more served than given": (step(num_served=4), InvalidArgumentError, "it served 4 requests, but 3 are given"),
    "served less than none": (step(num_served=-1), InvalidArgumentError, "it served -1"),
    "too few groups": (step(nulled_offsets=vec[i32]([0] * 4)), InvalidArgumentError, "not one of 4 groups"),
    "a block of another pool": (step(new_block_ids=vec[i32]([60] * 9)), BlockError, "60 of 'r1' in group 0"),
    "a negative block": (step(new_block_ids=vec[i32]([-1] * 9)), BlockError, "-1 of 'r1' in group 0 is no block"),
    "ends beyond": (step(new_block_ids=vec[i32]()), InvalidArgumentError, "do not fit"),
    "entries beyond": (step(nulled_entries=vec[i32]([7, 7])), InvalidArgumentError, "entry 7 of 'r1' in group 1"),
    "a missed allocation": (
        step(replaced_entries=vec[i32]([1, 1, 8, 5])), InvalidArgumentError, "entry 8 of 'r1' in group 1 was replaced",
    ),
    "a group replaced": (step(replaced_entries=vec[i32]([1, 4, 0, 5])), InvalidArgumentError, "request 1, group 4"),
    "a request replaced": (step(replaced_entries=vec[i32]([3, 0, 0, 5])), InvalidArgumentError, "request 3, group 0"),
    "a null block put in": (step(replaced_entries=vec[i32]([1, 0, 1, 0])), BlockError, "position 6 of 'r1' in group 0"),
    "copies of other groups": (step(copies=[[(1, 2)]]), InvalidArgumentError, "1 lists of pairs"),
    "copies of the null block": (step(copies=[[(0, 2)], [], [], []]), BlockError, r"\(0, 2\) in group 0"),
    "copies of no block": (step(copies=[[(1, 60)], [], [], []]), BlockError, r"\(1, 60\) in group 0"),
    "apply to an unknown": (
        lambda run: run.batch.apply([SimpleNamespace(request_id="r7")], run.allocation), UnknownRequestError, "'r7'",
    ),
    "apply to few": (lambda run: run.batch.apply(run.requests[:2], run.allocation), InvalidArgumentError, "2 are"),
    "add without a name": (lambda run: run.batch.add_request("", ()), InvalidArgumentError, "request_id"),
    "add too few groups": (blocks([1], [1]), InvalidArgumentError, "2 lists for 'r9'"),
    "add too many blocks": (blocks([1] * 13, [], [], []), InvalidArgumentError, "13 blocks of 'r9' in group 0"),
    "add two states": (blocks([], [], [1, 2], []), InvalidArgumentError, "2 blocks of 'r9' in group 2"),
    "add a block of another pool": (blocks([], [60], [], []), BlockError, "60 of 'r9' in group 1 is no block"),
    "add a negative block": (blocks([], [], [], [-1]), BlockError, "-1 of 'r9' in group 3"),
    "add too many drafts": (
        lambda run: run.batch.add_request("r1", (), [[], [], [1, 2, 3], []]), InvalidArgumentError, "3 blocks for",
    ),
    "add drafts of no states": (
        lambda run: run.batch.add_request("r1", (), [[1], [], [], []]), InvalidArgumentError, "1 blocks for drafts",
    ),
    "add a long encoder": (
        lambda run: run.batch.add_request("r1", (), (), 13), InvalidArgumentError, "13 for 'r1', but rows",
    ),
    "remove an unknown": (lambda run: run.batch.remove_request("r7"), UnknownRequestError, "'r7' has no row"),
    "move an unknown": (lambda run: run.batch.move_request("r7", 3), UnknownRequestError, "'r7' has no row"),
    "move onto another": (lambda run: run.batch.move_request("r0", 1), InvalidArgumentError, "1 is that of 'r1'"),
    "move beyond": (lambda run: run.batch.move_request("r0", 4), InvalidArgumentError, r"within 0\.\.3, not 4"),
    "slots of an unknown": (lambda run: run.batch.slots("r7", 0, 0, 1), UnknownRequestError, "'r7'"),
    "slots of no group": (lambda run: run.batch.slots("r0", 4, 0, 1), InvalidArgumentError, "group: must be"),
    "slots of states": (lambda run: run.batch.slots("r0", 2, 0, 1), UnsupportedError, "group 2 hold states"),
    "slots in no order": (lambda run: run.batch.slots("r0", 3, 2, 1), InvalidArgumentError, "start, stop"),
    "slots beyond the encoder": (lambda run: run.batch.slots("r0", 3, 3, 5), BlockError, "position 4 of 'r0'"),
    "step with no allocation": (
        lambda run: run.batch.step(run.requests, 3, "x", num_draft_tokens=2), InvalidArgumentError, "allocation: must",
    ),
    "nulled beyond": (step(nulled_entries=vec[i32]()), InvalidArgumentError, "it nulled entries 0..1 of 0"),
    "a truth among counts": (step(new=[3, 3, True]), InvalidArgumentError, "num_new_tokens: must be an integer"),
    "add what there was no room for": (
        lambda run: run.batch.add_request("r9", None), InvalidArgumentError, "block_ids: must be a KVCacheBlocks",
    ),
    "add a huge block": (blocks([2**70], [], [], []), BlockError, "of 'r9' in group 0 is no block"),
    "swap a fraction": (lambda run: run.batch.swap(0, 1.0), InvalidArgumentError, r"other: must be .*, not 1\.0"),
    "move onto another's, by numpy": (
        lambda run: run.batch.move_request("r0", np.int64(1)), InvalidArgumentError, "1 is that of 'r1'",
    ),
    "slots without end": (lambda run: run.batch.slots("r0", 0, 0, 2**31 - 1), BlockError, "position 8 of 'r0'"),
    "pages of states": (lambda run: run.last.paged_kv(2), UnsupportedError, "group 2 hold states and have no pages"),
    "pages of no group": (lambda run: run.last.paged_kv(4), InvalidArgumentError, "group: must be an integer within"),
    "padding below": (lambda run: run.last.padded(0, 3), InvalidArgumentError, "num_requests: must be"),
    "padding beyond": (lambda run: run.last.padded(4, 65), InvalidArgumentError, "num_tokens: must be"),
}  # fmt: skip


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name: str, staged: bool) -> None:
    call, error, words = WRONG[name]
    run, other = Running(staged), Running(staged)
    before = run.memory()
    with pytest.raises(error, match=words):
        call(run)
    assert run.memory() == before
    assert run.right_step() == other.right_step()


def test_a_full_batch_takes_no_request_more() -> None:
    run = Running(staged=False)
    run.batch.add_request("r3")
    before = run.memory()
    with pytest.raises(InvalidArgumentError, match="all 4 rows are taken"):
        run.batch.add_request("r4")
    assert run.memory() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_requests": 0}, "max_num_requests"),
        ({"max_num_tokens": -1}, "max_num_tokens"),
        ({"max_model_len": 2**31}, "max_model_len"),
        ({"max_encoder_len": 0}, "max_encoder_len"),
        ({"config": None}, "config: must be a KVCacheConfig"),
        ({"device": "meta"}, "device: .* have no memory"),
        ({"device": "nowhere"}, "device: torch knows none by 'nowhere'"),
    ],
)
def test_wrong_limits(options: dict[str, Any], words: str) -> None:
    right = {"max_num_requests": 4, "max_num_tokens": 8, "max_model_len": 16, "max_encoder_len": 4}
    with pytest.raises(InvalidArgumentError, match=words):
        InputBatch(**{"config": config_of(SPECS)} | right | options)


@pytest.mark.parametrize("length", [-1, 2**31])
def test_wrong_encoders_where_there_is_none(length: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_encoder_len: must be an integer within 0"):
        InputBatch(config_of([full(4)]), max_num_requests=4, max_num_tokens=8, max_model_len=16, max_encoder_len=length)


@pytest.mark.parametrize("staged", [False, True])
def test_inputs_of_an_earlier_step_are_not_padded(staged: bool) -> None:
    """Their memory is the later one's: zeros behind two tokens would fall into its five."""
    run, other = Running(staged), Running(staged)
    earlier = run.last
    with pytest.raises(InvalidArgumentError):
        run.batch.step(run.requests, -1)  # no step
    earlier.padded(1, 1).padded(2, 2)
    found = run.right_step()
    with pytest.raises(UnknownStepError, match="call it before the next step"):
        earlier.padded(4, 64)
    with pytest.raises(UnknownStepError, match="paged_kv: these are the inputs of step 2, but"):
        earlier.paged_kv(0)
    other.last.padded(1, 1).padded(2, 2)
    assert found == other.right_step()


@pytest.mark.parametrize("staged", [False, True])
def test_integers_of_numpy_are_integers(staged: bool) -> None:
    run, other = Running(staged), Running(staged)
    three, two = np.int64(3), np.int32(2)
    for each in (run, other):
        each.batch.add_request("r3", ([1], [2], [3], [4]), (), 4)
        each.batch.swap(0, 2)
        each.batch.move_request("r3", 3)
    run.batch.remove_request("r3")
    run.batch.add_request("r3", [np.array([1]), torch.tensor([2]), (np.int32(3),), np.array([4])], (), np.int64(4))
    run.batch.swap(np.int64(0), np.int32(2))
    run.batch.swap(np.int64(0), np.int32(2))
    run.batch.move_request("r3", np.int64(3))
    assert run.batch.block_ids("r3") == [[1], [2], [3], [4]]
    assert run.batch.slots("r0", np.int64(0), np.int64(1), three).tolist() == other.batch.slots("r0", 0, 1, 3).tolist()
    found = run.batch.step(run.requests, three, run.allocation, [[(three, two)], [], [], []], num_draft_tokens=two)
    wanted = other.batch.step(other.requests, 3, other.allocation, [[(3, 2)], [], [], []], num_draft_tokens=2)
    assert contents(found) == contents(wanted)
    assert contents(run.batch.step(run.requests, np.array([3, 3, 3]), num_draft_tokens=torch.tensor([2, 2, 2]))) == (
        contents(other.batch.step(other.requests, 3, num_draft_tokens=2))
    )


def test_another_use_of_caching_is_named() -> None:
    """Recurrent layers keep one state without it and many with it: what does not fit is told."""
    config = config_of([full(4), mamba(4)])
    with_it, without = batch_of(config), batch_of(config, caching=False)
    with pytest.raises(InvalidArgumentError, match="the batch's enable_caching differs from the manager's"):
        without.add_request("r", [[1, 2], [3, 4]])
    request = Request("r", list(range(9)))
    manager = KVCacheManager(config, MAX_LEN, enable_caching=True)
    without.add_request("r")
    with pytest.raises(InvalidArgumentError, match="the batch's enable_caching or max_model_len differ"):
        without.apply([request], manager.allocate_slots_batch([request], 9))
    with_it.add_request("r", [[1, 2, 3], [4]])
    with pytest.raises(BlockError, match="enable_caching differs from the manager's"):
        with_it.step([request], 9)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_request_that_was_removed_is_unknown(is_taken: bool) -> None:
    run = Running(staged=False)
    run.batch.remove_request("r1")
    if is_taken:
        run.batch.add_request("r3", run.manager.get_blocks("r1"), run.manager.get_draft_block_ids("r1"), 3)
        assert run.batch.row_of("r3") == 1
    before = run.memory()
    with pytest.raises(UnknownRequestError, match="'r1' has no row"):
        run.batch.step(run.requests, 3, run.allocation, num_draft_tokens=2)
    assert run.memory() == before


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("steps", [False, True])
def test_an_allocation_is_applied_once(steps: bool, staged: bool) -> None:
    """Nor does another one after it make it new, and one that failed may be tried again."""
    run, other = Running(staged), Running(staged)
    with pytest.raises(BlockError):
        run.batch.step(run.requests, 9, run.allocation, num_draft_tokens=2)
    assert run.right_step() == other.right_step()
    before = run.memory()
    again = partial(run.batch.step, num_new_tokens=3, num_draft_tokens=2) if steps else run.batch.apply
    with pytest.raises(InvalidArgumentError, match="allocation: it is number 1 of its manager, and number 1 was"):
        again(run.requests, allocation=run.allocation)
    assert run.memory() == before
    later = run.next_allocation()
    run.batch.apply(run.requests, later)
    with pytest.raises(InvalidArgumentError, match="number 1 of its manager, and number 2 was applied already"):
        run.batch.apply(run.requests, run.allocation)
    copied = run.manager.copy().allocate_slots_batch([], 1)
    assert copied.number == later.number + 1


def test_a_batch_without_requests_may_serve_another_manager() -> None:
    run, other = Running(staged=False), Running(staged=False)
    run.right_step()
    run.batch.apply(run.requests, run.next_allocation())  # number 2, as the other's below
    for request in run.requests:
        run.batch.remove_request(request.request_id)
    assert run.batch.step([], 3, num_draft_tokens=[]).positions.tolist() == []
    run.manager, run.requests = other.manager, other.requests
    for request in run.requests:
        run.add(request.request_id)
    run.batch.step(run.requests, 3, other.next_allocation(), num_draft_tokens=2)


@pytest.mark.parametrize("staged", [False, True])
def test_an_allocation_is_of_its_requests(staged: bool) -> None:
    """In their order; only rows that it changes tell."""
    run, other = Running(staged), Running(staged)
    before = run.memory()
    wrong = run.requests[::-1]
    with pytest.raises(InvalidArgumentError, match="number 1 of the allocation's batch is 'r1', but 'r0' is given"):
        run.batch.step([wrong[0], wrong[2], wrong[1]], 3, run.allocation, num_draft_tokens=2)
    with pytest.raises(InvalidArgumentError, match="requests: number 2 of the allocation's batch is 'r2', but 'r0' is"):
        run.batch.apply(wrong, run.allocation)
    replaced = altered(run.allocation, request_ids=["r0", "r1", "r2"], new_block_offsets=vec[i32]([0] * 13))
    replaced.nulled_offsets, replaced.replaced_entries = vec[i32]([0] * 13), vec[i32]([1, 0, 0, 5])
    with pytest.raises(InvalidArgumentError, match="number 1 of the allocation's batch is 'r1', but 'r0' is given"):
        run.batch.apply([run.requests[1], run.requests[0], run.requests[2]], replaced)
    with pytest.raises(InvalidArgumentError, match="allocation: it served 3 requests, but has ids of 2"):
        run.batch.apply(run.requests, altered(run.allocation, request_ids=("r0", "r1")))
    assert run.memory() == before
    assert run.right_step() == other.right_step()


def test_an_allocation_goes_to_another_process() -> None:
    run, other = Running(staged=False), Running(staged=False)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.loads(pickle.dumps(run.allocation, protocol))
        assert {name: getattr(sent, name) for name in FIELDS} == {n: getattr(run.allocation, n) for n in FIELDS}
        assert repr(sent) == repr(run.allocation)
    run.allocation = sent
    assert run.right_step() == other.right_step()
    with pytest.raises(InvalidArgumentError, match="was applied already"):
        run.batch.apply(run.requests, other.allocation)
