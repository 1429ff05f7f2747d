"""A small engine: continuous batching over one `KVCacheManager`, with everything that the manager offers.

One step::

    what came, and what ended     arrivals, aborts, loads that are there, forks
    schedule                      slots for what runs, then for what waits       (`scheduler`)
    before the step               the host copies what will be written over      (`offload`)
    launch                        block tables, slots, copies                    (`worker`)
    run                           the model
    finish                        sample, accept or reject drafts, append, guess on

With `overlap_steps` a step is scheduled before the one before it has run, so that its last tokens are not known yet.

`run` makes an engine for a schedule and runs it to its end, comparing all it computes with a dense recomputation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import gcd
from typing import Any

from torch import Tensor

import blockwright
import blockwright.offload

from .below import Shelf, shelf_of
from .checker import Checker, NumericsError
from .drafts import GUESSERS
from .elsewhere import Elsewhere, Readers, Swap
from .offload import Offload
from .parts import VOCAB, hasher_of, in_package, model_of, plan_of
from .poison import Poison
from .schedule import Job, Schedule
from .scheduler import Scheduler
from .task import Phase, Step, Task, Work
from .worker import Worker

Shelves = dict[bytes, Shelf]
Call = Callable[[], object]
MOST_STEPS = 400


class Engine:
    """One engine and what watches it; `fired` counts how often which feature was used."""

    def __init__(
        self, schedule: Schedule, package: Any = blockwright, *, device: str = "cpu", shelves: Shelves | None = None
    ) -> None:
        shelves = {} if shelves is None else shelves
        self.schedule, self.config, self.package = schedule, schedule.config, package
        config = schedule.config
        self.fired: Counter[str] = Counter()
        self.model = model_of(
            schedule.layers, schedule.draft, schedule.model_seed, schedule.dtype, schedule.cache_dtype, device
        )
        max_encoder_len = max(job.encoder for job in schedule.jobs)
        plan = plan_of(self.model, config, max_encoder_len, schedule.grow_blocks)
        self.fired["packed caches"] += bool(plan.groups[0].offsets)
        self.manager = package.KVCacheManager(
            in_package(package, plan.config),
            config.max_model_len,
            config.enable_caching,
            use_eagle=config.guesser == "eagle" and config.drafts > 0,
            overlap_steps=config.overlap_steps,
            publish_on_settlement=config.publish_on_settlement,
            watermark=config.watermark,
            track_evictions=config.offload == "evict",
            verify_tokens=config.verify_tokens,
            prefix_match_unit=config.prefix_match_unit or None,
        )
        self.worker = Worker(self.model, plan, config, max_encoder_len, device)
        tensors = self.worker.tensors
        self.swap = Swap(self.manager, tensors, config, self.fired) if config.preemption == "swap" else None
        self.offload: Offload | None = None
        if config.offload:
            shelf = shelf_of(package, shelves, config, schedule.model_seed) if config.shelf_blocks else None
            self.offload = Offload(package, self.manager, tensors, config, self.fired, shelf)
        self.elsewhere: list[Elsewhere] = [each for each in (self.swap, self.offload) if each is not None]
        if config.readers:
            self.elsewhere.append(Readers(package, self.manager, config, self.fired))
        self.scheduler = Scheduler(package, self.manager, config, self.elsewhere, self.fired)
        self.poison = Poison(self.manager, self.worker.storage)
        self.checker = Checker(self.model)
        self.unit = config.prefix_match_unit or gcd(
            *(group.kv_cache_spec.block_size for group in plan.config.kv_cache_groups)
        )
        self.hasher = hasher_of(package, self.manager, config, self.unit)
        self.tasks: list[Task] = []
        self.flight: Step | None = None
        self.count = 0
        self.coming = sorted(enumerate(schedule.jobs), key=lambda pair: pair[1].arrival)

    # ---- one step

    @property
    def is_done(self) -> bool:
        return not self.coming and all(task.phase is Phase.DONE for task in self.tasks) and self.flight is None

    def step(self) -> None:
        self.begin()
        step = self.scheduler.schedule()
        self.before(step)
        if self.config.overlap_steps:
            if self.flight is not None:
                self.finish(self.flight)
            if not step.works:
                self.manager.settle_step(step.number)
            self.flight = step if step.works else None
            self.worker.launch(step)
        else:
            self.worker.launch(step)
            self.finish(step)
        self.count += 1
        self.fired["steps"] += 1

    def begin(self) -> None:
        while self.coming and self.coming[0][1].arrival <= self.count:
            self.arrive(*self.coming.pop(0))
        for task in self.tasks:
            abort = task.job.abort
            if task.phase is not Phase.DONE and abort is not None and self.count >= task.job.arrival + abort:
                self.fired[f"aborted while {task.phase.value}"] += 1
                self.end(task)
        for place in self.elsewhere:
            for task, num_computed in place.poll():
                self.scheduler.loaded(task, num_computed)
        for task in list(self.scheduler.running):
            if task.wants_fork:
                self.fork(task)
        if self.count in self.schedule.resets and self.manager.reset_prefix_cache():
            self.fired["resets"] += 1

    def arrive(self, number: int, job: Job) -> None:
        request = self.package.Request(
            f"r{number}",
            job.prompt(VOCAB),
            self.unit if self.config.enable_caching else None,
            cache_salt=job.salt,
            lora_name=f"adapter {job.adapter}" if job.adapter else None,
            mm_items=[self.package.MultiModalItem(*item) for item in job.items],
            hasher=self.hasher,
        )
        encoder = self.model.encoder_outputs(job.encoder, number) if job.encoder else None
        task = Task(request, job, job.seed, encoder, forks=sorted(job.forks))
        self.tasks.append(task)
        self.scheduler.waiting.append(task)

    def fork(self, parent: Task) -> None:
        if self.scheduler.room <= 0 or parent.flight is not None:
            return
        if self.scheduler.is_recurrent and parent.num_accepted:
            return  # its state is an accepted draft's; it is in the table after another step, which makes no guesses
        child = parent.request.fork(f"{parent.name}.{len(self.tasks)}")
        blocks = self.manager.fork(parent.request, child)
        if blocks is None:
            self.fired["fork refused"] += 1
            return
        parent.forks.pop(0)
        parent.drafts = []
        seed = (parent.seed or 0) * 31 + len(self.tasks)
        task = Task(child, replace(parent.job, forks=(), abort=None), seed, parent.encoder, Phase.RUNNING)
        task.seeds = parent.seeds.copy()
        self.tasks.append(task)
        self.scheduler.later.take(self.manager.get_draft_block_ids(task.name))
        self.scheduler.join(task)
        self.fired["forks"] += 1

    def before(self, step: Step) -> None:
        for work in step.works:
            if work.task.job.drop is not None and work.end >= work.task.job.drop:
                self.fired["dropped"] += 1
                work.is_launched = self.config.launch_dropped
                self.end(work.task)
        if self.offload is not None:
            self.offload.start_step()
            step.taken = [block for block in step.taken if block not in self.offload.handler.landed]
            self.offload.handler.landed.clear()
        self.poison.taken([*step.taken, *step.parts])
        self.poison.sweep({source for pairs in step.copies for source, _ in pairs})

    # ---- what came of it

    def finish(self, step: Step) -> None:
        works = self.worker.works
        hidden, logits = self.worker.run()
        found: dict[Work, list[int]] = {}
        rejected: dict[str, int] = {}
        for work, rows in zip(works, logits, strict=True):
            self.checker.note(step.index, work, rows)
            if not work.task.is_current(work):
                self.fired["computed in vain"] += 1
                continue
            found[work] = self.sampled(work, rows)
            if work.num_rejected:
                rejected[work.task.name] = work.num_rejected
        if self.config.overlap_steps:
            self.manager.settle_step(step.number, rejected)
        for work, tokens in found.items():
            self.append(work, tokens)
        self.guess(step.index, hidden, found)
        for work in found:
            self.after(work)
        if self.offload is not None:
            self.offload.finish_step([work.task for work in works])
        for work in found:
            if work.task.num_left <= 0:
                self.end(work.task)
                self.checker.compare(work.task)

    def sampled(self, work: Work, logits: Tensor) -> list[int]:
        task = work.task
        known = work.end - work.num_drafts
        work.num_settled = known
        if known < task.request.num_tokens:
            return []  # a chunk of a prompt
        tokens: list[int] = []
        while True:
            at = known + len(tokens)
            tokens.append(task.sample(logits[at - 1 - work.begin], at))
            if at >= work.end or work.tokens[at] != tokens[-1] or len(tokens) == task.num_left:
                break
        accepted = len(tokens) - 1
        work.num_settled, work.num_rejected = known + accepted, work.num_drafts - accepted
        guesser = "draft head" if self.config.guesser == "eagle" else "guesser"
        self.fired[f"accepted, {guesser}"] += accepted
        self.fired[f"rejected, {guesser}"] += work.num_rejected
        self.fired["accepted, recurrent"] += accepted * self.scheduler.is_recurrent
        return tokens

    def append(self, work: Work, tokens: list[int]) -> None:
        task, request = work.task, work.task.request
        if self.config.overlap_steps:
            request.num_computed_tokens -= work.num_rejected
            if task.flight is work:
                task.flight = None
        else:
            request.num_computed_tokens = work.num_settled
        task.num_accepted = max(0, len(tokens) - 1)
        if tokens:
            request.append_output_token_ids(tokens)
            task.seeds += [task.seed] * len(tokens)

    def guess(self, step: int, hidden: Tensor | None, found: dict[Work, list[int]]) -> None:
        config = self.config
        if config.drafts == 0 or hidden is None:
            return
        asks = {
            work: min(config.drafts, work.task.num_left - 1, config.max_model_len - work.task.request.num_tokens)
            for work, tokens in found.items()
            if tokens and not work.task.wants_fork
        }
        asks = {work: count for work, count in asks.items() if count > 0}
        if config.guesser == "eagle":
            for proposal in self.worker.propose(hidden, asks):
                proposal.work.task.drafts = proposal.tokens
                self.checker.note_proposal(step, proposal)
            return
        for work, count in asks.items():
            work.task.drafts = GUESSERS[config.guesser](work.task, count, VOCAB)

    def after(self, work: Work) -> None:
        """Give back and publish what a step has made so, and poison what must not be read behind it."""
        task, config = work.task, self.config
        self.poison.behind(task, work.num_settled, work.end + work.num_ahead, work.num_drafts)
        settled = min(work.num_settled, task.request.num_tokens)
        if config.delay_publication:
            self.manager.cache_blocks(task.request, settled)
        if config.trim_early:
            self.manager.remove_skipped_blocks(task.request, work.num_settled)
            self.scheduler.later.set_row(self.manager, task)

    def end(self, task: Task) -> None:
        for place in self.elsewhere:
            place.ended(task)
        self.scheduler.end(task)

    # ---- all of it

    def run(self, most_steps: int = MOST_STEPS, before: Callable[[], object] = int) -> None:
        while not self.is_done:
            if self.count >= most_steps:
                raise NumericsError("NUMERICS-0", f"the schedule has not come to its end after {most_steps} steps")
            before()
            self.step()
        self.checker.all(self.tasks)
        self.close()
        self.fired["evictions"] += self.manager.block_pool.num_evictions
        self.fired.update(f"with {name}" for name in self.config.changed)
        self.fired["logits compared"] += self.checker.num_compared

    def close(self) -> None:
        while self.swap is not None and self.swap.loads:
            self.swap.poll()
        if self.config.readers:
            self.elsewhere[-1].poll()
        if self.offload is not None:
            self.offload.close()
        self.manager.check()
        if self.manager.usage != 0.0:
            raise NumericsError("NUMERICS-3", f"{self.manager.usage:.0%} of the blocks are held at the end")
        if not self.poison.null_is_untouched():
            raise NumericsError("NUMERICS-2", "something was written to the null block")


def run(
    schedule: Schedule, package: Any = blockwright, *, most_steps: int = MOST_STEPS, before: Call = int, **where: Any
) -> Counter[str]:
    """Run a schedule to its end, `before` each step a call; say how often which feature was used.

    The model runs on a device (`where`), and is always compared on the CPU. `package` is the manager's, or a variant.
    """
    before()
    engine = Engine(schedule, package, **where)
    try:
        engine.run(most_steps, before)
    except Exception as error:
        law, what = getattr(error, "law", "NUMERICS-0"), f"{type(error).__name__}: {error}"
        wrong = error if isinstance(error, NumericsError) else NumericsError(law, what, engine.count)
        raise earliest(engine, wrong) from error
    return engine.fired


def earliest(engine: Engine, error: NumericsError) -> NumericsError:
    try:
        if error.step is not None or error.law == "NUMERICS-1":
            engine.checker.all(engine.tasks)
    except NumericsError as other:
        if other.step is not None and (error.step is None or other.step < error.step):
            return other
    return error
