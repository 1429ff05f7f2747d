"""Paths over several groups of layers: a decode step of a hybrid model, with steps in flight, and a long hit.

One group of full attention and five of sliding windows, as in models of today. The decoding requests are a running
engine's: contexts of about 8,000 tokens; those that have ended make room for new ones between two repetitions; each
block taken was another's content. So block boundaries, publication, trimming and eviction are in the average in their
natural proportion, as often for one side as for the other.
"""

from typing import Any

from benchmarks.measure import Sample, now, require, since
from benchmarks.sides import BLOCK_SIZE, MAX_MODEL_LEN, Ours, Side, Tokens, Windows, as_array

WINDOW = 1_024
"""Tokens of the sliding windows."""
WINDOWS: Windows = (None, *[WINDOW] * 5)
"""The groups: one of full attention, five of sliding windows."""
ODD: Windows = (None, *[WINDOW] * 45)
"""The groups of a model that shares no shape of cache between most layers."""
MANY: Windows = (*[WINDOW] * 63, None)
"""As many groups as should cost no more than one, each; the windows first, which is the dearer order."""
BATCH = 256
"""Running requests of a decode step."""
STEPS = 128
"""Decode steps of one repetition: each request passes eight block boundaries."""
SHORTEST, LIFE = 7_168, 2_048
"""Tokens of the youngest running request, and tokens that it decodes before it ends; the batch has all ages evenly."""
LARGE = 24 << 20
"""Bytes that are freed at once: from then on the C library keeps what is freed, as in a process of some age."""
CHUNK = 1_024
"""Tokens of a prefill step, so that windows slide during the prefill too."""


def pool_size(
    shortest: int = SHORTEST, steps: int = STEPS, windows: Windows = WINDOWS, block_size: int = BLOCK_SIZE
) -> int:
    """Return the blocks of a pool for a batch whose youngest request has so many tokens, with little to spare."""
    per_full = (shortest + LIFE + steps) // block_size + 1
    per_window = (WINDOW + steps) // block_size + 2
    spare = len(windows) * (CHUNK + WINDOW) // block_size
    return BATCH * (per_full + (len(windows) - 1) * per_window) + spare


def ages() -> list[int]:
    """Return the tokens that each request of the batch has decoded: evenly many at each offset within a block."""
    return [i * LIFE // BATCH + i // 2 % (LIFE // BATCH) for i in range(BATCH)]


class Decoding:
    """A batch of running requests of all ages, over six groups; settled at once where steps are in flight."""

    def __init__(
        self,
        side: Side,
        manager: Any,
        overlap_steps: bool = False,
        shortest: int = SHORTEST,
        steps: int = STEPS,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        """Start requests of `shortest` tokens and more, each with the tokens of `steps` decode steps beyond its end."""
        self.side, self.manager, self.overlap_steps = side, manager, overlap_steps
        self.shortest, self.steps, self.block_size = shortest, steps, block_size
        self._tokens = Tokens()
        self._serial = 0
        self.requests = [self._started(shortest + age) for age in ages()]

    def _started(self, num_tokens: int) -> Any:
        """Return a new running request whose first `num_tokens` tokens are computed."""
        self._serial += 1
        request = self.side.request(f"r{self._serial}", self._tokens.draw(num_tokens))
        self.side.mark_running(request)
        # The last one is a first decode step: it trims what the prefill's last chunk still read.
        for begin in (*range(0, num_tokens - 1, CHUNK), num_tokens - 1):
            new = min(CHUNK, num_tokens - 1 - begin) or 1
            step = self.manager.start_step() if self.overlap_steps else 0
            require(self.manager.allocate_slots(request, new) is not None)
            request.num_computed_tokens += new
            if self.overlap_steps:
                self.manager.settle_step(step)
        # Only now: what is known of a request as it is admitted counts as its prompt.
        request.append_output_token_ids(self._tokens.draw(self.shortest + LIFE + self.steps - num_tokens))
        self.side.hash_filled(request)
        return request

    def start(self) -> None:
        """Replace the requests that have ended by young ones, the ages staying as even as they were."""
        for i, request in enumerate(self.requests):
            if request.num_computed_tokens >= self.shortest + LIFE:
                self.manager.free(request)
                self.requests[i] = self._started(request.num_computed_tokens - LIFE)

    def advance(self) -> None:
        for request in self.requests:
            request.num_computed_tokens += 1

    def finish(self, num_unsettled: int = 0) -> None:
        """Check what is held after the last step, which trimmed all but the window of the tokens settled before it."""
        for request in self.requests:
            num_tokens = request.num_computed_tokens
            first = (num_tokens - 1 - num_unsettled - WINDOW + 1) // self.block_size
            full, *sliding = self.manager.get_block_ids(request.request_id)
            require(len(full) == -(-num_tokens // self.block_size) and all(full))
            for table in sliding:
                require(len(table) == len(full) and not any(table[:first]) and all(table[first:]))


def decode_each(side: Side) -> Sample:
    return each_call(Decoding(side, side.manager(pool_size(), MAX_MODEL_LEN, WINDOWS)))


def decode_batch(side: Ours, overlap_steps: bool = False, windows: Windows = WINDOWS) -> Sample:
    num_blocks = pool_size(windows=windows, block_size=side.block_size)
    manager = side.manager(num_blocks, MAX_MODEL_LEN, windows, overlap_steps)
    run = Decoding(side, manager, overlap_steps, block_size=side.block_size)
    return in_flight(run) if overlap_steps else one_call(run)


def each_call(run: Any) -> Sample:
    """Time a decode step as one `allocate_slots(request, 1)` for each request."""
    allocate_slots = run.manager.allocate_slots

    def sample() -> float:
        run.start()
        spent = 0
        for _ in range(STEPS):
            begin = now()
            for request in run.requests:
                allocate_slots(request, 1)
            spent += since(begin)
            run.advance()
        run.finish()
        return spent / (STEPS * BATCH)

    return sample


def one_call(run: Any) -> Sample:
    """Time a decode step as one `allocate_slots_batch` for all requests."""

    def sample() -> float:
        run.start()
        spent = 0
        for _ in range(STEPS):
            begin = now()
            step = run.manager.allocate_slots_batch(run.requests, 1)
            spent += since(begin)
            require(step.num_served == BATCH)
            run.advance()
        run.finish()
        return spent / (STEPS * BATCH)

    return sample


def in_flight(run: Decoding) -> Sample:
    """Time the same with one more step in flight: each is started, and settled once the next has its slots."""
    manager = run.manager

    def sample() -> float:
        run.start()
        spent = last = 0
        for _ in range(STEPS):
            begin = now()
            number = manager.start_step()
            step = manager.allocate_slots_batch(run.requests, 1)
            if last:
                manager.settle_step(last)
            spent += since(begin)
            last = number
            require(step.num_served == BATCH and manager.steps_in_flight == [last])
            run.advance()
        begin = now()
        manager.settle_step(last)
        spent += since(begin)
        run.finish(num_unsettled=1)
        return spent / (STEPS * BATCH)

    return sample


def num_needed(windows: Windows, num_blocks: int) -> int:
    """Return the blocks that a hit of `num_blocks` blocks needs: all of full attention, a window's last ones."""
    per_group = [num_blocks if window is None else -(-(window - 1) // BLOCK_SIZE) for window in windows]
    return sum(min(count, num_blocks) for count in per_group)


def lookup(side: Side, windows: Windows, num_blocks: int) -> Sample:
    bytearray(LARGE)
    ids = Tokens().draw(num_blocks * BLOCK_SIZE + 1)
    manager = side.manager(len(windows) * (num_blocks + 1) + 1, MAX_MODEL_LEN, windows)
    writer = side.request("writer", ids)
    require(manager.allocate_slots(writer, num_blocks * BLOCK_SIZE) is not None)
    writer.num_computed_tokens = num_blocks * BLOCK_SIZE
    manager.free(writer)

    def sample() -> float:
        readers = [side.request(f"reader {at}", ids) for at in range(4)]
        begin = now()
        for request in readers:
            found = manager.get_computed_blocks(request)
        spent = since(begin)
        require(found[1] == num_blocks * BLOCK_SIZE)
        return spent / (4 * num_needed(windows, num_blocks))

    return sample


def prefill(side: Side, windows: Windows, num_blocks: int) -> Sample:
    request = side.request("long", Tokens().draw(num_blocks * BLOCK_SIZE))
    manager = side.manager(len(windows) * num_blocks + 1, MAX_MODEL_LEN, windows)

    def sample() -> float:
        manager.free(request)
        require(manager.reset_prefix_cache())
        begin = now()
        new = manager.allocate_slots(request, num_blocks * BLOCK_SIZE)
        spent = since(begin)
        require(new is not None and manager.get_computed_blocks(request)[1] == (num_blocks - 1) * BLOCK_SIZE)
        return spent / (num_blocks * len(windows))

    return sample


def miss(side: Ours, windows: Windows, num_blocks: int) -> Sample:
    prompt = as_array(Tokens().draw(num_blocks * BLOCK_SIZE))
    manager = side.manager(2, MAX_MODEL_LEN, windows)

    def sample() -> float:
        begin = now()
        found = [manager.get_computed_blocks(side.arriving("new", prompt)) for _ in range(4)]
        spent = since(begin)
        require(all(num_computed == 0 for _, num_computed in found))
        return spent / (4 * num_blocks)

    return sample
