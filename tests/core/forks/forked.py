"""A small engine with forks, and the data in its blocks: what is written, copied and read through the manager's ids.

Every slot of every block holds what a model would leave there: the group of layers, and the exact prefix. Each step:

    fork, end, admit, give slots   in any order, by single calls, batches, or plans that are committed
    take the copies                and run them in any order, before the step
    run the step                   in the order of the calls: each request reads what its tokens read, then writes
    settle it                      at once, or while later steps are in flight; drafts are accepted or rejected

A read that finds another prefix than its own fails. Blocks that return to the pool keep what they held, as memory does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from random import Random

import pytest
from tests.core.support import SHA256, manager_dump, manager_over, needed

from blockwright import Fits, KVCacheBlocks, KVCacheSpec, MambaSpec, Request
from blockwright.errors import UnsupportedError

MAX_LEN = 44


@dataclass(eq=False)
class Mind:
    """A request and what becomes of it: all its tokens, also those that nobody knows yet, and how many are done."""

    request: Request
    tokens: list[int]
    salt: str | None
    done: int = 0
    flying: int = 0
    accepted: int = 0
    alive: bool = True


@dataclass(eq=False)
class Job:
    """One request's part of a step: tokens to compute, drafts at their end, and the blocks as they were given."""

    mind: Mind
    new: int
    drafts: list[int]
    tables: tuple[list[int], ...]
    states: tuple[list[int], ...]
    reads: list[int]


@dataclass(eq=False)
class Flight:
    """A step: its number if it is kept apart, its copies in the order in which they are run, and its jobs."""

    number: int
    copies: list[tuple[int, int]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)


class Forking:
    """The engine."""

    def __init__(
        self,
        specs: list[KVCacheSpec],
        random: Random,
        caching: bool = True,
        overlaps: bool = False,
        settles: bool = False,
        num_blocks: int = 36,
    ) -> None:
        self.specs, self.random, self.caching, self.overlaps = specs, random, caching, overlaps
        self.manager = manager_over(
            specs,
            num_blocks,
            MAX_LEN,
            caching,
            overlap_steps=overlaps,
            publish_on_settlement=settles,
            enable_kv_cache_events=caching and random.random() < 0.5,
            verify_tokens=caching and random.random() < 0.3,
            explain_evictions=caching and random.random() < 0.5,
        )
        self.unit = gcd(*(spec.block_size for spec in specs))
        self.recurrent = any(isinstance(spec, MambaSpec) for spec in specs)
        self.most = min((spec.num_speculative_blocks for spec in specs if isinstance(spec, MambaSpec)), default=3)
        self.minds: list[Mind] = []
        self.memory: dict[int, dict[int, tuple[int, int]]] = {}
        self.prefixes: dict[tuple[int, object], int] = {}
        self.named: dict[bytes, int] = {}
        self.replica: dict[str, list[list[int]]] = {}
        self.flights: list[Flight] = []
        self.number = 0
        self.seen: dict[str, int] = {}

    def note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def dump(self) -> object:
        """All that the manager says of itself; a pool that verifies tokens cannot be asked by bare keys."""
        manager, pool = self.manager, self.manager.block_pool
        if not pool.verifies_tokens:
            return manager_dump(manager)
        tables = [(name, manager.get_block_ids(name), manager.num_published(name)) for name in manager.request_ids()]
        return tables, pool.free_block_ids(), pool.ref_counts(), pool.block_keys()

    # ------------------------------------------------------------------ the data

    def after(self, mind: Mind, tokens: list[int]) -> list[int]:
        """Number every prefix of some tokens, the empty one first: equal numbers mean equal prefixes."""
        at = self.prefixes.setdefault((-1, mind.salt), len(self.prefixes))
        numbers = [at]
        for token in tokens:
            at = self.prefixes.setdefault((at, token), len(self.prefixes))
            numbers.append(at)
        return numbers

    def slot(self, number: int, block: int, place: int) -> tuple[int, int]:
        """What a slot of a block holds, which a request of group `number` reads."""
        assert block != 0, "a token reads what has been trimmed"
        return self.memory[block][place % self.specs[number].block_size]

    def run(self, flight: Flight) -> None:
        """Run the copies, and then the step."""
        sources = {source for source, _ in flight.copies}
        targets = [target for _, target in flight.copies]
        assert len(set(targets)) == len(targets)
        assert not sources & set(targets)
        self.random.shuffle(flight.copies)
        for source, target in flight.copies:
            self.memory[target] = dict(self.memory[source])
        for job in flight.jobs:
            self.compute(job)
        for job in flight.jobs:
            self.read(job.mind, job.tables, job.mind.done + job.new - len(job.drafts), job.drafts)

    def compute(self, job: Job) -> None:
        """Read what the tokens of a job read, and write what they leave."""
        start = job.mind.done
        self.read(job.mind, job.tables, start, [])
        certain = start + job.new - len(job.drafts)
        self.foretell(job.mind, certain + 1)
        numbers = self.after(job.mind, job.mind.tokens[:certain] + job.drafts)
        for number, (spec, table) in enumerate(zip(self.specs, job.tables, strict=True)):
            if not isinstance(spec, MambaSpec):
                for place in range(start, start + job.new):
                    block = table[place // spec.block_size]
                    assert block != 0
                    self.memory.setdefault(block, {})[place % spec.block_size] = (number, numbers[place + 1])
                continue
            if start > 0:
                assert self.memory[job.reads[number]][0] == (number, numbers[start])
            entry = (certain - 1) // spec.block_size if self.caching else 0
            for block, place in zip(
                [table[entry], *job.states[number]], range(certain, start + job.new + 1), strict=False
            ):
                assert block != 0
                self.memory[block] = {0: (number, numbers[place])}

    def read(self, mind: Mind, tables: tuple[list[int], ...], length: int, drafts: list[int]) -> None:
        """Read all that a token at `length` or later reads, but for states; drafts after it are there too."""
        numbers = self.after(mind, mind.tokens[:length] + drafts)
        for number, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
            if not isinstance(spec, MambaSpec):
                for place in (*needed(spec, length), *range(length, length + len(drafts))):
                    assert self.slot(number, table[place // spec.block_size], place) == (number, numbers[place + 1])

    def read_back(self) -> None:
        """Read every request that no step computes through its tables, and every published block by its key."""
        for mind in self.minds:
            if mind.flying == 0 and mind.done > 0:
                self.read(mind, self.manager.get_block_ids(mind.request.request_id), mind.done, [])
                for group, block in enumerate(self.manager.get_state_block_ids(mind.request)):
                    if isinstance(self.specs[group], MambaSpec):
                        assert self.memory[block][0] == (group, self.after(mind, mind.tokens[: mind.done])[-1])
        if self.flights:
            return
        pool = self.manager.block_pool
        for block, (key, number) in enumerate(zip(pool.block_keys(), pool.block_groups(), strict=True)):
            if key is not None and number is not None:
                last = 0 if isinstance(self.specs[number], MambaSpec) else self.specs[number].block_size - 1
                assert self.memory[block][last] == (number, self.named[key])

    def foretell(self, mind: Mind, length: int) -> None:
        """Make up the tokens that the model will say."""
        while len(mind.tokens) < length:
            mind.tokens.append(self.random.randrange(3))

    def name_keys(self, mind: Mind) -> None:
        """Remember which prefix each key of a request stands for."""
        numbers = self.after(mind, mind.request.all_token_ids)
        for at, key in enumerate(mind.request.block_hashes):
            self.named[key[:16]] = numbers[(at + 1) * self.unit]

    # ------------------------------------------------------------------ who runs

    def next_name(self) -> str:
        self.number += 1
        return f"r{self.number}"

    def make(self, tokens: list[int], salt: str | None) -> Mind:
        request = Request(self.next_name(), tokens, self.unit, cache_salt=salt, hasher=SHA256)
        return Mind(request, tokens[:], salt)

    def admit(self, flight: Flight) -> None:
        """Start a request on its hit."""
        tokens = [self.random.randrange(2) for _ in range(self.random.randint(1, 18))]
        salt = self.random.choice([None, "salt"])
        if self.minds and self.random.random() < 0.6:  # one that has much in common with another
            other = self.random.choice(self.minds)
            salt, tokens = other.salt, [*other.request.all_token_ids[: MAX_LEN - 8], *tokens[:2]]
        mind = self.make(tokens, salt)
        self.name_keys(mind)
        request = mind.request
        hit, length = self.manager.get_computed_blocks(request)
        new = self.random.randint(1, len(tokens) - length)
        if self.manager.allocate_slots(request, new, length, hit) is None:
            self.note("not admitted")
            return
        self.note("hit" if length else "no hit")
        mind.done = request.num_computed_tokens = length
        self.minds.append(mind)
        self.given(flight, mind, new, [])

    def given(self, flight: Flight, mind: Mind, new: int, drafts: list[int]) -> None:
        """A request has its slots in a step."""
        name = mind.request.request_id
        tables, states = self.manager.get_block_ids(name), self.manager.get_draft_block_ids(name)
        reads = self.manager.get_state_block_ids(mind.request)
        flight.jobs.append(Job(mind, new, drafts, tables, states, reads))
        mind.flying += 1
        mind.request.num_computed_tokens += new
        self.replica[name] = [table[:] for table in tables]

    def fork(self) -> None:
        """Fork a request that no step computes, to itself or to one with tokens of its own after what is computed."""
        settled = [mind for mind in self.minds if mind.flying == 0]
        if not settled or len(self.minds) > 7:
            return
        mind = self.random.choice(settled)
        request, name = mind.request, self.next_name()
        child = request.fork(name)
        if self.random.random() < 0.4:
            tokens = mind.tokens[: mind.done] + [self.random.randrange(3) for _ in range(self.random.randint(1, 6))]
            child = Request(name, tokens, self.unit, cache_salt=mind.salt, hasher=SHA256)
            child.num_computed_tokens = mind.done
        before = self.dump()
        if self.recurrent and mind.accepted > 0:
            with pytest.raises(UnsupportedError, match="accepted draft"):
                self.manager.fork(request, child)
            assert self.dump() == before
            self.note("state elsewhere")
            return
        states = sum(spec.num_speculative_blocks for spec in self.specs if isinstance(spec, MambaSpec))
        free = self.manager.block_pool.get_num_free_blocks()
        given = self.manager.fork(request, child)
        if given is None:
            assert states > free
            assert self.dump() == before
            self.note("no fork")
            return
        self.note("fork")
        assert self.manager.block_pool.get_num_free_blocks() == free - states
        mine, its = self.manager.get_block_ids(name), self.manager.get_block_ids(request.request_id)
        assert given.get_block_ids() == mine
        assert all(one == other[: len(one)] for one, other in zip(mine, its, strict=True))
        self.minds.append(Mind(child, child.all_token_ids, mind.salt, mind.done))
        self.name_keys(self.minds[-1])
        self.replica[name] = [table[:] for table in mine]

    def end(self, mind: Mind) -> None:
        """Release a request."""
        self.manager.free(mind.request)
        mind.alive = False
        self.minds.remove(mind)
        del self.replica[mind.request.request_id]

    # ------------------------------------------------------------------ steps

    def wish(self, mind: Mind) -> tuple[int, list[int]]:
        """What a request computes next: some tokens, and drafts after them if it reaches the last it knows."""
        begin, known = mind.request.num_computed_tokens, mind.request.num_tokens
        certain = self.random.choice([1, known - begin, self.random.randint(1, max(1, known - begin))])
        certain = min(max(1, certain), MAX_LEN - begin)
        room = min(self.most, MAX_LEN - begin - certain) if begin + certain >= known else 0
        drafts = [self.random.randrange(3) for _ in range(self.random.choice([0, 0, max(0, room)]))]
        return certain + len(drafts), drafts

    def ready(self, flight: Flight) -> list[Mind]:
        """The requests that may go on in this step."""
        served = {id(job.mind) for job in flight.jobs}
        return [
            mind
            for mind in self.minds
            if id(mind) not in served
            and mind.request.num_computed_tokens < (MAX_LEN if self.overlaps else min(MAX_LEN, mind.request.num_tokens))
            and not (self.recurrent and mind.flying)
        ]

    def serve(self, flight: Flight) -> None:
        """Give one or several requests their slots, in one of three ways."""
        ready = self.ready(flight)
        if not ready:
            return
        if self.random.random() < 0.4:
            self.batch(flight, self.random.sample(ready, self.random.randint(1, len(ready))))
            return
        mind = self.random.choice(ready)
        new, drafts = self.wish(mind)
        before = self.dump()
        given = self.allocate(mind.request, new, len(drafts))
        if given is not None:
            self.given(flight, mind, new, drafts)
            return
        assert self.dump() == before
        self.note("refused")
        self.relieve(mind)

    def allocate(self, request: Request, new: int, drafts: int) -> KVCacheBlocks | None:
        """Give slots by a call, or by a plan."""
        ahead = self.random.choice([0, 0, 1, 5]) if not self.recurrent else 0
        if self.random.random() < 0.5:
            plan = self.manager.plan(request, new, num_lookahead_tokens=ahead, num_draft_tokens=drafts)
            return self.manager.commit(plan) if isinstance(plan, Fits) else None
        delays = self.random.random() < 0.3
        return self.manager.allocate_slots(
            request, new, num_lookahead_tokens=ahead, num_draft_tokens=drafts, delay_cache_blocks=delays
        )

    def relieve(self, mind: Mind) -> None:
        """Make room: end the request that found none."""
        if mind.flying == 0 or self.overlaps:
            self.end(mind)

    def batch(self, flight: Flight, minds: list[Mind]) -> None:
        """Give slots in one call; the tables follow from what it tells."""
        wishes = [self.wish(mind) for mind in minds]
        requests = [mind.request for mind in minds]
        step = self.manager.allocate_slots_batch(
            requests, [new for new, _ in wishes], 0, [len(drafts) for _, drafts in wishes]
        )
        size = len(self.specs)
        for at, mind in enumerate(minds):
            for group, table in enumerate(self.replica[mind.request.request_id]):
                slot = at * size + group
                table += [
                    int(b) for b in step.new_block_ids[step.new_block_offsets[slot] : step.new_block_offsets[slot + 1]]
                ]
                for entry in step.nulled_entries[step.nulled_offsets[slot] : step.nulled_offsets[slot + 1]]:
                    table[entry] = 0
        reported = [int(number) for number in step.replaced_entries]
        for at in range(0, len(reported), 4):
            request, group, entry, block = reported[at : at + 4]
            assert request < step.num_served
            self.note("copied in a batch")
            self.replica[requests[request].request_id][group][entry] = block
        for mind in minds:
            name = mind.request.request_id
            assert self.replica[name] == list(self.manager.get_block_ids(name))
        for mind, (new, drafts) in list(zip(minds, wishes, strict=True))[: step.num_served]:
            self.given(flight, mind, new, drafts)
        if step.refused is not None:
            self.note("refused")
            self.relieve(minds[step.refused])

    def step(self) -> None:
        """One step, and what is settled after it."""
        flight = Flight(self.manager.start_step() if self.overlaps else 0)
        for _ in range(self.random.randint(1, 8)):
            what = self.random.random()
            if what < 0.2 or not self.minds:
                if len(self.minds) < 6:
                    self.admit(flight)
            elif what < 0.4:
                self.fork()
            elif what < 0.5:
                idle = [mind for mind in self.minds if self.overlaps or mind.flying == 0]
                if idle:
                    self.end(self.random.choice(idle))
            else:
                self.serve(flight)
            self.manager.check()
        self.take_copies(flight)
        self.flights.append(flight)
        while self.flights and (not self.overlaps or len(self.flights) > 2 or self.random.random() < 0.4):
            self.settle()
        if self.random.random() < 0.05:
            self.clone()
        self.manager.check()
        self.read_back()

    def take_copies(self, flight: Flight) -> None:
        """Have the copies run before the step; until now they kept the cache from being reset."""
        pairs = self.manager.take_copies()
        assert len(pairs) == len(self.specs)
        assert self.manager.take_copies() == [[] for _ in self.specs]
        flight.copies = [pair for each in pairs for pair in each]
        for _ in flight.copies:
            self.note("copied")
        self.manager.check()

    def settle(self) -> None:
        """Run the oldest step and learn what came of it."""
        flight = self.flights.pop(0)
        self.run(flight)
        backs: dict[str, int] = {}
        for job in flight.jobs:
            mind, count = job.mind, 0
            mind.flying -= 1
            certain = mind.done + job.new - len(job.drafts)
            self.foretell(mind, certain + len(job.drafts) + 1)
            while count < len(job.drafts) and job.drafts[count] == mind.tokens[certain + count]:
                count += 1
            mind.accepted = count
            mind.done = certain + count
            if mind.alive and len(job.drafts) > count:
                backs[mind.request.request_id] = len(job.drafts) - count
                mind.request.num_computed_tokens -= len(job.drafts) - count
            if count:
                self.note("accepted")
        if self.overlaps:
            self.manager.settle_step(flight.number, backs)
        for job in flight.jobs:
            request = job.mind.request
            if job.mind.alive and job.mind.done >= request.num_tokens:
                request.append_output_token_ids(job.mind.tokens[request.num_tokens : job.mind.done + 1])
                self.name_keys(job.mind)
                if request.num_tokens > MAX_LEN:
                    self.end(job.mind)
                    job.mind.alive = False
        self.manager.check()

    def clone(self) -> None:
        """Go on with a copy; the original is released, copies to come and all, and nothing of it is missed."""
        before, old = self.dump(), self.manager
        self.manager = old.copy()
        assert self.dump() == before
        for mind in self.minds:
            old.free(mind.request)
            mind.request = mind.request.copy()
        for number in old.steps_in_flight:
            old.settle_step(number)
        old.take_copies()
        assert old.usage == 0.0
        old.check()

    def finish(self) -> None:
        """Release everything; all of it is free again."""
        for mind in self.minds[:]:
            self.end(mind)
        while self.flights:
            self.settle()
        self.manager.check()
        assert self.manager.usage == 0.0
        assert self.manager.reset_prefix_cache()


def forking(specs: list[KVCacheSpec], seed: str, steps: int, **options: bool | int) -> Forking:
    """Run an engine for some steps, and see everything free at the end."""
    engine = Forking(specs, Random(seed), **options)  # type: ignore[arg-type]
    for _ in range(steps):
        engine.step()
    engine.finish()
    return engine
