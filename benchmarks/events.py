"""What events cost: `python -m benchmarks.events`.

A decode step of 256 requests, SHA-256 with and without events: appending their tokens, `allocate_slots_batch`, counting
them as computed; with events also taking and recording them. Then what recording leaves to others: folding a batch into
the stream's index, and encoding it. Processor time, the best of several runs, each a step of its own engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright import build_info as build
from blockwright.events import BlockRemoved, BlockStored, KVCacheEvent
from blockwright.observe import EventStream

_SPEC = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype="bfloat16")
_REQUESTS, _STEPS, _RUNS = 256, 160, 9


def step_seconds(tells: bool) -> float:
    config = KVCacheConfig(num_blocks=60_000, kv_cache_groups=[KVCacheGroupSpec(["layers"], _SPEC)])
    manager = KVCacheManager(config, max_model_len=100_000, enable_kv_cache_events=tells)
    stream, requests, hasher = EventStream(), [], Sha256Hasher(b"seed")
    for at in range(_REQUESTS):
        request = Request(f"r{at}", [at] * (512 + at % 16), 16, hasher=hasher)
        manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
        requests.append(request)
    manager.take_events()
    start = time.process_time()
    for _ in range(_STEPS):
        for request in requests:
            request.append_output_token_ids(7)
        manager.allocate_slots_batch(requests, 1)
        if tells:
            stream.record(manager.take_events())
        for request in requests:
            request.num_computed_tokens += 1
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


def main() -> None:
    from blockwright.observe.wire import Encoder, kinds_of

    runs = [(step_seconds(False), step_seconds(True)) for _ in range(_RUNS)]
    without, with_events = (min(column) for column in zip(*runs, strict=True))
    print(f"{build()}\ndecode step: {without * 1e6:.0f} us, with events {with_events * 1e6:.0f} us", end="")
    print(f" ({with_events / without:.2f} times)")
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


if __name__ == "__main__":
    main()
