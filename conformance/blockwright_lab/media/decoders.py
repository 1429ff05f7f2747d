"""The gate of decoders: whatever bytes another program wrote or damaged are read, or refused by a named error (CALL-2).

Each reader of bytes from outside is given what its own writer, or an example of a format, has, altered at random: bits
and ranges, cuts, additions, exchanged parts, and in JSON values of other types. A message of several frames may lose
one, or have one twice. What is read is used, too: an index is asked, a timeline shown.

Not covered: directories of a disk store (`altered`); checkpoints; answers of a Valkey server, which its own library
reads; bytes that a writer chose so that they are slow to read, but for those that other tests have.
"""

import gzip
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from blockwright.errors import InvalidArgumentError, TraceError
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from blockwright.observe import Fact, PrefixIndex
from blockwright.observe.publisher import END
from blockwright.observe.subscriber import ZmqSubscriber
from blockwright.observe.timeline import life, read_timeline, write_timeline
from blockwright.observe.wire import Encoder, decode
from blockwright.offload.shared.envelope import Envelope
from blockwright.replay.report import read_curve
from blockwright.replay.traces import load_trace
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed
from blockwright_conformance.vectors import records, wire
from blockwright_conformance.vectors.calls import Answer
from blockwright_conformance.vectors.records import FOLDER, samples
from blockwright_conformance.vectors.serve import EVERYTHING
from blockwright_spec.law import law_odd_bytes_are_refused

from .altered import in_time, scratch
from .altering import CHANGES, EXTREMES, NO_NUMBERS

COUNTS: Final = {"quick": 100, "pr": 2_000, "nightly": 100_000}
LONG: Final = 5.0
"""Seconds of processor time that no input here needs a hundredth of."""
LARGE: Final = 256 << 10
"""KiB that a process may grow by, for inputs of some thousand bytes."""

Frames = list[bytes]
Read = Callable[[Frames, Path], object]


# --- what is read

BLOCKS: Final[list[KVCacheEvent]] = [
    BlockStored(bytes(range(32)), None, bytes(8), 2, "adapter", 0, "salt", (("image", 0, 2), ("clip", 1, 1))),
    BlockStored(bytes(range(1, 33)), bytes(range(32)), bytes(range(8)), 2, medium="DISK"),
    BlockStored(bytes(range(2, 34)), bytes(range(1, 33)), bytes(8), 2, cache_salt="\ud800"),
    BlockRemoved(bytes(range(32))),
    AllBlocksCleared(),
]
ENCODERS: Final = [Encoder(), Encoder("sglang"), Encoder(as_arrays=True)]
PAYLOADS: Final = [[encode(events, 1.5)] for encode in ENCODERS for events in (BLOCKS, BLOCKS[:1], BLOCKS[3:])]
EPOCH: Final = b"e" * 16


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def events(frames: Frames, path: Path) -> object:
    index = PrefixIndex(decode(frames[0]))
    return index.match([0, 0, 1, 2]), index.known_keys()


# Nobody listens there. Closing a socket that waits for an `inproc` peer at times ends the process within libzmq.
NOWHERE: Final = "tcp://127.0.0.1:1", "tcp://127.0.0.1:1"


def live(frames: Frames, path: Path) -> object:
    with ZmqSubscriber(*NOWHERE) as subscriber:
        subscriber._next, subscriber._epoch = 0, EPOCH
        for at in range(0, len(frames), 3):
            subscriber._take(frames[at : at + 3])
        return subscriber.index.known_keys()


def answers(frames: Frames, path: Path) -> object:
    """Take answers to the questions of a subscriber that begins, or has missed something."""
    with ZmqSubscriber(*NOWHERE) as subscriber:
        if frames[0] == b"replay":
            subscriber._next, subscriber._epoch = 0, EPOCH
        subscriber._ask()
        for at in range(1, len(frames), 4):
            if subscriber._asking is not None:
                subscriber._heard(subscriber._asking, frames[at : at + 4])
        return subscriber.index.known_keys()


ENDED: Final = [b"", b"", END, b""]
ASKED: Final = [b"", EPOCH, number(2), b"", *ENDED]
PARTS: Final = [b"", b"t", number(0), PAYLOADS[0][0], b"", b"t", number(1), PAYLOADS[1][0], *ENDED]


def in_file(read: Callable[[Path], object]) -> Read:
    return lambda frames, path: (path.write_bytes(frames[0]), read(path))


def traces(name: str, path: Path) -> object:
    found = load_trace(path, name, column="timestamp" if name in ("mooncake", "bailian") else None)
    return found.num_tokens, found.max_prompt_tokens, found.labels, found.notes


ROWS: Final = [
    {"timestamp": at, "input_length": 513, "output_length": 5, "hash_ids": [at, 2**61], "chat_id": at, "type": "text"}
    for at in range(4)
]
TURNS: Final = [{"t": 1.0, "in": 130, "out": 4, "hash_ids": [1, 2]}, {"t": 3.0, "type": "subagent", "requests": []}]
SESSION: Final = {"block_size": 64, "hash_id_scope": "local", "requests": TURNS}
LINES: Final = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
AZURE: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,40,10\n2023-11-16 18:18:03,7,8\n"
BURSTGPT: Final = b"Timestamp,Model,Request tokens,Response tokens\n5,m,472,18\n4.5,m,7,8\n"
ENDS: Final = {"input_length": 70, "input_sequence_hashes": ["a", "b"]}
DYNAMO: Final = {"event_type": "request_end", "event_time_unix_ms": 1, "request": {"replay": ENDS}}
TRACES: Final = {
    "burstgpt": BURSTGPT, "dynamo": json.dumps(DYNAMO).encode(), "auto": gzip.compress(json.dumps(ROWS).encode(), 0),
    "mooncake": LINES, "azure": AZURE, "weka": json.dumps(SESSION).encode(),
    "bailian": "".join(json.dumps(row | {"input_length": 20}) + "\n" for row in ROWS).encode(),
}  # fmt: skip


def timeline(path: Path) -> object:
    facts = read_timeline(path)
    return [*life(facts, block=1), *life(facts, request="r")]


def timelines() -> list[Frames]:
    with scratch() as folder:
        write_timeline([Fact(0.0, "admit", "r", 4, 4, new=(1, 2)), Fact(1.0, "free", "r")], folder / "t")
        return [[(folder / "t").read_bytes()]]


REPORT: Final = {"policy": "lru", "curve": [{"blocks": 10, "hit_rate": 0.5}, {"blocks": 20, "hit_rate": 0.75}]}


def envelope(frames: Frames, path: Path) -> object:
    """Open a value of a shared store: whatever is not whole is a fault, and nothing is copied."""
    into = bytearray(64)
    fault = Envelope(b"identity").opened(b"key" * 8, frames[0], [memoryview(into)])
    if fault is not None and any(into):
        raise AssertionError("bytes of a damaged value were copied")
    return fault


SEALED: Final = [[Envelope(b"identity", way).sealed(b"key" * 8, [memoryview(bytes(range(64)))])] for way in (1, 2)]


def line(frames: Frames, path: Path) -> object:
    text, refused = frames[0].decode(errors="replace"), 0
    for read in (wire.call_of, wire.answer_of, wire.hello_of, wire.config_from, lambda line: wire.state_of(line, 8)):
        try:
            read(text)
        except wire.WireError:
            refused += 1
    return refused


def written() -> records.Vector:
    return samples([FOLDER / "full-block-1-batches.jsonl"])[0]


def lines() -> list[Frames]:
    vector = written()
    said = [wire.config_line(vector.config), wire.hello_line("name", EVERYTHING, True)]
    for step in vector.steps:
        said += [wire.call_line(step.call), wire.answer_line(step.answer)]
        said += [] if step.state is None else [wire.state_line(step.state)]
    said += [wire.answer_line(Answer("served", served=(((1, 2), (3,)),), whole=True))]
    return [[each.encode()] for each in said]


Reader = tuple[Callable[[], list[Frames]], Read, tuple[type[Exception], ...]]
"""The inputs that are altered, what reads them, and the errors that it names."""

READERS: Final[dict[str, Reader]] = {
    "events on the wire": (lambda: PAYLOADS, events, (InvalidArgumentError,)),
    "batches that come to a subscriber": (
        lambda: [[b"t", number(0), PAYLOADS[0][0], b"t", number(1), PAYLOADS[1][0], b"t", number(2), PAYLOADS[2][0]]],
        live, (),
    ),
    "answers that come to a subscriber": (
        lambda: [[b"join", *ASKED, b"", EPOCH, number(2), b"", *PARTS], [b"replay", *ASKED, *PARTS]], answers, (),
    ),
    **{
        f"traces: {name}": (partial(list, [[data]]), in_file(partial(traces, name)), (TraceError,))
        for name, data in TRACES.items()
    },
    "timelines": (timelines, in_file(timeline), (InvalidArgumentError,)),
    "reports": (lambda: [[json.dumps(REPORT).encode()]], in_file(read_curve), (InvalidArgumentError,)),
    "values of a shared store": (lambda: SEALED, envelope, ()),
    "vectors": (lambda: [[records.line_of(written()).encode()]], in_file(records.read), (ValueError,)),
    "lines of the protocol": (lines, line, ()),
}  # fmt: skip


# --- how it is altered


def altered(sample: Frames, draw: random.Random) -> Frames:
    frames = list(sample)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(frames))
        if len(frames) > 1 and draw.random() < 0.15:
            frames[at : at + 1] = draw.choice(([], [frames[at]] * 2))
        elif draw.random() < 0.4 and (changed := other_value(frames[at], draw)) is not None:
            frames[at] = changed
        else:
            frames[at] = draw.choice(list(CHANGES.values()))(frames[at], draw, draw.choice((1, 2, 8, 16)))
        frames = frames or [b""]
    return frames


def other_value(data: bytes, draw: random.Random) -> bytes | None:
    """Return msgpack, or JSON (a line of it), with one value of another type or size; None if it is neither."""
    texts = data.split(b"\n")
    at = draw.randrange(len(texts))
    try:
        if data[:1] == b"\x93":  # a batch of events
            return msgspec.msgpack.encode(replaced(msgspec.msgpack.decode(data), draw))
        texts[at] = json.dumps(replaced(json.loads(texts[at]), draw)).encode()
    except (ArithmeticError, RecursionError, ValueError, msgspec.MsgspecError):
        return None
    return b"\n".join(texts)


def replaced(value: Any, draw: random.Random) -> Any:
    inside: Any = [value]
    holder, key = inside, 0
    while isinstance(inside[key], list | dict) and inside[key] and draw.random() < 0.8:
        inside = inside[key]
        key = draw.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
    others = (*NO_NUMBERS, *EXTREMES, 10**400, -(10**400), float("inf"), [[1]], [None], "\x1b[2J", "BlockStored")
    inside[key] = draw.choice(others)
    return holder[0]


# --- the gate


def inputs(name: str, count: int, seed: int) -> tuple[list[str], Counter[str]]:
    made_of, read, named = READERS[name]
    samples, draw, faults, fired = made_of(), random.Random(seed), list[str](), Counter[str]()
    with scratch() as folder:
        path = folder / "input"
        for sample in samples:
            read(sample, path)  # as it is, it is read
        forget_peak()
        for at in range(count):
            frames = altered(draw.choice(samples), draw)
            raised, began, before = None, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                with in_time():
                    read(frames, path)
            except Exception as error:
                raised = error
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            took_much = time.process_time() - began > LONG or grown > LARGE
            fired["read" if raised is None else "refused"] += 1
            if not law_odd_bytes_are_refused(None if raised is None else type(raised), named, took_much):
                begun = [frame[:200] for frame in frames]
                faults.append(f"input {at}, {begun}: {type(raised).__name__}: {raised!s:.200}")
                if len(faults) == 5:
                    break
    return faults, fired


def forget_peak() -> None:
    """Count this process's peak of memory anew, where the system can: a higher one would hide what an input takes."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def task(name: str, profile: Profile, seed: int = 0) -> GateResult:
    began = time.perf_counter()
    faults, fired = inputs(name, COUNTS[profile.name], seed)
    count, law = sum(fired.values()), "CALL-2" if faults else ""
    seconds, detail = time.perf_counter() - began, "\n".join(faults)
    return GateResult("decoders", name, "all", count, count, len(faults), seconds, law, detail, fired=dict(fired))


GATE = Listed(READERS, task)
