"""The paths of an engine's loop: all that it asks of manager and worker in a step in which requests come and go.

256 requests run over six groups, as in `groups`; in each step the five oldest end and five new ones come, with prompts
of 8,192 tokens of which the first half is shared. The loop is timed part by part; a path is the whole, or one part.
"""

from itertools import pairwise
from typing import Any

from benchmarks import groups
from benchmarks.measure import Sample, now, require
from benchmarks.path import LOOP, Path
from benchmarks.sides import BLOCK_SIZE, Tokens
from benchmarks.step_sides import OursStep, StepSide

PROMPT, ARRIVALS, STEPS = 8_192, 5, 26
"""Tokens of a prompt, requests that come and go in each step, steps of one repetition."""
LIFE = -(-groups.BATCH // ARRIVALS)
"""Steps in which a request runs, at most."""
WHOLE, LEAST = 40, 10
"""Ratio over the peer to reach, of the whole loop and of each part."""
PARTS = {
    "free": "requests that end",
    "request": "new requests: made, and hashed",
    "lookup": "lookup of their prompts",
    "admit": "their slots",
    "row": "their rows in the worker, in place of others",
    "schedule": "slots for all, one token each",
    "inputs": "tables and slots of the step",
    "append": "tokens counted and appended",
}


class Loop:
    """A running engine's manager and worker, with requests that come and go."""

    def __init__(self, side: StepSide) -> None:
        width = (PROMPT + LIFE) // BLOCK_SIZE + 2
        window = groups.WINDOW // BLOCK_SIZE + LIFE // BLOCK_SIZE + 3
        size = groups.BATCH * (width + 5 * window) + (ARRIVALS + 1) * 6 * width
        self.side = side
        self.worker = side.worker(size, PROMPT + LIFE + BLOCK_SIZE, groups.WINDOWS, groups.BATCH)
        tokens = Tokens()
        self._shared, self._own = tokens.draw(PROMPT // 2), tokens.draw(PROMPT // 2)
        self._outputs = tokens.draw(groups.BATCH)
        self._serial = self._steps = 0
        self.requests: list[Any] = []
        self._born: list[int] = []
        while len(self.requests) < groups.BATCH:
            self.step()
        for _ in range(LIFE):
            self.step()

    def prompt(self) -> list[int]:
        """Return a prompt that shares its first half with all others, and nothing behind it."""
        self._serial += 1
        return [*self._shared, self._serial, *self._own[1:]]

    def step(self) -> list[int]:
        """Make a step; return the time of each part, in ns."""
        side, worker, manager = self.side, self.worker, self.worker.manager
        rows = [(self._serial + i) % groups.BATCH for i in range(ARRIVALS)]
        ended = [self.requests[row] if row < len(self.requests) else None for row in rows]
        prompts = [self.prompt() for _ in rows]
        marks = [now()]
        for request in ended:
            if request is not None:
                manager.free(request)
        marks.append(now())
        new = [side.request(f"r{self._serial}.{row}", prompt) for row, prompt in zip(rows, prompts, strict=True)]
        marks.append(now())
        hits = [manager.get_computed_blocks(request)[:2] for request in new]
        marks.append(now())
        for request, (hit, length) in zip(new, hits, strict=True):
            manager.allocate_slots(request, PROMPT - 1 - length, length, hit)
        marks.append(now())
        for row, request, replaced in zip(rows, new, ended, strict=True):
            worker.add(row, request, replaced)
        marks.append(now())
        for row, request in zip(rows, new, strict=True):
            self.requests[row : row + 1] = [request]
            self._born[row : row + 1] = [self._steps]
            request.num_computed_tokens = PROMPT - 1  # the last one is computed in the step, as all others' next
            side.mark_running(request)
        self._steps += 1
        marks.append(now())
        scheduled = worker.schedule(self.requests)
        marks.append(now())
        worker.write(self.requests, scheduled)
        marks.append(now())
        side.advance(self.requests, self._outputs[: len(self.requests)])
        marks.append(now())
        require(self._steps == 1 or all(length == PROMPT // 2 for _, length in hits))
        spent = [end - begin for begin, end in pairwise(marks)]
        return [*spent[:5], *spent[6:]]

    def finish(self) -> None:
        """Check the lengths of all requests and tables."""
        for request, born in zip(self.requests, self._born, strict=True):
            steps = self._steps - born
            require(request.num_computed_tokens == PROMPT - 1 + steps and request.num_tokens == PROMPT + steps)
            for table in self.worker.manager.get_block_ids(request.request_id):
                require(len(table) == -(-request.num_computed_tokens // BLOCK_SIZE))


def loop(side: StepSide, part: int | None = None) -> Sample:
    run = Loop(side)

    def sample() -> float:
        times = [run.step() for _ in range(STEPS)]
        run.finish()
        return sum(sum(each) if part is None else each[part] for each in times) / STEPS

    return sample


def _path(name: str, title: str, target: float, part: int | None) -> Path:
    return Path(
        f"loop-{name}",
        title,
        "step",
        target,
        lambda: loop(OursStep(), part),
        lambda peer: loop(peer, part),
        system=LOOP,
        needs=("torch", "numpy"),
    )


def all_paths() -> list[Path]:
    whole = _path("whole", f"an engine's loop: {groups.BATCH} requests, {ARRIVALS} come and go", WHOLE, None)
    return [whole, *(_path(name, title, LEAST, at) for at, (name, title) in enumerate(PARTS.items()))]
