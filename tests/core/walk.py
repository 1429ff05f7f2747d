"""A small engine that walks at random through everything a manager offers, and checks each step.

After each step: the self-check passes; a replica of the tables, kept from results and deltas, equals the tables; a
mirror of the prefix cache, kept from events alone, equals the published keys; a batch did what single calls would have
done to a copy. All outputs and states go into a digest, so that two builds can be compared:

    python -m tests.core.walk SETUP SEED STEPS      prints the digest and the build
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from random import Random

from tests.core.support import SETUPS, Setup, ids_of, manager_dump, request_dump

from blockwright import KVCacheManager, Request, Sha256Hasher, build_info
from blockwright.errors import BlockwrightError
from blockwright.events import BlockRemoved, BlockStored

HASHER = Sha256Hasher(b"walk")
MAX_LEN = 40
Counts = dict[str, int]


class Walk:
    """A manager, the requests that run on it, and what an observer knows of both."""

    def __init__(self, setup: Setup, random: Random, num_blocks: int = 14, use_eagle: bool = False) -> None:
        self.setup, self.random = setup, random
        self.manager = setup.manager(
            num_blocks, MAX_LEN, log_stats=True, enable_kv_cache_events=setup.caching, use_eagle=use_eagle
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
        self.waiting.append(Request(f"r{self.number}", tokens, size, cache_salt=salt, hasher=HASHER))

    def admit(self) -> None:
        """Look a waiting request up and start it, on its hit or without."""
        if not self.waiting:
            return self.arrive()
        request = self.waiting.pop(self.random.randrange(len(self.waiting)))
        hit, num_hit = self.manager.get_computed_blocks(request)
        self.note("hit" if num_hit else "no hit", num_hit, hit.get_block_ids())
        if self.random.random() < 0.1:
            hit, num_hit = self.manager.create_empty_block_list(), 0
        left = request.num_tokens - num_hit
        new = self.random.choice([left, left, self.random.randint(1, left), 0 if num_hit else 1])
        ahead = self.ahead()
        before = manager_dump(self.manager)
        given = self.manager.allocate_slots(request, new, num_hit, hit, ahead)
        self.note("admitted" if given else "not admitted", given)
        if given is None:
            assert manager_dump(self.manager) == before
            self.waiting.append(request)
            return None
        hit_ids, new_ids = ids_of(hit), ids_of(given)
        self.running[request.request_id] = request
        self.replica[request.request_id] = hit_ids + new_ids
        request.num_computed_tokens = num_hit
        self.accept(request, new, 0)
        return None

    def decode(self) -> None:
        """Serve several running requests, and perhaps new ones, in one batch; let each accept what it may."""
        names = self.random.sample(sorted(self.running), self.random.randint(0, len(self.running)))
        batch = [self.running[name] for name in names]
        if self.waiting and self.random.random() < 0.3:
            batch.insert(self.random.randint(0, len(batch)), self.waiting[-1])
        news, drafts = self.counts(batch)
        aheads = [self.ahead() for _ in batch]
        expected = self.one_by_one(batch, news, aheads)
        step = self.manager.allocate_slots_batch(batch, news, aheads)
        self.note(
            "batch" if step.refused is None else "batch cut short",
            step,
            list(step.new_block_ids),
            list(step.nulled_entries),
        )
        deltas: list[tuple[list[int], list[int]]] = []
        for i, request in enumerate(batch):
            added = [int(b) for b in step.new_block_ids[step.new_block_offsets[i] : step.new_block_offsets[i + 1]]]
            nulled = [int(e) for e in step.nulled_entries[step.nulled_offsets[i] : step.nulled_offsets[i + 1]]]
            deltas.append((added, nulled))
            table = self.replica.setdefault(request.request_id, []) if i < step.num_served else []
            table += added
            for entry in nulled:
                table[entry] = 0
        assert step.refused == (None if step.num_served == len(batch) else step.num_served)
        assert all(delta == ([], []) for delta in deltas[step.num_served :])
        assert (
            step.num_served,
            [added for added, _ in deltas[: step.num_served]],
            manager_dump(self.manager),
        ) == expected
        for request, new, draft in list(zip(batch, news, drafts, strict=True))[: step.num_served]:
            if request in self.waiting:
                self.waiting.remove(request)
                self.running[request.request_id] = request
            self.accept(request, new, draft)

    def one_by_one(
        self, batch: list[Request], news: list[int], aheads: list[int]
    ) -> tuple[int, list[list[int]], object]:
        """What single calls do to a copy: how many are served, their new ids, and the state after."""
        copy, ids = self.manager.copy(), []
        for request, new, ahead in zip([request.copy() for request in batch], news, aheads, strict=True):
            given = copy.allocate_slots(request, new, num_lookahead_tokens=ahead)
            if given is None:
                break
            ids.append(ids_of(given))
        copy.check()
        return len(ids), ids, manager_dump(copy)

    def counts(self, batch: list[Request]) -> tuple[list[int], list[int]]:
        """New tokens of each request, and how many of them are drafts."""
        news, drafts = [], []
        for request in batch:
            left = request.num_tokens - request.num_computed_tokens
            new = left if self.random.random() < 0.7 else self.random.randint(1, left)
            room = MAX_LEN - request.num_computed_tokens - new
            draft = self.random.randint(0, min(3, room)) if new == left and self.setup.drafts and room > 0 else 0
            news.append(new + draft)
            drafts.append(draft)
        return news, drafts

    def accept(self, request: Request, new: int, drafts: int) -> None:
        """Finish a step: accept some drafts and one token more if all known tokens were computed."""
        reached = request.num_computed_tokens + new - drafts
        if reached == request.num_tokens:
            accepted = self.random.randint(0, drafts)
            request.append_output_token_ids([self.random.randrange(3) for _ in range(accepted + 1)])
            reached += accepted
        request.num_computed_tokens = reached
        if request.num_tokens >= MAX_LEN:
            self.end(request)

    def alone(self) -> None:
        """Serve one running request by a single call, perhaps publishing later."""
        if not self.running:
            return
        request = self.running[self.random.choice(sorted(self.running))]
        (new,), (drafts,) = self.counts([request])
        delay = self.random.random() < 0.5
        before = manager_dump(self.manager)
        given = self.manager.allocate_slots(request, new, num_lookahead_tokens=self.ahead(), delay_cache_blocks=delay)
        self.note("alone" if given else "refused", given)
        if given is None:
            assert manager_dump(self.manager) == before
            return
        table = self.manager.get_block_ids(request.request_id)[0]
        new_ids = ids_of(given)
        assert table[len(table) - len(new_ids) :] == new_ids
        self.replica[request.request_id] = table
        known = min(request.num_computed_tokens + new, request.num_tokens)
        if delay and self.random.random() < 0.7:
            self.manager.cache_blocks(request, self.random.choice([known, self.random.randint(0, known)]))
        self.accept(request, new, drafts)

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
        calls: list[Callable[[], object]] = [
            lambda: self.manager.allocate_slots(someone, -1),
            lambda: self.manager.allocate_slots(someone, 0),
            lambda: self.manager.allocate_slots(someone, MAX_LEN + 1),
            lambda: self.manager.allocate_slots(someone, 1, 4),
            lambda: self.manager.allocate_slots(someone, 1, num_lookahead_tokens=-1),
            lambda: self.manager.allocate_slots_batch([*self.running.values(), *self.running.values(), someone], -1),
            lambda: self.manager.allocate_slots_batch([someone, someone], 1),
            lambda: self.manager.allocate_slots_batch([someone], [1, 1]),
            lambda: self.manager.cache_blocks(someone, MAX_LEN + 1),
            lambda: self.manager.remove_skipped_blocks(someone, MAX_LEN + 1),
            lambda: self.manager.get_block_ids("nobody"),
            lambda: self.manager.allocate_slots(Request(someone.request_id, [1], None), MAX_LEN + 1),
        ]
        before = manager_dump(self.manager), request_dump(someone)
        try:
            self.random.choice(calls)()
        except BlockwrightError as error:
            self.note(type(error).__name__, str(error))
        else:
            raise AssertionError("a call that cannot be right was accepted")
        assert (manager_dump(self.manager), request_dump(someone)) == before

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
        self.observe(self.manager)

    def observe(self, manager: KVCacheManager) -> None:
        manager.check()
        self.trace.update(repr(manager_dump(manager)).encode())
        assert {name: manager.get_block_ids(name)[0] for name in manager.request_ids()} == self.replica
        assert list(self.running) == manager.request_ids() == list(self.replica)
        for event in manager.take_events():
            match event:
                case BlockStored():
                    assert event.block_hash not in self.mirror
                    self.mirror.add(event.block_hash)
                case BlockRemoved():
                    self.mirror.remove(event.block_hash)
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
