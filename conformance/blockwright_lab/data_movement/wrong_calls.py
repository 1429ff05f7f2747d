"""Wrong calls on a worker: each is refused by the specification for a reason, and by the batch by a typed error."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from blockwright.core.outcomes import BatchAllocation
from blockwright.device.inputs import InputBatch
from blockwright_conformance.kv_cache.parts import name_of
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import initial
from blockwright_spec.worker import rows as spec
from blockwright_spec.worker.inputs import Work, inputs
from blockwright_spec.worker.rows import Row, RowRefusal

from .worker import Worker

Wrong = tuple[object, Callable[[InputBatch], Any]]
"""What the specification says of a call, and the call."""

STRANGER = 99
"""The slot of a request that no worker knows."""


def wrong_calls(worker: Worker, pick: int) -> list[Wrong]:
    """Give the wrong calls that can be made now."""
    config, rows = worker.config, worker.rows
    there = [row for row in rows if row]
    found = [*of_strangers(worker), *of_places(worker, pick)]
    if there:
        found += of_steps(worker, there[pick % len(there)], pick)
    if len(there) == len(rows):
        nothing = ((),) * len(config.groups)
        row = Row(STRANGER, nothing, nothing)
        found.append((spec.add(rows, row, pick % len(rows)), lambda batch: batch.add_request("stranger", nothing)))
    return found


def of_strangers(worker: Worker) -> list[Wrong]:
    """Give calls for a request without a row."""
    config, rows, work = worker.config, worker.rows, Work(STRANGER, 0, 1)
    stranger = SimpleNamespace(request_id="stranger", num_computed_tokens=0)
    told = ((STRANGER, Done(initial(config, 0))),)
    return [
        (spec.remove(rows, STRANGER), lambda batch: batch.remove_request("stranger")),
        (spec.move(rows, STRANGER, 0), lambda batch: batch.move_request("stranger", 0)),
        (inputs(config, rows, (work,), ()), lambda batch: batch.step([stranger], 1)),
        (inputs(config, rows, (work,), ()), lambda batch: batch.step([None], 1)),
        (spec.apply(rows, told), lambda batch: batch.apply([stranger], NOTHING)),
        (spec.apply(rows, told), lambda batch: batch.apply([None], NOTHING)),
    ]


def of_places(worker: Worker, pick: int) -> list[Wrong]:
    """Give moves to places that are taken, or that there are not."""
    rows, there = worker.rows, [row.slot for row in worker.rows if row]
    beyond = len(rows)
    found: list[Wrong] = [
        (spec.swap(rows, 0, beyond), lambda batch: batch.swap(0, beyond)),
        (spec.swap(rows, -1, 0), lambda batch: batch.swap(-1, 0)),
    ]
    if not there:
        return found
    slot, other = there[pick % len(there)], there[-1]
    found.append((spec.move(rows, slot, beyond), lambda batch: batch.move_request(name_of(slot), beyond)))
    place = spec.place_of(rows, other)
    if slot != other and place is not None:
        found.append((spec.move(rows, slot, place), lambda batch: batch.move_request(name_of(slot), place)))
    return found


def of_steps(worker: Worker, row: Row, pick: int) -> list[Wrong]:
    """Give steps and batches with a request twice, with wrong counts, and beyond the blocks that a request has."""
    config, rows, slot, random = worker.config, worker.rows, row.slot, Random(pick)
    begin = row.certain or 0
    known = worker.request(slot)
    twice = ((slot, Done(initial(config, 0))),) * 2
    found: list[Wrong] = [(spec.apply(rows, twice), lambda batch: batch.apply([known, known], NOTHING))]

    def step(begin: int, new: int, drafts: int, times: int = 1) -> Wrong:
        works = (Work(slot, begin, new, drafts),) * times

        def call(batch: InputBatch) -> None:
            worker.request(slot, begin)
            batch.step([known] * times, new, num_draft_tokens=drafts)

        return inputs(config, rows, works, ()), call

    found += [step(begin, 1, 0, 2), step(begin, -1, 0), step(begin, 1, -1), step(begin, 1, 1), step(begin, 2, 2)]
    for _ in range(8):
        first = random.randrange(begin, config.max_model_len + 1)
        asked = step(first, random.randint(1, 9), random.randrange(4))
        if isinstance(asked[0], RowRefusal):
            found.append(asked)
    return found


NOTHING = BatchAllocation(0, None, vec[i32](), vec[i32]([0]), vec[i32](), vec[i32]([0]), vec[i32]())
"""What a batch tells that served nobody."""
