"""The scheduler: who runs in a step, how many tokens of each, and who has to wait.

First what runs already, in one call (`allocate_slots_batch`): one token and drafts, or the next chunk of a prompt. The
first that does not fit ends the batch; the last to be admitted is preempted, and the rest asks again. Then what waits
is admitted while there is room: its hit is looked up (`get_computed_blocks`), and it is given slots (`allocate_slots`).
"""

from __future__ import annotations

from collections import Counter
from math import lcm
from typing import Any

from .elsewhere import Elsewhere
from .schedule import EngineConfig
from .task import Phase, Step, Task, Work

KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "recurrent",
    "CrossAttentionSpec": "cross",
}


class Scheduler:
    """Waiting, loading and running requests of one manager; the one that was admitted last is preempted first."""

    def __init__(
        self, package: Any, manager: Any, config: EngineConfig, elsewhere: list[Elsewhere], fired: Counter[str]
    ) -> None:
        self.package, self.manager, self.config = package, manager, config
        self.elsewhere, self.fired = elsewhere, fired
        self.waiting: list[Task] = []
        self.loading: list[Task] = []
        self.running: list[Task] = []
        specs = [group.kv_cache_spec for group in manager.kv_cache_config.kv_cache_groups]
        self.sizes = [spec.block_size for spec in specs]
        self.boundary = lcm(*self.sizes)
        """Where prefill chunks end, if they are to end on block boundaries."""
        self.kinds = [KINDS[type(spec).__name__] for spec in specs]
        self.is_recurrent = "recurrent" in self.kinds
        self.num_ahead = config.drafts if config.guesser == "eagle" else 0
        """Lookahead slots of each step: where the draft head writes while it guesses on."""
        self.later = Step(0)

    def schedule(self) -> Step:
        step, self.later = self.later, Step(self.later.index + 1)
        if self.config.overlap_steps:
            step.number = self.manager.start_step()
        else:
            self.manager.new_step_starts()
        if not self.grow(step):
            self.admit(step)
        step.copies = self.manager.take_copies()
        step.parts = self.parts(step)
        for work in step.works:
            if self.config.overlap_steps:
                work.task.request.num_computed_tokens = work.end  # scheduled, not known to be done
                work.task.flight = work
        return step

    def parts(self, step: Step) -> dict[int, int]:
        """Return the tokens that each copy is to bring: those of the block that its request has computed or hit."""
        begins = {work.task: work.begin for work in step.works}
        admitted = {work.task for work in step.works[step.served :]}
        parts: dict[int, int] = {}
        for group, pairs in enumerate(step.copies):
            targets = {target for _, target in pairs}
            for task in self.running if targets and self.kinds[group] != "recurrent" else ():
                begin = begins.get(task, int(task.request.num_computed_tokens))
                table, size = self.manager.get_block_ids(task.name)[group], self.sizes[group]
                if begin // size < len(table) and table[begin // size] in targets:
                    parts[table[begin // size]] = begin % size
                    self.fired["part copied"] += task in admitted
        return parts

    # ---- what runs

    def grow(self, step: Step) -> bool:
        """Give what runs its slots, the oldest first; return whether someone had to be preempted for it."""
        left = self.wanted(self.config.max_num_batched_tokens)
        preempted = False
        while left:
            requests = [work.task.request for work in left]
            allocation = self.manager.allocate_slots_batch(
                requests,
                [work.num_new for work in left],
                [work.num_ahead for work in left],
                [work.num_drafts if self.declares else 0 for work in left],
            )
            served, left = left[: allocation.num_served], left[allocation.num_served :]
            step.take([allocation.new_block_ids, list(allocation.replaced_entries)[3::4]])
            self.count_changes(allocation)
            step.works += served
            if allocation.refused is None and not preempted:
                step.allocation = allocation
                break
            step.calls.append(("apply", (requests, allocation)))
            if allocation.refused is None:
                break
            preempted = True
            victim = self.running[-1]
            if victim is self.running[0]:
                break  # alone: others that are loading, or copies under way, will give their blocks back
            in_flight = victim.flight is not None
            self.preempt(step, victim)
            left = [] if in_flight else [work for work in left if work.task is not victim]
        step.served = len(step.works)
        return preempted

    def count_changes(self, allocation: Any) -> None:
        offsets, groups = allocation.nulled_offsets, len(self.kinds)
        for at in range(len(offsets) - 1):
            if offsets[at + 1] > offsets[at]:
                self.fired[f"nulled, {self.kinds[at % groups]}"] += 1
        for group in list(allocation.replaced_entries)[1::4]:
            self.fired[f"copied, {self.kinds[group]}"] += 1

    @property
    def declares(self) -> bool:
        return self.config.declare_drafts or self.is_recurrent or self.config.overlap_steps

    def wanted(self, budget: int) -> list[Work]:
        works = []
        for task in self.running:
            work = self.next_work(task, task.request.num_computed_tokens, budget)
            if work is not None:
                works.append(work)
                budget -= work.num_new
        return works

    def next_work(self, task: Task, begin: int, budget: int) -> Work | None:
        """Return what a request computes from a position on, or None: a chunk of what is known, or a decode step.

        With a step in flight that will sample its next token, it goes on with that one, not knowing it yet.
        """
        request, config = task.request, self.config
        known = int(request.num_tokens)
        drafts = task.drafts
        if begin >= known:  # the next token is still in flight
            if task.flight is None or (task.flight.num_drafts and self.is_recurrent):
                return None
            if request.num_output_tokens + 1 >= task.job.output or task.forks or task.flight.end < known:
                return None
            known, drafts = begin + 1, [0] * config.drafts
        if known - begin > 1 and known == request.num_tokens and not task.drafts:
            stop = min(known, begin + budget)
            if config.align_chunks and stop // self.boundary * self.boundary > begin:
                stop = stop // self.boundary * self.boundary
            num_drafts = 0
        else:
            stop = known
            drafts = [] if task.wants_fork else drafts
            num_drafts = max(0, min(len(drafts), config.max_model_len - stop, budget - (stop - begin)))
        if stop <= begin or stop - begin + num_drafts > budget:
            return None
        return Work(task, task.turn, begin, stop - begin + num_drafts, num_drafts, self.num_ahead)

    def preempt(self, step: Step, task: Task) -> None:
        for place in self.elsewhere:
            place.preempting(task)
        self.fired["preempted in flight" if task.flight is not None else "preempted"] += 1
        self.manager.free(task.request)
        step.remove_row(task.name)
        self.running.remove(task)
        self.restart(task)

    def restart(self, task: Task) -> None:
        task.request.num_computed_tokens = 0
        task.phase, task.flight, task.drafts = Phase.WAITING, None, []
        task.turn += 1
        self.waiting.insert(0, task)

    # ---- what waits

    @property
    def room(self) -> int:
        return self.config.max_num_seqs - len(self.running) - len(self.loading)

    def admit(self, step: Step) -> None:
        """Admit what waits, in order, up to the first that does not fit.

        Blocks are published when their slots are given. What a step computes it may read in the same step, since each
        layer writes all its keys and values before it reads; recurrent states are found from the next step on.
        """
        budget = self.config.max_num_batched_tokens - sum(work.num_new for work in step.works)
        while self.waiting and self.room > 0 and budget > 0:
            task = self.waiting[0]
            hit, num_hit = self.manager.get_computed_blocks(task.request)
            work = self.admit_one(step, task, hit, num_hit, budget)
            if work is None and task.phase is Phase.WAITING:
                break
            self.waiting.pop(0)
            if work is None:
                self.loading.append(task)
                continue
            self.running.append(task)
            step.works.append(work)
            step.set_row(self.manager, task)
            budget -= work.num_new

    def admit_one(self, step: Step, task: Task, hit: Any, num_hit: int, budget: int) -> Work | None:
        """Admit a request, on a load if there is one, else computing; None if it does not fit or does not compute."""
        for place in self.elsewhere:
            num_external = place.num_external(task, num_hit)
            if num_external == 0:
                continue
            blocks = self.slots(task, 0, num_hit, hit, num_external)
            if blocks is not None:
                step.take(self.taken(task, blocks))
                task.phase = Phase.LOADING
                place.load(task, num_hit, num_external)
                return None
            self.expect_later(task, num_hit, hit, num_external)
            return None
        work = self.next_work(task, num_hit, budget)
        if work is None:
            return None
        blocks = self.slots(task, work.num_new, num_hit, hit, 0, work.num_ahead)
        if blocks is None:
            return None
        step.take(self.taken(task, blocks))
        if num_hit:
            self.fired.update(f"hit, {kind}" for kind in set(self.kinds))
            self.fired["hit inside a block"] += any(num_hit % size for size in self.sizes)
        self.fired["chunked prompts"] += work.end < task.request.num_tokens
        task.phase = Phase.RUNNING
        task.request.num_computed_tokens = num_hit
        if task.encoder is not None:
            step.admitted.append(task)
        return work

    def slots(
        self, task: Task, num_new: int, num_hit: int, hit: Any, num_external: int, num_ahead: int = 0
    ) -> Any | None:
        arguments = self.arguments(task, num_external, num_ahead)
        if not self.config.plan_first:
            return self.manager.allocate_slots(task.request, num_new, num_hit, hit, **arguments)
        plan = self.manager.plan(task.request, num_new, num_hit, hit, **arguments)
        return self.manager.commit(plan) if isinstance(plan, self.package.Fits) else None

    def expect_later(self, task: Task, num_hit: int, hit: Any, num_external: int) -> None:
        """Complain of a load that would not even fit an empty pool, though the request can be computed there."""
        plan = self.manager.plan(task.request, 0, num_hit, hit, **self.arguments(task, num_external, 0))
        if isinstance(plan, self.package.Never):
            raise AssertionError(f"LIVE-1: {task.name!r} was offered a load that the pool can never hold")

    def arguments(self, task: Task, num_external: int, num_ahead: int) -> dict[str, Any]:
        config = self.config
        return {
            "num_lookahead_tokens": num_ahead,
            "num_external_computed_tokens": num_external,
            "num_encoder_tokens": task.num_encoder_tokens,
            "delay_cache_blocks": config.delay_publication,
            "full_sequence_must_fit": config.full_sequence_must_fit,
            "reserved_blocks": config.reserved_blocks,
        }

    def taken(self, task: Task, blocks: Any) -> list[list[int]]:
        return [*blocks.get_block_ids(), *self.manager.get_draft_block_ids(task.name)]

    # ---- between steps

    def loaded(self, task: Task, num_computed: int) -> None:
        self.loading.remove(task)
        if num_computed == 0:
            self.restart(task)
            return
        task.request.num_computed_tokens = num_computed
        task.phase = Phase.RUNNING
        self.join(task)

    def join(self, task: Task) -> None:
        self.running.append(task)
        self.later.set_row(self.manager, task)

    def end(self, task: Task) -> None:
        self.manager.free(task.request)
        if task.phase is Phase.RUNNING:
            self.later.remove_row(task.name)
        for tasks in (self.waiting, self.loading, self.running):
            if task in tasks:
                tasks.remove(task)
        task.phase, task.flight = Phase.DONE, None
