"""An engine with two workers: it admits, computes in batches, drafts, forks, loads, preempts, and hands out its steps.

The manager and the specification go in lock-step, as in `histories`. Each worker's rows follow from the deltas of batch
calls, and are taken anew after any other call. When a step is handed out, both workers must give what the specification
says, and that must keep every law.

A step is handed out before any of its requests goes on or ends: what is given slots is published, and must be computed.
With recurrent layers it is handed out before a lookup too, since no step can read a state that it writes (STATE-3).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from blockwright import KVCacheConfig, KVCacheGroupSpec
from blockwright_conformance.kv_cache.actions import (
    Action,
    Admit,
    Append,
    FinishLoad,
    Fork,
    Grow,
    Preempt,
    Release,
    Settle,
    Start,
    TakeCopies,
    Trim,
    meaning,
    perform,
)
from blockwright_conformance.kv_cache.adapter import Served
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter, kv_cache_spec, slices
from blockwright_conformance.kv_cache.lockstep import compare
from blockwright_conformance.kv_cache.outcome import ManagerOutcome, Reply, outcome_of
from blockwright_conformance.kv_cache.parts import computed_of, name_of, names_of, wanted
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_spec.manager import transitions
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Step
from blockwright_spec.manager.state import (
    Absent,
    Config,
    Content,
    Running,
    State,
    Table,
    draft_states,
    initial,
    is_loading,
    recurrent,
)
from blockwright_spec.worker.input_laws import INPUT_LAWS, Handed
from blockwright_spec.worker.inputs import Work

from .worker import InputsError, Worker
from .wrong_calls import wrong_calls


@dataclass(frozen=True, slots=True)
class Batch:
    """What a call for several requests told: the slots asked for, the steps of those served, and the deltas."""

    slots: tuple[int, ...]
    steps: tuple[Done, ...]
    allocation: Any

    @property
    def told(self) -> tuple[tuple[int, Done], ...]:
        """The requests served, each with its step."""
        return tuple(zip(self.slots, self.steps, strict=False))


class InputsEngine:
    """Requests of one scope on one manager, and two workers: one on plain memory, one that stages what has changed."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.state: State = initial(scope.config, scope.slots)
        self.adapter = BlockwrightAdapter(scope.config)
        config = kv_cache_config(scope.config)
        self.workers = [Worker(scope.config, config, scope.slots, scope.encoder, staged) for staged in (False, True)]
        self.fired: Counter[str] = Counter()
        self.works: dict[int, tuple[Work, tuple[Content | None, ...]]] = {}
        """What the step computes so far, with what each block held before."""
        self.batch: Batch | None = None
        """The last batch, if its deltas have not been applied yet."""

    # --- the manager, in lock-step

    def act(self, action: Action) -> ManagerOutcome:
        """Perform a call on the manager and the specification, and bring the workers' rows up to date."""
        before = self.state
        reply = perform(self.adapter, action, before)
        told = meaning(before, action, LRU)
        self.agree(told, reply, type(action).__name__)
        self.follow(before)
        return told

    def agree(self, told: ManagerOutcome, reply: Reply, name: str) -> None:
        """Compare the manager with the specification, and go on.

        Raises:
            InputsError: they differ.
        """
        if faults := compare(told, reply, self.adapter, self.adapter.observe(names_of(self.state))):
            raise InputsError("REF-0", "; ".join(faults))
        self.state = told.state
        self.fired[f"{name}: {told.refusal.reason.name}" if told.refusal else name] += 1

    def follow(self, before: State) -> None:
        """Take the rows anew of all requests whose tables a call has changed, other than by a batch."""
        for slot, (old, new) in enumerate(zip(before.requests, self.state.requests, strict=True)):
            if isinstance(old, Running) and not isinstance(new, Running):
                self.forget(slot)
            elif isinstance(new, Running) and not (isinstance(old, Running) and old.tables == new.tables):
                self.apply()
                name = name_of(slot)
                blocks, states = self.adapter.manager.get_blocks(name), self.adapter.manager.get_draft_block_ids(name)
                for worker in self.workers:
                    worker.add(slot, new.tables, tuple(map(tuple, states)), new.encoder, blocks)

    def forget(self, slot: int) -> None:
        """Have the workers forget a request, and the step as well."""
        self.apply()
        self.works.pop(slot, None)
        for worker in self.workers:
            worker.remove(slot)

    def apply(self) -> None:
        """Have the workers follow the last batch."""
        if self.batch is not None:
            batch, self.batch = self.batch, None
            for worker in self.workers:
                worker.apply(batch.slots, batch.steps, batch.allocation)
            self.fired["apply"] += 1

    def work(self, slot: int, begin: int, new: int, drafts: int, before: State) -> None:
        """Note what the step computes for a request."""
        self.works[slot] = Work(slot, begin, new, drafts), before.contents

    # --- what there is to pick from

    def slots(self, kind: type) -> list[int]:
        """Give the slots whose requests are absent, waiting or running."""
        return [slot for slot, each in enumerate(self.state.requests) if isinstance(each, kind)]

    @property
    def is_open(self) -> bool:
        """Whether slots may be given."""
        return not self.state.config.overlaps or bool(self.state.flights)

    @property
    def hungry(self) -> list[tuple[int, int]]:
        """Running requests that may be given slots, and for how many tokens; those of the step are not."""
        return [
            (slot, want)
            for slot, each in enumerate(self.state.requests)
            if isinstance(each, Running) and slot not in self.works and (want := wanted(self.state, slot, each)) > 0
        ]

    @property
    def speaking(self) -> list[int]:
        """Running requests that may put out tokens: all they know is computed, or settled."""
        overlaps, most = self.state.config.overlaps, self.scope.max_tokens
        return [
            slot
            for slot, each in enumerate(self.state.requests)
            if isinstance(each, Running)
            and len(each.prefix[1]) < (min(each.settled + 1, most) if overlaps else most)
            and (overlaps or each.computed == len(each.prefix[1]))
        ]

    # --- what the engine does

    def admit(self, pick: int, part: int) -> None:
        """Admit a request, whole or in part, or have some of its tokens loaded."""
        slot, prefix = one(self.slots(Absent), pick), one(self.scope.prompts, pick)
        if recurrent(self.state.config):
            self.run(pick)
        before = self.state
        hit = found(before, prefix, LRU).length if before.config.caching else 0
        left = len(prefix[1]) - hit
        is_load = "load" in self.scope.calls and part % 4 == 0 and left > 1 and not is_loading(before, slot)
        new, external = (0, 1 + part % (left - 1)) if is_load else (left if part % 3 else 1 + part % left, 0)
        if not is_load and not self.is_open:
            return
        told = self.act(Admit(slot, prefix, new, external=external, encoder=self.scope.encoder))
        if told.refusal is None and new:
            held = {block for each in self.works for blocks in self.tables(each) for block in blocks if block}
            self.fired["hit of the step"] += bool(held & {block for table in self.tables(slot) for block in table})
            self.work(slot, hit, new, 0, before)

    def tables(self, slot: int) -> tuple[Table, ...]:
        """Give the tables of a request that runs."""
        request = self.state.requests[slot]
        return request.tables if isinstance(request, Running) else ()

    def finish_load(self, pick: int, part: int) -> None:
        """End a load: all of it came, or some."""
        slot, most = one(self.loading, pick)
        self.act(FinishLoad(slot, most if part % 3 else part % (most + 1)))

    @property
    def loading(self) -> list[tuple[int, int]]:
        """Requests with a load on its way, and how many tokens it is; of those that ended meanwhile, none count."""
        return [
            (slot, each.loading if isinstance(each, Running) else 0)
            for slot, each in enumerate(self.state.requests)
            if is_loading(self.state, slot)
        ]

    def drafts(self, slot: int, want: int, pick: int) -> int:
        """Give how many drafts a step carries that computes all of a request's tokens."""
        states = draft_states(self.state.config)
        room = self.state.config.max_model_len - computed_of(self.state, slot) - want
        return pick % (min(self.scope.drafts if states is None else states, self.scope.drafts, room) + 1)

    def ask(self, slot: int, want: int, part: int) -> tuple[int, int]:
        """Give how many tokens a request is given slots for, and how many of them are drafts."""
        if want > 1 and part % 4 == 0:
            return 1 + part % want, 0
        drafts = self.drafts(slot, want, part)
        return want + drafts, drafts

    def grow(self, pick: int, part: int) -> None:
        """Give one request slots, by a call of its own."""
        slot, want = one(self.hungry, pick)
        new, drafts = self.ask(slot, want, part)
        before, begin = self.state, computed_of(self.state, slot)
        told = self.act(Grow(slot, new, drafts=drafts, lookahead=part % 2 * (self.scope.drafts > 0 and not drafts)))
        if told.refusal is None:
            self.apply()
            self.work(slot, begin, new, drafts, before)

    def grow_all(self, pick: int, part: int) -> None:
        """Give several requests slots in one call; if one does not fit, perhaps preempt the last and go on."""
        random = Random(pick)
        asked = random.sample(self.hungry, random.randint(1, len(self.hungry)))
        self.apply()
        served = self.call_batch([(slot, *self.ask(slot, want, part + slot)) for slot, want in asked])
        if served < len(asked) and part % 2:
            self.preempt(pick)
            rest = [(slot, want) for slot, want in self.hungry if slot in [each for each, _ in asked]]
            if rest:
                self.apply()
                self.call_batch([(slot, *self.ask(slot, want, 1)) for slot, want in rest])
                self.fired["second batch"] += 1

    def call_batch(self, asks: Sequence[tuple[int, int, int]]) -> int:
        """Give requests slots in one call: slot, new tokens, drafts; the deltas are still to be applied."""
        before, adapter = self.state, self.adapter
        requests = [adapter.owned(name_of(slot)) for slot, _, _ in asks]
        begins = [computed_of(before, slot) for slot, _, _ in asks]
        for request, begin in zip(requests, begins, strict=True):
            request.num_computed_tokens = begin
        news, drafts = [new for _, new, _ in asks], [count for _, _, count in asks]
        given = adapter.manager.allocate_slots_batch(requests, news, 0, drafts)
        steps = [(slot, begin, Step(new, drafts=count)) for (slot, new, count), begin in zip(asks, begins, strict=True)]
        dones, refusal = transitions.grow_each(before, tuple(steps), LRU)
        told = outcome_of(before, dones, refusal)
        self.agree(
            told, Reply(given.refused is not None, None, None, served_of(given, len(before.config.groups))), "Batch"
        )
        self.batch = Batch(tuple(slot for slot, _, _ in asks), dones, given)
        for (slot, begin, step), done in zip(steps, dones, strict=False):
            self.work(slot, begin, step.new, step.drafts, before)
            before = done.state
        return len(dones)

    def put_out(self, pick: int, part: int) -> None:
        """Have requests put out a token each, after drafts that were accepted."""
        random = Random(pick)
        for slot in random.sample(self.speaking, random.randint(1, len(self.speaking))):
            self.passed(slot, pick)
            request = self.state.requests[slot]
            assert isinstance(request, Running)
            room = self.scope.max_tokens - len(request.prefix[1]) - 1
            ahead = 0 if self.state.config.overlaps else min(request.written - request.computed, max(room, 0))
            accepted = part % (ahead + 1)
            self.act(Append(slot, tuple(random.choice(self.scope.outputs) for _ in range(accepted + 1)), accepted))
            if accepted:
                self.fired["accepted"] += 1

    def passed(self, slot: int, pick: int) -> None:
        """Hand out the step that a request is in, before the request goes on."""
        if slot in self.works:
            self.run(pick)

    def fork(self, pick: int) -> None:
        """Fork a request."""
        slot = one(self.slots(Running), pick)
        self.passed(slot, pick)
        request, child = self.state.requests[slot], one(self.slots(Absent), 0)
        assert isinstance(request, Running)
        self.run(pick)  # a copy to a block of the request may be among those that the step is to make
        self.act(Fork(slot, child, request.prefix))

    def trim(self, pick: int) -> None:
        """Give back what a request reads no more, by a call of its own."""
        slot = one(self.slots(Running), pick)
        self.passed(slot, pick)
        request = self.state.requests[slot]
        assert isinstance(request, Running)
        self.act(Trim(slot, request.settled if self.state.config.overlaps else request.computed))

    def dropped(self, slot: int, pick: int) -> None:
        """Hand out the step that a request is in before the request ends, unless nothing of it can be found yet.

        What is given slots is published, so that it must be computed.
        """
        if not self.state.config.settles:
            self.passed(slot, pick)
        elif slot in self.works:
            self.fired["left the step"] += 1

    def release(self, pick: int) -> None:
        """End a request, whatever it is doing."""
        slot = one(self.slots(Running), pick)
        self.dropped(slot, pick)
        self.act(Release(slot))

    def preempt(self, pick: int) -> None:
        """Take a request's blocks, best of one that is not in the step; it is to be sent again, under its name."""
        idle = [slot for slot in self.slots(Running) if slot not in self.works]
        slot = one(idle or self.slots(Running), pick)
        self.dropped(slot, pick)
        self.act(Preempt(slot))
        self.act(Release(slot))

    def start(self, pick: int) -> None:
        """Start a step, after that before it was handed out."""
        self.run(pick)
        self.act(Start())

    def settle(self, pick: int, part: int) -> None:
        """Settle the oldest step, with some of its drafts rejected."""
        self.run(pick)
        flights = self.state.flights[0]
        counts = ((flight.slot, part % (flight.drafts + 1)) for flight in flights if flight.slot is not None)
        rejected = tuple((slot, count) for slot, count in counts if count)
        self.act(Settle(rejected))
        self.fired["rejected"] += len(rejected)

    # --- the step

    def run(self, pick: int) -> None:
        """Hand out the step: to both workers, which may apply the last batch with it; requests in any order."""
        if not self.works:
            return
        batch, random = self.batch, Random(pick)
        first = [slot for slot, _ in batch.told] if batch else []
        rest = [slot for slot in self.works if slot not in first]
        rest += self.waiting_for(random, first + rest)
        random.shuffle(rest)
        works = tuple(self.works[slot][0] for slot in first + rest)
        copies = self.state.copies
        before = self.state
        for number, worker in enumerate(self.workers):
            applies = batch is not None and (pick + number) % 2 == 0
            if batch is not None and not applies:
                worker.apply(batch.slots, batch.steps, batch.allocation)
            told, allocation = (batch.told, batch.allocation) if batch and applies else ((), None)
            inputs = worker.step(works, copies, told, allocation)
            contents = tuple(self.works[work.slot][1] for work in works)
            handed = Handed(before, worker.rows, works, inputs, contents)
            for law in INPUT_LAWS:
                if not law.holds(handed):
                    raise InputsError(law.id, f"{law.statement} {works} {inputs}")
        self.batch = None
        self.works = {}
        self.fired["step"] += 1
        if copies:
            self.act(TakeCopies())

    def waiting_for(self, random: Random, there: list[int]) -> list[int]:
        """Have the step compute nothing of a request that it does not need, now and then; give that request."""
        others = [slot for slot in self.slots(Running) if slot not in there and not is_loading(self.state, slot)]
        if not others or random.random() < 0.8:
            return []
        slot = random.choice(others)
        self.work(slot, computed_of(self.state, slot), 0, 0, self.state)
        self.fired["nothing of a request"] += 1
        return [slot]

    # --- rows

    def compact(self) -> None:
        """Close the gaps between rows."""
        for worker in self.workers:
            worker.compact()
        self.fired["compact"] += 1

    def swap(self, pick: int, part: int) -> None:
        """Have two rows change places, free ones too."""
        for worker in self.workers:
            worker.swap(pick % self.scope.slots, part % self.scope.slots)
        self.fired["swap"] += 1

    def move(self, pick: int, part: int) -> None:
        """Move a row to a free place."""
        slot = one(self.slots(Running), pick)
        for worker in self.workers:
            worker.move(slot, one([place for place, row in enumerate(worker.rows) if row is None], part))
        self.fired["move"] += 1

    def wrong(self, pick: int, part: int) -> None:
        """Make a wrong call."""
        for worker in self.workers:
            said, call = one(wrong_calls(worker, pick), part)
            self.fired[worker.refuses(said, call)] += 1


def one(candidates: Sequence[Any], pick: int) -> Any:
    """Pick one of some."""
    return candidates[pick % len(candidates)]


def served_of(given: Any, groups: int) -> tuple[Served, ...]:
    """Give what a batch told, request by request."""
    new = slices(list(given.new_block_ids), list(given.new_block_offsets), groups)
    nulled = slices(list(given.nulled_entries), list(given.nulled_offsets), groups)
    flat = list(given.replaced_entries)
    replaced = [(flat[at], (flat[at + 1], flat[at + 2], flat[at + 3])) for at in range(0, len(flat), 4)]
    return tuple(
        Served(new[i], nulled[i], tuple(entry for index, entry in replaced if index == i))
        for i in range(given.num_served)
    )


def kv_cache_config(config: Config) -> KVCacheConfig:
    """Give the configuration as an engine gives it to a manager and to its workers."""
    groups = [
        KVCacheGroupSpec([f"layer{at}"], kv_cache_spec(group.kind, group.block_size))
        for at, group in enumerate(config.groups)
    ]
    return KVCacheConfig(config.num_blocks, groups)
