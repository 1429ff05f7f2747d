"""Property: a timeline holds every fact, each track's spans are closed, and a life is read back from the file.

How: the timeline of a small replay, and facts written by hand.
Not covered: what a browser draws of it (docs/how-to/observe.md shows one).
"""

import json
from pathlib import Path

import pytest

from blockwright.cli import CommandParser
from blockwright.errors import InvalidArgumentError
from blockwright.observe import Fact, command
from blockwright.observe.timeline import read_timeline, trace_events, write_timeline
from blockwright.replay import command as replaying

FACTS = [
    Fact(1.0, "lookup", "a", tokens=9, free=9),
    Fact(1.0, "admit", "a", tokens=9, new=(1, 2), free=7),
    Fact(1.5, "free", "a", free=9),
    Fact(2.0, "admit", "b", tokens=1, held=(1,), new=(2,), evicted=(2,), free=7),
    Fact(2.5, "start", step=1, free=7),
]


def run(*words: str) -> int:
    parser = CommandParser()
    commands = parser.add_subparsers()
    replaying.register(commands)
    command.register(commands)
    args = parser.parse_args(words)
    code: int = args.run(args)
    return code


def test_spans_are_closed_and_counters_follow() -> None:
    events = list(trace_events(FACTS))
    assert json.loads(json.dumps(events)) == events
    assert [event["args"]["free"] for event in events if event["ph"] == "C"] == [9, 7, 9, 7, 7]
    assert [(event["ph"], event["ts"]) for event in events if event["ph"] in "BE"] == [
        ("B", 0.0), ("E", 500000.0), ("B", 1000000.0), ("E", 1500000.0),
    ]  # fmt: skip
    (evicted,) = [event for event in events if event.get("cat") == "evict"]
    assert evicted["args"] == {"blocks": [2], "taken by": "b"}


def test_the_life_of_a_block_and_of_a_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    write_timeline(FACTS, path)
    assert run("view", str(path), "--block", "2") == 0
    assert [line.split("s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "taken by a (admit)", "released by a (free)", "evicted by b (admit)", "taken by b (admit)",
    ]  # fmt: skip
    assert run("view", str(path), "--request", "a") == 0
    assert "admit     tokens 9, new 2 blocks (1, 2), free 7" in capsys.readouterr().out
    write_timeline([Fact(0.0, "admit", "request 12")], path)
    assert run("view", str(path), "--request", "12") == run("view", str(path), "--request", "request 12") == 0
    for which in (("--block", "7"), ("--request", "c")):
        with pytest.raises(InvalidArgumentError, match="names no such"):
            run("view", str(path), *which)
    for text in ("{", "[]", '{"traceEvents": 1}', "\x1f\x8b"):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match="is no timeline"):
            run("view", str(path), "--block", "1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it is empty"),
        ('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', "it is a trace of torch.profiler"),
        ('[{"ph": "X"},\n', "it is a Chrome trace of another program"),
        ('{"traceEvents": []}', "it is a Chrome trace of another program"),
        ('{"event": {}}\n{"event": {}}\n', "it is events that Dynamo recorded"),
        ('[{"event_id": 0}]', "it is events of TensorRT-LLM"),
        ('{"resourceSpans": []}', "it is spans of OpenTelemetry"),
        ('{"version": 1, "trace": "x"}', "it is a report of `blockwright replay --json`"),
        ('{"a": 1}', "it is of no known kind"),
    ],
)
def test_files_of_others_are_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(
        InvalidArgumentError, match=f"is no timeline of ours: {what}.*; give a file of `blockwright rep"
    ):
        read_timeline(tmp_path / "t.json")


def test_a_timeline_is_read_packed_and_among_the_events_of_others(tmp_path: Path) -> None:
    write_timeline(FACTS, tmp_path / "t.json")
    write_timeline(FACTS, tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    facts = read_timeline(tmp_path / "t.json")
    assert facts == read_timeline(tmp_path / "t.json.gz")
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::empty"}, *trace_events(FACTS)]
    for text in (json.dumps(events), json.dumps(events)[:-1] + ",\n", json.dumps({"traceEvents": events})):
        (tmp_path / "t.json").write_text(text)
        assert read_timeline(tmp_path / "t.json") == facts
    (tmp_path / "t.json.gz").write_bytes((tmp_path / "t.json.gz").read_bytes()[:-9])
    with pytest.raises(InvalidArgumentError, match="is no timeline of ours: Compressed file ended"):
        read_timeline(tmp_path / "t.json.gz")


def test_a_replay_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert run("replay", "--conversations", "8", "--blocks", "400", "--json", "-", "--timeline", str(path)) == 0
    pool = json.loads(capsys.readouterr().out)
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["ph"] == "B" for event in events) == sum(event["ph"] == "E" for event in events) > 0
    assert len([event for event in events if event.get("cat") == "fact" and event["name"] == "lookup"]) > 10
    assert pool
    with pytest.raises(InvalidArgumentError, match="--timeline: is of one pool"):
        run("replay", "--curve", "10,20", "--timeline", str(path))
    with pytest.raises(InvalidArgumentError, match="--timeline: there is no folder"):
        run("replay", "--timeline", str(tmp_path / "none/out.json"))
