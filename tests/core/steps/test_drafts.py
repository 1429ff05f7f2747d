"""Property: a recurrent layer goes back from rejected drafts to the state of the last accepted token, and no draft is
ever found.

How: an engine of its own writes a state to each block that a step fills, that of the last certain token to the table
and one for each draft beside it, and reads the state it goes on from; random steps, drafts, rejections and prefix hits,
with prefix caching and without, alone and beside other kinds. Numbers of states and errors by hand.

Not covered: drafts with steps in flight (test_time.py, test_time_walk.py), drafts of attention alone (test_slots.py).
"""

from __future__ import annotations

from random import Random

import pytest
from tests.core.steps.timed import refused
from tests.core.support import full, mamba, manager_dump, manager_of, manager_over, sliding

from blockwright import Fits, KVCacheManager, KVCacheSpec, MambaSpec, NotNow, Request
from blockwright.errors import InvalidArgumentError, UnknownRequestError

KINDS: dict[str, list[KVCacheSpec]] = {
    "mamba": [mamba(4, 2)],
    "mamba of one token": [mamba(1, 1)],
    "full, mamba": [full(2), mamba(4, 3)],
    "two mambas": [mamba(2, 3), mamba(4, 2)],
    "sliding, mamba, full": [sliding(2, 3), mamba(2, 1), full(4)],
}


class Engine:
    """Writes and reads states; a state is the tokens that led to it."""

    def __init__(self, specs: list[KVCacheSpec], caching: bool, random: Random) -> None:
        self.specs, self.caching, self.random = specs, caching, random
        self.manager = manager_over(specs, 60, 50, caching)
        self.most = min(spec.num_speculative_blocks for spec in specs if isinstance(spec, MambaSpec))
        self.states: dict[int, tuple[int, ...]] = {}
        self.running: list[Request] = []
        self.hits = self.rejected = self.number = 0

    def read(self, request: Request) -> None:
        """See that each recurrent layer finds the state after the computed tokens."""
        tokens = tuple(request.all_token_ids[: request.num_computed_tokens])
        blocks = self.manager.get_state_block_ids(request)
        for spec, block in zip(self.specs, blocks, strict=True):
            if isinstance(spec, MambaSpec) and tokens:
                assert self.states[block] == tokens
            else:
                assert block == 0

    def write(self, request: Request, certain: int, drafts: list[int]) -> None:
        """Write the states of a step: after its last certain token, and after each draft."""
        tokens = (*request.all_token_ids[:certain], *drafts)
        name = request.request_id
        tables, own = self.manager.get_block_ids(name), self.manager.get_draft_block_ids(name)
        for spec, table, states in zip(self.specs, tables, own, strict=True):
            if not isinstance(spec, MambaSpec):
                assert states == []
                continue
            assert len(states) == spec.num_speculative_blocks
            last = table[(certain - 1) // spec.block_size] if self.caching else table[0]
            for block, end in zip([last, *states], range(certain, len(tokens) + 1), strict=False):
                assert block != 0
                self.states[block] = tokens[:end]

    def match_keys(self) -> None:
        """See that a hit of each request's tokens finds exactly the states that they lead to."""
        for request in self.running:
            probe = Request("probe", [*request.all_token_ids, 9], 1)
            hit, tokens = self.manager.get_computed_blocks(probe)
            for spec, ids in zip(self.specs, hit.ids, strict=True):
                if isinstance(spec, MambaSpec) and tokens:
                    assert self.states[int(ids[-1])] == tuple(probe.all_token_ids[:tokens])

    def admit(self) -> None:
        self.number += 1
        tokens = [*range(8), *(self.random.randrange(2) for _ in range(8))][: self.random.randint(4, 16)]
        request = Request(f"r{self.number}", tokens, 1)
        hit, tokens_found = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, 0 if tokens_found else 4, tokens_found, hit) is None:
            return
        self.hits += tokens_found > 0
        if not tokens_found:
            self.write(request, 4, [])
        request.num_computed_tokens = tokens_found or 4
        self.running.append(request)
        self.accept(request, [])

    def accept(self, request: Request, drafts: list[int]) -> None:
        """Let a step end: some of its drafts hold, and one more token is known if all of them were computed."""
        if request.num_computed_tokens < request.num_tokens:
            return
        accepted = drafts[: self.random.randint(0, len(drafts))]
        self.rejected += len(accepted) < len(drafts)
        request.append_output_token_ids([*accepted, self.random.randrange(2)])
        request.num_computed_tokens += len(accepted)

    def step(self) -> None:
        request = self.random.choice(self.running)
        self.read(request)
        start, known = request.num_computed_tokens, request.num_tokens
        new = known - start if self.random.random() < 0.7 else self.random.randint(1, known - start)
        drafts = [self.random.randrange(2) for _ in range(self.random.randint(0, self.most))]
        if start + new < known or known + len(drafts) > 50:
            drafts = []
        total, ahead = new + len(drafts), self.random.randint(0, self.most)
        if known >= 50 or self.manager.allocate_slots(request, total, 0, None, ahead, False, len(drafts)) is None:
            self.manager.free(request)
            self.running.remove(request)
            return
        self.write(request, start + new, drafts)
        request.num_computed_tokens += new
        self.accept(request, drafts)


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_states_are_read_where_they_were_written(specs: list[KVCacheSpec], caching: bool) -> None:
    hits = rejected = 0
    for seed in range(4):
        engine = Engine(specs, caching, Random(seed))
        for number in range(150):
            if len(engine.running) < 4 and (not engine.running or engine.random.random() < 0.3):
                engine.admit()
            if engine.running:
                engine.step()
            engine.manager.check()
            if number % 5 == 0:
                engine.match_keys()
        hits, rejected = hits + engine.hits, rejected + engine.rejected
    assert rejected > 20
    assert (hits > 5) == caching


def drafted(manager: KVCacheManager, drafts: int = 2) -> Request:
    """A request of 8 computed tokens and one more, which a step computes with drafts after it."""
    request = Request("r", list(range(8)), 4)
    assert manager.allocate_slots(request, 8) is not None
    request.num_computed_tokens = 8
    request.append_output_token_ids([8])
    assert manager.allocate_slots(request, 1 + drafts, num_draft_tokens=drafts) is not None
    return request


def test_states_of_drafts_are_taken_once_and_counted() -> None:
    manager = manager_over([full(4), mamba(4, 2)], 8)
    request = Request("r", list(range(8)), 4)
    plan = manager.plan(request, 8)
    assert isinstance(plan, Fits)
    assert plan.num_blocks == 5  # two blocks, a state, and two states of drafts
    manager.commit(plan)
    assert manager.get_block_ids("r") == ([1, 2], [0, 3])
    assert manager.get_draft_block_ids("r") == ([], [4, 5])
    other = manager.plan(Request("other", [1], 4), 1)
    assert isinstance(other, NotNow)
    assert other.num_missing_blocks == 2  # a block, a state and its two
    request.num_computed_tokens = 8
    request.append_output_token_ids([8])
    plan = manager.plan(request, 3, num_draft_tokens=2)
    assert isinstance(plan, Fits)
    assert plan.num_blocks == 2  # the drafts need no more
    manager.commit(plan)
    assert manager.get_draft_block_ids("r") == ([], [4, 5])
    refused(manager, UnknownRequestError, manager.get_draft_block_ids, "nobody")
    refused(manager, UnknownRequestError, manager.get_state_block_ids, Request("nobody", [1], 4))
    manager.free(request)
    assert manager.usage == 0.0
    manager.check()


@pytest.mark.parametrize("caching", [True, False])
def test_the_state_follows_what_was_accepted(caching: bool) -> None:
    for accepted in (0, 1, 2):
        manager = manager_over([full(4), mamba(4, 2)], caching=caching)
        request = drafted(manager)
        (last, states) = manager.get_block_ids("r")[1][-1], manager.get_draft_block_ids("r")[1]
        request.append_output_token_ids(list(range(9, 10 + accepted)))
        request.num_computed_tokens = 9 + accepted
        assert manager.get_state_block_ids(request) == [0, [last, *states][accepted]]
        request.num_computed_tokens = 12
        assert manager.get_state_block_ids(request) == [0, 0]  # no such state was written


def test_the_state_that_a_step_reads_is_known_when_its_slots_are() -> None:
    manager = manager_of(mamba(4, 2))
    request = drafted(manager)
    request.append_output_token_ids([9, 10])
    request.num_computed_tokens = 10  # one draft was accepted
    before = manager.get_state_block_ids(request)
    assert manager.allocate_slots(request, 3, num_draft_tokens=2) is not None
    assert manager.get_state_block_ids(request) == before


def test_drafts_are_not_found() -> None:
    """Neither a state of a draft, nor the certain state at the end of a block that a draft would complete."""
    manager = manager_of(mamba(2, 2))
    request = Request("r", list(range(5)), 2)
    assert manager.allocate_slots(request, 7, num_draft_tokens=2) is not None  # the first draft ends a block
    assert manager.num_published("r") == (0,)
    request.append_output_token_ids([5, 6])  # it holds
    request.num_computed_tokens = 6
    manager.cache_blocks(request, 6)
    assert manager.get_computed_blocks(Request("same", list(range(9)), 2))[1] == 0  # the state has no block of a table
    assert manager.allocate_slots(request, 1) is not None
    request.append_output_token_ids([7])
    request.num_computed_tokens = 7
    assert manager.allocate_slots(request, 1) is not None
    manager.new_step_starts()
    assert manager.get_computed_blocks(Request("same", list(range(9)), 2))[1] == 8
    manager.check()


@pytest.mark.parametrize("caching", [True, False])
def test_no_more_drafts_than_states(caching: bool) -> None:
    several: list[tuple[list[KVCacheSpec], int]] = [
        ([mamba(4, 2)], 2),
        ([mamba(2, 3), full(), mamba(4, 1)], 1),
        ([mamba(), full()], 0),
    ]
    for specs, most in several:
        manager = manager_over(specs, caching=caching)
        request = Request("r", list(range(8)), 2)
        for drafts in (most + 1, 7, 90):
            for call in (manager.allocate_slots, manager.plan):
                message = refused(manager, InvalidArgumentError, call, request, 8 + drafts, num_draft_tokens=drafts)
                assert "num_draft_tokens" in message or "max_model_len" in message
                refused(manager, InvalidArgumentError, call, request, 8, num_lookahead_tokens=drafts)
            refused(manager, InvalidArgumentError, manager.allocate_slots_batch, [request], 8 + drafts, 0, drafts)
        for new, drafts in ((9, 0), (8, 1), (9, 9), (10, 1), (8 + most, most + 1)):  # drafts that are none, or not told
            refused(manager, InvalidArgumentError, manager.allocate_slots, request, new, num_draft_tokens=drafts)
        assert manager.allocate_slots(request, 8 + most, 0, None, most, False, most) is not None
        kept = [spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0 for spec in specs]
        assert [len(ids) for ids in manager.get_draft_block_ids("r")] == kept


def test_going_back_no_further_than_what_is_certain() -> None:
    manager = manager_over([full(4), mamba(4, 2)])
    request = drafted(manager)
    for computed in (8, 12, 0):
        request.num_computed_tokens = computed
        before = manager_dump(manager)
        for drafts in (0, 1):
            refused(manager, InvalidArgumentError, manager.allocate_slots, request, 1 + drafts, num_draft_tokens=drafts)
        assert manager_dump(manager) == before
    request.num_computed_tokens = 9
    request.append_output_token_ids([60])
    assert manager.allocate_slots(request, 3, num_draft_tokens=2) is not None
    manager.check()


def test_a_lookahead_beyond_the_states_is_named() -> None:
    manager = manager_of(mamba(4, 2))
    request = Request("r", list(range(8)), 4)
    for new, drafts in ((8, 0), (10, 2)):
        counts = {"num_lookahead_tokens": 3, "num_draft_tokens": drafts}
        message = refused(manager, InvalidArgumentError, manager.allocate_slots, request, new, **counts)
        assert "num_lookahead_tokens" in message


def test_a_full_pool_refuses_the_next_state_after_many_rejected_drafts() -> None:
    """The slots of the rejected drafts are more than the step asks for, but the state needs a block of its own."""
    manager = manager_over([full(1), mamba(2, 3)], 10, 16, True)
    request = Request("r", [1], block_size=1)
    assert manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens = 1
    request.append_output_token_ids([1])
    assert manager.allocate_slots(request, 4, num_draft_tokens=3) is not None
    request.num_computed_tokens = 2  # all three were rejected
    request.append_output_token_ids([1])
    assert manager.block_pool.get_num_free_blocks() == 0
    assert manager.allocate_slots(request, 1) is None
    assert manager.get_block_ids("r") == ([1, 6, 7, 8, 9], [2])
    manager.check()
    manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == 9
