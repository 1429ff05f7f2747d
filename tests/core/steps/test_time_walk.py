"""Property: however steps overlap, no block that one of them reads or writes is free, and copies go their own way.

How: random walks over groups with one to four steps in flight, drafts, rejections, preemption and full pools; an
observer keeps, for each step, the blocks that it was given to read and write (law FLIGHT-1), and the self-check runs
after each step. Copies are settled in another order of events than the original.

Not covered: what hits find (conformance compares contents), loads (test_loads.py).
"""

from __future__ import annotations

from random import Random

import pytest
from tests.core.steps.timed import KINDS, give, over, prefilled
from tests.core.support import full, mamba, manager_dump, manager_over, needed, sliding

from blockwright import KVCacheManager, KVCacheSpec, MambaSpec, Request


class Engine:
    """Runs random steps and knows which blocks each of those in flight touches."""

    def __init__(self, specs: list[KVCacheSpec], random: Random, settles: bool) -> None:
        self.specs, self.random = specs, random
        self.manager = manager_over(specs, 25, 60, overlap_steps=True, publish_on_settlement=settles)
        self.most = min((spec.num_speculative_blocks for spec in specs if isinstance(spec, MambaSpec)), default=3)
        self.recurrent = any(isinstance(spec, MambaSpec) for spec in specs)
        self.running: dict[str, Request] = {}
        self.flights: list[tuple[int, dict[str, int], set[int]]] = []
        self.number = self.fenced = self.rejected = 0

    def touched(self, request: Request, start: int) -> set[int]:
        """The blocks that a step from `start` on may read or write."""
        blocks: set[int] = set()
        name = request.request_id
        for spec, table, states in zip(
            self.specs, self.manager.get_block_ids(name), self.manager.get_draft_block_ids(name), strict=True
        ):
            size = spec.block_size
            read = {position // size for position in needed(spec, start)}
            alive = {entry for entry in range(len(table)) if entry in read or (entry + 1) * size > start}
            blocks |= {table[entry] for entry in alive} | set(states)
        return blocks - {0}

    def step(self) -> None:
        """Start a step: each request has its next tokens computed in it, unless it must wait."""
        number, drafted, blocks = self.manager.start_step(), dict[str, int](), set[int]()
        if len(self.running) < 4:
            self.number += 1
            tokens = [self.random.randrange(2) for _ in range(self.random.randint(1, 20))]
            self.running[f"r{self.number}"] = Request(f"r{self.number}", tokens, 2)
        for name, request in list(self.running.items()):
            start, known = request.num_computed_tokens, request.num_tokens
            in_flight = any(name in drafts for _, drafts, _ in self.flights)
            if self.random.random() < 0.2 or (self.recurrent and in_flight):
                continue
            certain = self.random.randint(1, max(1, known - start))
            room = self.most if start + certain >= known else 0
            drafts = self.random.randint(0, room)
            if start + certain + drafts > 60 or not self.slots(request, certain + drafts, drafts):
                self.end(name)
                continue
            drafted[name] = drafts
            blocks |= self.touched(request, start)
        self.flights.append((number, drafted, blocks))

    def slots(self, request: Request, new: int, drafts: int) -> bool:
        """Give slots, on a hit if the request is new."""
        if request.request_id in self.manager.request_ids() or request.num_computed_tokens:
            return give(self.manager, request, new, drafts)
        hit, tokens = self.manager.get_computed_blocks(request)
        new = request.num_tokens - tokens + drafts
        if self.manager.allocate_slots(request, new, tokens, hit, num_draft_tokens=drafts) is None:
            return False
        request.num_computed_tokens = tokens + new
        return True

    def end(self, name: str) -> None:
        """Release a request, whatever is in flight."""
        self.fenced += any(name in drafts for _, drafts, _ in self.flights)
        self.manager.free(self.running.pop(name))

    def settle(self) -> None:
        """Settle the oldest step; some of its drafts are rejected, and its tokens become known."""
        number, drafted, _ = self.flights.pop(0)
        mine = {name: drafts for name, drafts in drafted.items() if name in self.running}
        rejected = {name: self.random.randint(0, drafts) for name, drafts in mine.items() if drafts}
        before = {name: self.manager.num_settled(name) for name in mine}
        self.manager.settle_step(number, rejected)
        for name, drafts in mine.items():
            request, back = self.running[name], rejected.get(name, 0)
            assert self.manager.num_settled(name) >= before[name]
            request.num_computed_tokens -= back
            self.rejected += back
            more = self.manager.num_settled(name) + 1 - request.num_tokens
            if more > 0:
                request.append_output_token_ids([self.random.randrange(2) for _ in range(more)])
            assert more <= drafts + 1

    def check(self) -> None:
        self.manager.check()
        free = set(self.manager.block_pool.free_block_ids())
        for _, _, blocks in self.flights:
            assert not blocks & free
        assert self.manager.steps_in_flight == [number for number, _, _ in self.flights]


@pytest.mark.parametrize("settles", [False, True], ids=["eager", "settled"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_in_flight_is_never_free(name: str, settles: bool) -> None:
    seen = [0, 0]
    for seed in range(4):
        engine = Engine(KINDS[name], Random(f"{name} {seed}"), settles)
        for _ in range(150):
            engine.step()
            engine.check()
            if engine.random.random() < 0.1 and engine.running:
                engine.end(engine.random.choice(sorted(engine.running)))
                engine.check()
            while engine.flights and (len(engine.flights) > seed + 1 or engine.random.random() < 0.4):
                engine.settle()
                engine.check()
        seen[0] += engine.fenced
        seen[1] += engine.rejected
        for request in list(engine.running):
            engine.end(request)
        while engine.flights:
            engine.settle()
        assert engine.manager.usage == 0.0
        engine.check()
    assert all(seen)


def history(manager: KVCacheManager, request: Request, other: Request) -> object:
    """Settle, go on and release; the outcome of all of it."""
    manager.settle_step(1)
    manager.free(other)
    request.append_output_token_ids([77, 78])
    request.num_computed_tokens = 9
    manager.start_step()
    assert give(manager, request, 1)
    manager.settle_step(2)
    manager.check()
    return manager_dump(manager)


def test_copies_have_their_own_steps() -> None:
    manager = over([full(), sliding(2, 4)])
    request, other = prefilled(manager), Request("other", list(range(50, 58)), 2)
    assert give(manager, other, 8)
    copy = manager.copy()
    twins = request.copy(), other.copy()
    before = manager_dump(manager)
    assert manager_dump(copy) == before
    expected = history(copy, *twins)
    assert manager_dump(manager) == before
    assert history(manager, request, other) == expected


@pytest.mark.parametrize("specs", [[full(2)], [full(2), mamba(2)]], ids=["full", "full, mamba"])
def test_copies_publish_by_their_own_tokens(specs: list[KVCacheSpec]) -> None:
    """On settlement, too: what the original's request says by then is of no concern, nor the other way round."""
    manager = over(specs, settles=True)
    request = prefilled(manager, length=3)
    manager.start_step()
    assert give(manager, request, 1)  # the token that the first step will give
    manager.settle_step(1)
    copy, twin = manager.copy(), request.copy()
    request.append_output_token_ids([50])
    twin.append_output_token_ids([60])
    for each in (copy, manager):
        each.settle_step(2)
        each.check()
    assert manager.get_computed_blocks(Request("same", [0, 1, 2, 50, 9], 2))[1] == 4
    assert manager.get_computed_blocks(Request("not", [0, 1, 2, 60, 9], 2))[1] == (2 if len(specs) == 1 else 0)
    assert copy.get_computed_blocks(Request("not", [0, 1, 2, 50, 9], 2))[1] == (2 if len(specs) == 1 else 0)
