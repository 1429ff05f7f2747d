"""Property: a consumer ends with the right index, whatever was killed, dropped or overrun.

How: publisher and consumer over loopback sockets, in one process or in two, of which one is killed. Replays are asked
for as consumers of vLLM do.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")

from tests.observe.engine import SIZE, Engine

from blockwright.errors import EventGapError, InterruptedCallError, InvalidArgumentError, LostBatchError
from blockwright.events import BlockStored
from blockwright.observe import Batch, EventStream, PrefixIndex
from blockwright.observe.answers import UNREAD
from blockwright.observe.publisher import END, ZmqPublisher
from blockwright.observe.subscriber import ZmqSubscriber
from blockwright.observe.wire import Encoder, GroupKind, decode, hash_of

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def engine() -> Engine:
    return Engine(5)


@pytest.fixture
def publisher(engine: Engine) -> Iterator[ZmqPublisher]:
    with ZmqPublisher(engine.stream, ANY, ANY, topic="kv@pod@model") as publisher:
        yield publisher


def stored(number: int, **fields: Any) -> BlockStored:
    """A block of its own, with fields that may be odd."""
    return BlockStored(number.to_bytes(32, "big"), None, bytes(4 * SIZE), SIZE)._replace(**fields)


def subscribed(publisher: ZmqPublisher) -> ZmqSubscriber:
    assert publisher.replay_endpoint is not None
    subscriber = ZmqSubscriber(publisher.endpoint, publisher.replay_endpoint, topic="kv@", patience=0.3)
    subscriber.poll(0.05)
    return subscriber


def assert_equal(subscriber: ZmqSubscriber, engine: Engine) -> None:
    """After some polls, usually few, the consumer knows what the engine finds."""
    wanted = {(hash_of(key), group, medium) for key, group, medium in engine.stream.known_keys()}
    for _ in range(1200):
        subscriber.poll(0.05)
        if subscriber.index.known_keys() == wanted:
            return
    assert subscriber.index.known_keys() == wanted


def test_one_who_listens_and_one_who_joins_late(engine: Engine, publisher: ZmqPublisher) -> None:
    with subscribed(publisher) as first:
        for _ in range(60):
            engine.step()
            publisher.publish()
        assert_equal(first, engine)
        with subscribed(publisher) as late:
            engine.steps(20)
            publisher.publish()
            assert_equal(late, engine)
            assert late.num_snapshots == 1
        assert_equal(first, engine)


def asked(publisher: ZmqPublisher, request: bytes, wait: float = 0.0) -> list[list[bytes]]:
    """What a consumer gets that asks as vLLM's example does, and then has something else to do first."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(publisher.replay_endpoint)
        socket.send_multipart([b"", request])
        answer = []
        time.sleep(wait)
        while socket.poll(60_000):
            frames = socket.recv_multipart()
            answer.append(frames)
            if frames[2] == END:
                break
        return answer


@pytest.mark.parametrize("start", [0, 20])
def test_replay_from_a_number(engine: Engine, publisher: ZmqPublisher, start: int) -> None:
    engine.steps(40)
    *batches, end = asked(publisher, start.to_bytes(8, "big"))
    assert end == [b"", b"", END, b""]
    assert [int.from_bytes(frames[2], "big") for frames in batches] == list(range(start, engine.stream.sequence))
    assert {frames[1] for frames in batches} == {b"kv@pod@model"}
    index = PrefixIndex()
    for batch in engine.stream.since(0)[:start]:
        index.apply(decode(Encoder()(batch.events, 0.0)))
    for frames in batches:
        index.apply(decode(frames[3]))
    assert len(index) == len(engine.stream)
    assert asked(publisher, b"nonsense of another length") == [[b"", b"", END, b""]]
    assert asked(publisher, bytes(8) + b"another epoch...") == [[b"", b"", END, b""]]


def test_what_was_missed_is_asked_for(engine: Engine, publisher: ZmqPublisher) -> None:
    """Batches that did not come are replayed if they are kept."""
    with subscribed(publisher) as subscriber:
        engine.steps(5)
        publisher.publish()
        assert_equal(subscriber, engine)
        for _ in range(3):
            engine.stream.record([stored(engine.count, cache_salt="lost")])
            publisher.publish()
            assert subscriber._sub.recv_multipart()  # three that do not come
            engine.count += 1
        engine.steps(2)
        publisher.publish()
        assert_equal(subscriber, engine)
        assert (subscriber.num_replays, subscriber.num_snapshots) == (1, 1)


def test_a_backlog_that_is_overrun_ends_in_a_snapshot() -> None:
    engine = Engine(5)
    engine.stream = EventStream(backlog=20)
    with ZmqPublisher(engine.stream, ANY, ANY) as publisher, ZmqSubscriber(
        publisher.endpoint, str(publisher.replay_endpoint), patience=0.2
    ) as subscriber:  # fmt: skip
        while not subscriber.num_snapshots:
            subscriber.poll(0.05)
        engine.steps(100)  # nothing is sent meanwhile
        publisher.publish()
        assert_equal(subscriber, engine)
        assert subscriber.num_snapshots >= 2


def test_a_plain_replay_of_what_is_not_kept_is_a_snapshot() -> None:
    """Consumers that know vLLM's publisher only can resynchronise, too."""
    engine = Engine(5)
    engine.stream = EventStream(backlog=20)
    engine.steps(100)
    with ZmqPublisher(engine.stream, ANY, ANY) as publisher:
        (only, end) = asked(publisher, bytes(8))
        assert int.from_bytes(only[2], "big") == engine.stream.sequence - 1
        assert end[2] == END
        assert PrefixIndex(decode(only[3])).known_keys() == {
            (hash_of(key), group, medium) for key, group, medium in engine.stream.known_keys()
        }
        assert asked(publisher, bytes(8) + engine.stream.epoch.bytes) == [end]


SERVER = """
import sys
from tests.observe.engine import SIZE, Engine
from blockwright.observe.answers import UNREAD
from blockwright.observe.publisher import ZmqPublisher
seed, *endpoints = sys.argv[1:]
engine = Engine(int(seed))
publisher = ZmqPublisher(engine.stream, *endpoints)
for line in sys.stdin:
    engine.steps(int(line))
    publisher.publish()
    print(publisher.endpoint, publisher.replay_endpoint, flush=True)
"""


def served(seed: int, *endpoints: str) -> subprocess.Popen[str]:
    """An engine with its publisher in a process of its own; it takes as many steps as it is told."""
    command = [sys.executable, "-c", SERVER, str(seed), *endpoints]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, **pipes)


def stepped(server: subprocess.Popen[str], count: int) -> list[str]:
    """Have steps taken; the publisher's addresses."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(count, file=server.stdin, flush=True)
    return server.stdout.readline().split()


def test_a_publisher_that_is_killed_and_comes_back_as_another() -> None:
    """Its numbers begin again and soon pass those that the consumer knows; the lost connection and the epoch tell."""
    ours, again = Engine(5), Engine(6)
    ours.steps(10)
    again.steps(35)
    with served(5, ANY, ANY) as server:
        endpoints = stepped(server, 10)
        with ZmqSubscriber(*endpoints, patience=0.2) as subscriber:
            assert_equal(subscriber, ours)
            server.kill()
            server.wait()
            subscriber.poll(0.05)
            with served(6, *endpoints) as other:
                stepped(other, 30)
                stepped(other, 5)
                assert_equal(subscriber, again)
                other.kill()


def test_a_consumer_that_is_killed_does_not_hold_the_publisher_up(engine: Engine, publisher: ZmqPublisher) -> None:
    killed = subscribed(publisher)
    engine.steps(10)
    publisher.publish()
    killed.close()
    engine.steps(10)
    publisher.publish()
    with subscribed(publisher) as subscriber:
        assert_equal(subscriber, engine)
    publisher.close()
    publisher.close()


def test_an_address_that_is_taken_is_refused(engine: Engine, publisher: ZmqPublisher) -> None:
    with pytest.raises(InvalidArgumentError, match="endpoint: cannot bind"):
        ZmqPublisher(engine.stream, publisher.endpoint)


UNREADABLE = SimpleNamespace(block_hashes=5, block_size=4, medium="CPU", removed=False)
"""What a tier of somebody else's may tell: it has the members of an event, and no hashes."""


def lost(publisher: ZmqPublisher, stream: EventStream, *events: Any) -> LostBatchError:
    """Publish events that cannot be sent; the error that a later call raises."""
    before = publisher.num_lost
    stream.record(events)
    publisher.publish()
    while publisher.num_lost == before:
        time.sleep(0.01)
    with pytest.raises(LostBatchError) as caught:
        publisher.publish()
    return caught.value


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (stored(9, group_id=1), "an event is of group 1; give the kind of every group"),
        (stored(9, tokens=b"12345"), "cannot be encoded"),
        (stored(9, cache_salt=7), "cannot be encoded"),
        (stored(9, block_size=2**70), "cannot be encoded"),
        (UNREADABLE, "holds an object that is no event; TypeError"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_a_gap(odd: Any, reason: str) -> None:
    """The next call says why; consumers know all the rest by a snapshot, and what follows is sent."""
    stream = EventStream()
    encoder = Encoder(groups=[GroupKind("full_attention")])
    with ZmqPublisher(stream, ANY, ANY, encoder=encoder) as publisher, subscribed(publisher) as subscriber:
        stream.record([stored(1)])
        sequence = stream.sequence
        error = lost(publisher, stream, stored(2), odd)
        assert reason in str(error)
        assert error.sequence == sequence
        stream.record([stored(3)])
        publisher.publish()  # nothing more is raised
        known = {1, 3} if odd is UNREADABLE else {1, 2, 3}
        for _ in range(40):
            subscriber.poll(0.05)
            if len(subscriber.index) == len(known):
                break
        assert {key for key, *_ in subscriber.index.known_keys()} == known
    with pytest.raises(InterruptedCallError, match="its thread has ended"):
        publisher.publish()


class OddEncoder(Encoder):
    """Writes what nobody can read for a batch that is alone."""

    def __call__(self, events: Any, timestamp: float) -> bytes:
        events = tuple(events)
        return b"\xc1" if len(events) == 1 and events[0] == stored(2) else super().__call__(events, timestamp)


def test_a_batch_that_cannot_be_read_is_a_gap_that_a_snapshot_mends() -> None:
    stream = EventStream()
    with ZmqPublisher(stream, ANY, ANY, encoder=OddEncoder()) as publisher, subscribed(publisher) as subscriber:
        for number in (1, 2, 3):
            stream.record([stored(number)])
            publisher.publish()
        for _ in range(40):
            subscriber.poll(0.05)
            if len(subscriber.index) == 3:
                break
        assert {key for key, *_ in subscriber.index.known_keys()} == {1, 2, 3}
        assert subscriber.num_gaps == 1
        assert isinstance(subscriber.last_error, InvalidArgumentError)


class Foreign:
    """A publisher that is not ours: it answers each question with what a function of it returns, while it is asked."""

    def __init__(self, answer: Callable[[bytes], Iterator[list[bytes]]]) -> None:
        self.context = zmq.Context()
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        for socket in (self.pub, self.router):
            socket.bind(ANY)
        self.endpoints = [socket.getsockopt(zmq.LAST_ENDPOINT).decode() for socket in (self.pub, self.router)]
        self.answer, self.stop, self.ended = answer, threading.Event(), list[bytes]()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while not self.stop.is_set():
            if self.router.poll(20):
                client, _, asked = self.router.recv_multipart()
                for frames in self.answer(asked):
                    self.router.send_multipart([client, b"", *frames])
                    if self.stop.is_set():
                        return
                self.ended.append(asked)

    def __enter__(self) -> "Foreign":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)


EPOCH, ENDED = b"e" * 16, [b"", END, b""]


def test_a_batch_that_no_snapshot_mends_is_passed_over() -> None:
    """The publisher has one old snapshot only, and no other has the batches."""
    payloads = [Encoder()([stored(number)], 0.0) if number != 2 else b"\xc1" for number in range(5)]

    def answer(asked: bytes) -> Iterator[list[bytes]]:
        if asked == b"epoch":
            yield [EPOCH, (5).to_bytes(8, "big"), b""]
        elif asked == b"snapshot":
            yield [EPOCH, bytes(8), b""]
        else:
            for number in range(int.from_bytes(asked[:8], "big"), 5):
                yield [b"", number.to_bytes(8, "big"), payloads[number]]
        yield ENDED

    with Foreign(answer) as foreign, ZmqSubscriber(*foreign.endpoints, patience=0.2) as subscriber:
        for _ in range(60):
            subscriber.poll(0.05)
            if len(subscriber.index) == 4:
                break
        assert {key for key, *_ in subscriber.index.known_keys()} == {0, 1, 3, 4}
        assert subscriber.num_gaps == 2  # before the snapshot, and after it


def endless(payload: bytes, seconds: float) -> Callable[[bytes], Iterator[list[bytes]]]:
    def answer(asked: bytes) -> Iterator[list[bytes]]:
        for number in range(round(20 / seconds)):
            time.sleep(seconds)
            yield [EPOCH, number.to_bytes(8, "big"), payload]

    return answer


def snapshot_without_end(asked: bytes) -> Iterator[list[bytes]]:
    if asked == b"epoch":
        yield from ([EPOCH, bytes(8), b""], ENDED)
    else:
        yield from endless(Encoder()([stored(1)], 0.0), 0.05)(asked)


@pytest.mark.parametrize("answer", [endless(b"x", 0.1), endless(bytes(10_000), 0.001), snapshot_without_end])
def test_an_answer_without_end_holds_no_poll(answer: Callable[[bytes], Iterator[list[bytes]]]) -> None:
    """All polls return long before the publisher would end."""
    with Foreign(answer) as foreign, ZmqSubscriber(*foreign.endpoints, patience=0.3) as subscriber:
        for _ in range(10):
            assert subscriber.poll(0.1) == 0
        assert foreign.ended in ([], [b"epoch"])


def messages(*frames: list[bytes]) -> Callable[[bytes], Iterator[list[bytes]]]:
    return lambda asked: iter(frames)


ODD_ANSWERS = [[], [b""], [b"x"], [b"", END], [b"", b"", b""], [EPOCH, bytes(9), b""], [EPOCH, b"\xff" * 300, b"", b""]]


@pytest.mark.parametrize("odd", ODD_ANSWERS)
def test_odd_frames_are_gaps(odd: list[bytes]) -> None:
    """Of answers, and of batches."""
    batches = [b"", *odd], [b""], [b"", bytes(7), b""], [b"", bytes(8), b"\xc1"]
    with Foreign(messages(odd, ENDED)) as foreign, ZmqSubscriber(*foreign.endpoints, patience=0.1) as subscriber:
        while subscriber.num_gaps < 3:
            for frames in batches:
                foreign.pub.send_multipart(frames)
            subscriber.poll(0.05)
        assert len(subscriber.index) == 0


TEXTS = ["\ud800", "\ud800\udc00", "\ufdd0", "\ufdd0d800", "d800", "\U00010000", "\ue000", "a\udfffb", "\0"]


@pytest.mark.parametrize("encoder", [Encoder(), Encoder("sglang"), Encoder(as_arrays=True)])
def test_any_text_is_sent_and_none_looks_like_another(encoder: Encoder) -> None:
    payloads = [encoder([stored(1, cache_salt=text)], 0.0) for text in TEXTS]
    assert len(set(payloads)) == len(TEXTS)
    for payload, text in zip(payloads, TEXTS, strict=True):
        assert msgspec.msgpack.decode(payload)  # text is UTF-8, as vLLM's own decoder demands
        assert [event.cache_salt for event in decode(payload) if isinstance(event, BlockStored)] == [text]
    for text in TEXTS:
        event = stored(1, lora_name=text, mm_items=((text, 0, 1),), medium=text)
        (back,) = decode(Encoder()([event], 0.0))
        assert isinstance(back, BlockStored)
        assert (back.lora_name, back.mm_items[0][0], back.medium) == (text,) * 3


def test_answers_that_nobody_reads_keep_little_memory() -> None:
    """Every one of 24 consumers asks for 20 snapshots of 4 MB, and reads none; another is served meanwhile."""
    stream = EventStream()
    stream.record([stored(number, tokens=bytes(4 * 256), block_size=256) for number in range(4000)])
    with ZmqPublisher(stream, ANY, ANY) as publisher, zmq.Context() as context:
        deaf = [context.socket(zmq.DEALER) for _ in range(24)]
        for socket in deaf:
            socket.setsockopt(zmq.RCVHWM, 1)
            socket.setsockopt(zmq.RCVBUF, 4096)
            socket.connect(publisher.replay_endpoint)
            for _ in range(20):
                socket.send_multipart([b"", b"snapshot"])
        with subscribed(publisher) as subscriber:
            while not subscriber.num_snapshots:
                subscriber.poll(0.2)
            assert len(subscriber.index) == 4000
        assert UNREAD // 8 < publisher._answers.num_unread <= UNREAD
        for socket in deaf:
            socket.close(linger=0)


class Hurried(EventStream):
    """A stream that goes on while its publisher asks what is still kept."""

    races = 2

    def since(self, sequence: int) -> list[Batch]:
        try:
            return super().since(sequence)
        except EventGapError:
            while self.races:
                self.races -= 1
                for _ in range(9):
                    self.record([BlockStored(os.urandom(32), None, bytes(4 * SIZE), SIZE)])
            raise


def test_a_backlog_that_is_overrun_again_while_it_is_looked_at() -> None:
    engine = Engine(5)
    engine.stream = Hurried(backlog=4)
    engine.steps(30)
    with ZmqPublisher(engine.stream, ANY, ANY) as publisher, subscribed(publisher) as subscriber:
        publisher.publish()
        while engine.stream.races:  # what the engine knows changes with them, in the publisher's thread
            subscriber.poll(0.05)
        assert_equal(subscriber, engine)


def test_an_answer_to_one_who_reads_late_is_whole() -> None:
    engine = Engine(5)
    for number in range(20_000):
        engine.stream.record([BlockStored(number.to_bytes(32, "big"), None, bytes(4 * SIZE), SIZE)])
    with ZmqPublisher(engine.stream, ANY, ANY) as publisher:
        *batches, end = asked(publisher, bytes(8), wait=0.5)
        assert (len(batches), end[2]) == (20_000, END)
