"""A small engine that walks at random through everything a manager offers, and checks each step.

After each step: the self-check passes; a replica of the tables, kept from results and deltas, equals the tables; a
mirror of the prefix cache, kept from events alone, equals the published keys; and a batch did what single calls would
have done to a copy. What blocks hold the gate `numerics` looks at.
All outputs and states go into a digest, so that two builds can be compared:

    python -m tests.core.walks.walk SETUP SEED STEPS      prints the digest and the build
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from random import Random

from tests.core.support import SETUPS, SHA256, Setup, ids_of, manager_dump, request_dump

from blockwright import Request, build_info
from blockwright.errors import BlockwrightError
from blockwright.events import BlockRemoved, BlockStored

MAX_LEN = 40


class Walk:
    """A manager, the requests that run on it, and what an observer knows of both."""

    def __init__(self, setup: Setup, random: Random, num_blocks: int = 14, use_eagle: bool = False) -> None:
        self.setup, self.random = setup, random
        self.manager = setup.manager(
            num_blocks,
            MAX_LEN,
            log_stats=True,
            enable_kv_cache_events=setup.caching,
            use_eagle=use_eagle,
            raise_never_fits=False,
        )
        self.running: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.replica: dict[str, list[int]] = {}
        self.mirror: set[bytes] = set()
        self.number = 0
        self.trace = hashlib.sha256()
        self.seen: set[str] = set()

    # ------------------------------------------------------------------ the engine

    def arrive(self) -> None:
        """A new request: one of few beginnings, so that prefixes are shared."""
        tokens = [self.random.randrange(2) * 5 + i for i in range(self.random.randint(1, 20))]
        if self.random.random() < 0.7:
            tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][: self.random.randint(1, 12)] + tokens[:8]
        salt = self.random.choice([None, None, None, "salt"])
        size = self.setup.spec.block_size
        self.number += 1
        self.waiting.append(Request(f"r{self.number}", tokens, size, cache_salt=salt, hasher=SHA256))

    def admit(self) -> None:
        """Look a waiting request up and start it, on its hit or without."""
        if not self.waiting:
            self.arrive()
        request = self.waiting.pop(self.random.randrange(len(self.waiting)))
        hit, num_hit = self.manager.get_computed_blocks(request)
        self.note("hit" if num_hit else "no hit", num_hit, ids_of(hit))
        if self.random.random() < 0.1:
            hit, num_hit = self.manager.create_empty_block_list(), 0
        left = request.num_tokens - num_hit
        new = self.random.choice([left, left, self.random.randint(1, left), 0 if num_hit else 1])
        before = manager_dump(self.manager)
        given = self.manager.allocate_slots(request, new, num_hit, hit, self.ahead())
        self.note("admitted" if given else "not admitted", given)
        if given is None:
            assert manager_dump(self.manager) == before
            self.waiting.append(request)
            return
        self.running[request.request_id] = request
        self.replica[request.request_id] = ids_of(hit) + ids_of(given)
        request.num_computed_tokens = num_hit
        self.compute(request, new, [])

    def decode(self) -> None:
        """Serve several running requests, and perhaps a new one, in one batch; let each accept what it may."""
        names = self.random.sample(sorted(self.running), self.random.randint(0, len(self.running)))
        batch = [self.running[name] for name in names]
        if self.waiting and self.random.random() < 0.3:
            batch.insert(self.random.randint(0, len(batch)), self.waiting[-1])
        steps = [self.plan(request) for request in batch]
        news = [new + len(drafts) for new, drafts in steps]
        aheads = [self.ahead() for _ in batch]
        expected = self.one_by_one(batch, news, aheads)
        step = self.manager.allocate_slots_batch(batch, news, aheads)
        refused = step.refused is not None
        self.note("batch cut short" if refused else "batch", step, list(step.new_block_ids), list(step.nulled_entries))
        deltas: list[tuple[list[int], list[int]]] = []
        for i, request in enumerate(batch):
            added = [int(b) for b in step.new_block_ids[step.new_block_offsets[i] : step.new_block_offsets[i + 1]]]
            nulled = [int(e) for e in step.nulled_entries[step.nulled_offsets[i] : step.nulled_offsets[i + 1]]]
            deltas.append((added, nulled))
            table = self.replica.setdefault(request.request_id, []) if i < step.num_served else []
            table += added
            for entry in nulled:
                table[entry] = 0
        served = step.num_served
        assert step.refused == (None if served == len(batch) else served)
        assert all(delta == ([], []) for delta in deltas[served:])
        assert ([added for added, _ in deltas[:served]], manager_dump(self.manager)) == expected
        for request, (new, drafts) in list(zip(batch, steps, strict=True))[:served]:
            if request in self.waiting:
                self.waiting.remove(request)
                self.running[request.request_id] = request
            self.compute(request, new, drafts)

    def one_by_one(self, batch: list[Request], news: list[int], aheads: list[int]) -> tuple[list[list[int]], object]:
        """What single calls do to a copy: the new ids of each that is served, and the state after."""
        copy, ids = self.manager.copy(), []
        for request, new, ahead in zip([request.copy() for request in batch], news, aheads, strict=True):
            given = copy.allocate_slots(request, new, num_lookahead_tokens=ahead)
            if given is None:
                break
            ids.append(ids_of(given))
        copy.check()
        return ids, manager_dump(copy)

    def plan(self, request: Request) -> tuple[int, list[int]]:
        """A step of a request: how many of its tokens to compute, and drafts after them."""
        left = request.num_tokens - request.num_computed_tokens
        new = left if self.random.random() < 0.7 else self.random.randint(1, left)
        room = min(3, MAX_LEN - request.num_computed_tokens - new)
        if new < left or room < 1 or not self.setup.drafts:
            return new, []
        return new, [self.random.randrange(3) for _ in range(self.random.randint(0, room))]

    def compute(self, request: Request, new: int, drafts: list[int], delay: bool = False) -> None:
        """Do a step that has its slots: accept some drafts, and one token more if all were computed."""
        start = request.num_computed_tokens
        if not delay and self.setup.caching and self.setup.drafts:
            full = min(start + new + len(drafts), request.num_tokens) // self.setup.spec.block_size
            assert self.manager.num_published(request.request_id) == (full,)
        request.num_computed_tokens += new
        if request.num_computed_tokens == request.num_tokens:
            accepted = drafts[: self.random.randint(0, len(drafts))]
            request.append_output_token_ids([*accepted, self.random.randrange(3)])
            request.num_computed_tokens += len(accepted)
        if request.num_tokens >= MAX_LEN:
            self.end(request)

    def alone(self) -> None:
        """Serve one running request by a single call, perhaps publishing later."""
        if not self.running:
            return
        request = self.running[self.random.choice(sorted(self.running))]
        new, drafts = self.plan(request)
        total, delay = new + len(drafts), self.random.random() < 0.5
        before = manager_dump(self.manager)
        given = self.manager.allocate_slots(request, total, num_lookahead_tokens=self.ahead(), delay_cache_blocks=delay)
        self.note("alone" if given else "refused", given)
        if given is None:
            assert manager_dump(self.manager) == before
            return
        table, new_ids = self.manager.get_block_ids(request.request_id)[0], ids_of(given)
        assert table[len(table) - len(new_ids) :] == new_ids
        self.replica[request.request_id] = table  # a single call does not tell which entries became null
        if delay and self.random.random() < 0.7:
            known = min(request.num_computed_tokens + total, request.num_tokens)
            self.manager.cache_blocks(request, self.random.choice([known, self.random.randint(0, known)]))
        self.compute(request, new, drafts, delay)

    def trim(self) -> None:
        """Trim a request ahead of its next step."""
        if self.running:
            request = self.running[self.random.choice(sorted(self.running))]
            self.manager.remove_skipped_blocks(request, request.num_computed_tokens)
            self.replica[request.request_id] = self.manager.get_block_ids(request.request_id)[0]

    def end(self, request: Request) -> None:
        self.manager.free(request)
        self.manager.free(request)  # releasing twice is harmless
        self.running.pop(request.request_id, None)
        self.replica.pop(request.request_id, None)

    def finish(self) -> None:
        if self.running:
            self.end(self.running[self.random.choice(sorted(self.running))])

    def preempt(self) -> None:
        if self.running:
            request = self.running[self.random.choice(sorted(self.running))]
            self.end(request)
            request.num_computed_tokens = 0
            self.waiting.append(request)

    def reset(self) -> None:
        if self.random.random() < 0.3:
            for request in list(self.running.values()):
                self.end(request)
        idle = not any(any(table) for table in self.replica.values())  # a table may be all null
        assert self.manager.reset_prefix_cache() == idle
        self.note("cache reset" if idle else "cache in use")

    def clone(self) -> None:
        """Go on with a copy of everything; what happens to the original is of no concern."""
        old = self.manager
        self.manager = old.copy()
        assert manager_dump(self.manager) == manager_dump(old)
        self.running = {name: request.copy() for name, request in self.running.items()}
        self.waiting = [request.copy() for request in self.waiting]
        for request in self.running.values():
            old.free(request.copy())
        old.check()
        assert old.usage == 0.0
        old.reset_prefix_cache()

    def offend(self) -> None:
        """A call that must be refused with a typed error and change nothing."""
        someone: Request = next(iter(self.running.values()), None) or Request("x", [1], None)
        manager, everyone = self.manager, list(self.running.values())
        calls: list[Callable[[], object]] = [
            lambda: manager.allocate_slots(someone, -1),
            lambda: manager.allocate_slots(someone, 0),
            lambda: manager.allocate_slots(someone, MAX_LEN + 1),
            lambda: manager.allocate_slots(someone, 1, 4),
            lambda: manager.allocate_slots(someone, 1, num_lookahead_tokens=-1),
            lambda: manager.allocate_slots_batch([*everyone, *everyone, someone], -1),
            lambda: manager.allocate_slots_batch([someone, someone], 1),
            lambda: manager.allocate_slots_batch([someone], [1, 1]),
            lambda: manager.cache_blocks(someone, MAX_LEN + 1),
            lambda: manager.remove_skipped_blocks(someone, MAX_LEN + 1),
            lambda: manager.get_block_ids("nobody"),
            lambda: manager.allocate_slots(Request(someone.request_id, [1], None), MAX_LEN + 1),
        ]
        before = manager_dump(manager), request_dump(someone)
        try:
            self.random.choice(calls)()
        except BlockwrightError as error:
            self.note(type(error).__name__, str(error))
        else:
            raise AssertionError("a call that cannot be right was accepted")
        assert (manager_dump(manager), request_dump(someone)) == before

    # ------------------------------------------------------------------ the observer

    ACTIONS = (arrive, admit, admit, admit, decode, decode, decode, decode, alone, alone, trim, finish, preempt, reset,
               clone, offend)  # fmt: skip

    def ahead(self) -> int:
        """Slots for drafts to come."""
        return self.random.choice([0, 0, 0, 1, 3, 7, 100]) if self.setup.drafts else 0

    def note(self, what: str, *values: object) -> None:
        self.seen.add(what)
        self.trace.update(repr((what, values)).encode())

    def step(self) -> None:
        action = self.random.choice(self.ACTIONS)
        action(self)
        self.note(action.__name__, [request_dump(request) for request in self.running.values()])
        self.observe()

    def observe(self) -> None:
        manager = self.manager
        manager.check()
        self.trace.update(repr(manager_dump(manager)).encode())
        assert {name: manager.get_block_ids(name)[0] for name in manager.request_ids()} == self.replica
        assert list(self.running) == manager.request_ids() == list(self.replica)
        for event in manager.take_events():
            match event:
                case BlockStored(block_hash=bytes() as key):
                    assert key not in self.mirror
                    self.mirror.add(key)
                case BlockRemoved(block_hash=bytes() as key):
                    self.mirror.remove(key)
                case _:
                    self.mirror.clear()
        assert {key[:16] for key in self.mirror} == {key for key in manager.block_pool.block_keys() if key}


def walk(name: str, seed: int, steps: int) -> Walk:
    """Walk; every third seed with a smaller pool, every second one with a draft head where the kind allows it."""
    setup = SETUPS[name]
    use_eagle = seed % 2 == 1 and not name.startswith("chunked")
    walked = Walk(setup, Random(f"{name} {seed}"), 8 if seed % 3 == 0 else 14, use_eagle)
    for _ in range(steps):
        walked.step()
    return walked


if __name__ == "__main__":
    print(walk(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).trace.hexdigest(), build_info().kind)
