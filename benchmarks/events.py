"""What events, the journal and metrics cost: `python -m benchmarks.events [--require]`.

A decode step of 256 requests with SHA-256: appending their tokens, `allocate_slots_batch`, counting them as computed;
with events also taking and recording them; with metrics also a scrape every 160 steps, a second or two. Then what
recording leaves to others: folding a batch into the stream's index, and encoding it. Processor time, the best of
several runs taken in turns, and of steps also the median of the ratios to the step without that was taken in the same
turn: what else runs on the machine drives the events out of its caches. With --require the exit code is 1 if that
median, for the step with all of it, is more than 1.25.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from operator import truediv

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright import build_info as build
from blockwright.events import BlockRemoved, BlockStored, KVCacheEvent
from blockwright.observe import EventStream

_SPEC = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype="bfloat16")
_REQUESTS, _STEPS, _RUNS, _MOST = 256, 160, 15, 1.25


def step_seconds(tells: bool, counts: bool = False, is_watched: bool = False) -> float:
    """Return the time of a step with events, a journal, and metrics."""
    from blockwright.observe.metrics import Metrics

    config = KVCacheConfig(num_blocks=60_000, kv_cache_groups=[KVCacheGroupSpec(["layers"], _SPEC)])
    manager = KVCacheManager(config, max_model_len=100_000, enable_kv_cache_events=tells)
    stream, requests, hasher = EventStream(), [], Sha256Hasher(b"seed")
    for at in range(_REQUESTS):
        request = Request(f"r{at}", [at] * (512 + at % 16), 16, hasher=hasher)
        manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
        requests.append(request)
    manager.take_events()
    if counts:
        manager.start_journal()
    metrics = Metrics(manager) if is_watched else None
    start = time.process_time()
    for number in range(_STEPS):
        for request in requests:
            request.append_output_token_ids(7)
        manager.allocate_slots_batch(requests, 1)
        if tells:
            stream.record(manager.take_events())
        for request in requests:
            request.num_computed_tokens += 1
        if metrics is not None and number % 160 == 80:
            list(metrics.collect())
    return (time.process_time() - start) / _STEPS


def stored(count: int, is_chain: bool) -> list[KVCacheEvent]:
    """Return blocks that follow one another, or that begin a prompt each."""
    hashes = [at.to_bytes(32, "big") for at in range(1, count + 1)]
    parents = [None, *hashes[:-1]] if is_chain else [None] * count
    return [BlockStored(own, before, own[-4:] * 16, 16) for own, before in zip(hashes, parents, strict=True)]


def block_seconds(batch: list[KVCacheEvent], use: Callable[[list[KVCacheEvent]], object]) -> float:
    """Return the time of one event, used in batches."""
    start = time.process_time()
    for _ in range(200):
        use(batch)
    return (time.process_time() - start) / 200 / len(batch)


WAYS = {
    "without": (False, False, False),
    "with a journal": (False, True, False),
    "with a journal and metrics": (False, True, True),
    "with events": (True, False, False),
    "with events, a journal and metrics": (True, True, True),
}


def main() -> int:
    from blockwright.observe.wire import Encoder, kinds_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", action="store_true")
    is_required = parser.parse_args().require
    print(build())
    runs = [[step_seconds(*way) for way in WAYS.values()] for _ in range(_RUNS)]
    paired, without = 0.0, min(run[0] for run in runs)
    for name, column in zip(WAYS, zip(*runs, strict=True), strict=True):
        ratio, paired = min(column) / without, statistics.median(map(truediv, column, [run[0] for run in runs]))
        print(f"decode step {name}: {min(column) * 1e6:.1f} us, {ratio:.2f} times (median {paired:.2f})")
    encode = Encoder(groups=kinds_of([_SPEC]))
    removed: list[KVCacheEvent] = [BlockRemoved(at.to_bytes(32, "big")) for at in range(64)]
    for name, batch in (
        ("64 blocks in a chain", stored(64, True)),
        ("16 blocks alone", stored(16, False)),
        ("64 removals", removed),
    ):
        best = min(block_seconds(batch, lambda each: encode(each, 0.0)) for _ in range(_RUNS))

        def fold(each: list[KVCacheEvent], stream: EventStream = EventStream()) -> None:  # noqa: B008
            stream.record(each)
            len(stream)

        folded = min(block_seconds(batch, fold) for _ in range(_RUNS))
        print(f"{name}: {best * 1e9:.0f} ns to encode one ({1e-6 / best:.1f} million/s), {folded * 1e9:.0f} to fold it")
    return 1 if is_required and paired > _MOST else 0


if __name__ == "__main__":
    sys.exit(main())
