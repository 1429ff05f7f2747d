"""The layouts that people's trace files have are read into the prompts, times and answers that they mean.

How: a table of small files with, for each, the lengths of the prompts, the tokens that the last shares with the first,
arrivals in seconds and lengths of answers. The same files packed, in an array and out of order give the same.

Not covered: real files of each producer (test_reference.py has two of them).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from blockwright.errors import InvalidArgumentError, TraceError
from blockwright.replay import files, traces
from blockwright.replay.records import Trace
from blockwright.replay.traces import load_trace


class Case(NamedTuple):
    rows: list[dict[str, Any]] | str
    format: str
    lengths: list[int]
    shared: int
    arrivals: list[float]
    outputs: list[int]
    note: str = ""


def row(time: Any, length: Any, ids: Any = None, **more: Any) -> dict[str, Any]:
    """Return a row of Mooncake's; what is None is left out."""
    fields = {"timestamp": time, "input_length": length, "output_length": 3, "hash_ids": ids} | more
    return {name: value for name, value in fields.items() if value is not None}


def ended(at: int | None, ids: list[int]) -> dict[str, Any]:
    """Return a row of Dynamo's, written when a request ends."""
    replay = {"trace_block_size": 60, "input_length": 100, "input_sequence_hashes": ids}
    received = {} if at is None else {"request_received_ms": at}
    return {"event_type": "request_end", "request": {"output_tokens": 6, "replay": replay, **received}}


TALK = [("human", "what is a block"), ("gpt", "some tokens"), ("human", "and a pool"), ("gpt", "many blocks")]
CASES = {
    "blocks of 64": Case(
        [row(0, 130, [1, 2, 3]), row(100.5, 200, [1, 2, 3, 4])],
        "mooncake", [130, 200], 130, [0, 0.1005], [3, 3], "64 tokens, by the number of ids",
    ),
    "full blocks alone": Case(
        [row(1.7e12, 1200, [8, 9]), row(1.7e12 + 2000, 1200, [8, 9])], "mooncake", [1200, 1200], 1024, [0, 2], [3, 3]
    ),
    "floats": Case([row(0, 600.0, [1, 2], output_length="4.0")], "mooncake", [600], 600, [0], [4]),
    "dates": Case(
        [row("2026-02-01T00:00:00Z", 512, [1]), row("2026-02-01T01:00:01+01:00", 512, [1])],
        "mooncake", [512, 512], 512, [0, 1], [3, 3],
    ),
    "ids in letters": Case(
        [row(0, 600, ["x", "y"]), row(1, 512, ["x"])], "mooncake", [600, 512], 512, [0, 0.001], [3, 3]
    ),
    "no answers": Case([row(0, 600, [1, 2], output_length=None)], "mooncake", [600], 600, [0], [0]),
    "no ids": Case([row(0, 600), row(4, 600)], "mooncake", [600, 600], 0, [0, 0.004], [3, 3], "name no prefixes"),
    "no times": Case([row(None, 600, [1, 2]), row(None, 512, [1])], "mooncake", [600, 512], 512, [0, 0], [3, 3]),
    "no tokens": Case([row(0, 0, []), row(1, 512, [1])], "mooncake", [512], 512, [0], [3], "without a prompt"),
    "out of order": Case(
        [row(500, 600, [1, 2]), row(0, 512, [1])], "mooncake", [512, 600], 512, [0, 0.5], [3, 3], "sorted by arrival"
    ),
    # A turn without a time of its own goes on from the session's last prompt and answer.
    "sessions": Case(
        [row(None, 600, [1, 2], session_id="s"), row(None, 40, [7], session_id="s", delay=1500)],
        "mooncake", [600, 643], 600, [0, 1.5], [3, 3],
    ),
    "sessions with times": Case(
        [row(0, 600, [1, 2], session_id="s"), row(9, 512, [1], session_id="s")],
        "mooncake", [600, 512], 512, [0, 0.009], [3, 3],
    ),
    "dynamo": Case(
        [ended(3000, [1, 2]), {"event_type": "tool_start", "request": None}, ended(1000, [1, 3])],
        "dynamo", [100, 100], 60, [0, 2], [6, 6], "sorted by arrival",
    ),
    "dynamo without times": Case([ended(None, [1, 2])], "dynamo", [100], 100, [0], [6]),
    "bailian": Case([row(0.5, 40, [5, 6, 7], chat_id=1)], "bailian", [40], 40, [0], [3]),
    # The child has another id for all of the block where the parent's prompt ends: the tokens are the same.
    "bailian with a child": Case(
        [row(0, 40, [5, 6, 7], chat_id=1), row(5, 60, [5, 6, 8, 9], chat_id=2, parent_chat_id=1)],
        "bailian", [40, 60], 40, [0, 5], [3, 3],
    ),
    "another child": Case(
        [row(0, 40, [5, 6, 7], chat_id=1), row(5, 60, [5, 4, 8, 9], chat_id=2, parent_chat_id=1)],
        "bailian", [40, 60], 16, [0, 5], [3, 3],
    ),
    "salts": Case(
        [row(0, 600, [1, 2], cache_salt="a"), row(1, 600, [1, 2], cache_salt="b")],
        "mooncake", [600, 600], 0, [0, 0.001], [3, 3], "'cache_salt' has 2 values",
    ),
    "adapters of one name": Case(
        [row(0, 600, [1, 2], lora_name="a"), row(0, 600, [3, 4]), row(1, 600, [1, 2], lora_name="a")],
        "mooncake", [600] * 3, 600, [0, 0, 0.001], [3] * 3, "'lora_name' has 2 values",
    ),
    "vidur": Case(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n0.52,396,109\n",
        "vidur", [374, 396], 0, [0, 0.52], [44, 109], "name no prefixes",
    ),
    "semicolons": Case(
        "TIMESTAMP;ContextTokens;GeneratedTokens\n2024-05-10 00:00:00,12,5\n".replace(",", ";"),
        "azure", [12], 12, [0], [5],
    ),
    "tabs": Case("Timestamp\tRequest tokens\tResponse tokens\n5\t20\t4\n", "burstgpt", [20], 20, [0], [4]),
    "servegen": Case(
        [{"request_id": 0, "timestamp": 0.5, "data": {"input_tokens": 512, "output_tokens": 100}}],
        "servegen", [512], 512, [0], [100],
    ),
    "llmservingsim": Case(
        [
            {"input_toks": 3, "output_toks": 5, "arrival_time_ns": at * 10**9, "input_tok_ids": [1, 2, at]}
            for at in (3, 4)
        ],
        "llmservingsim", [3, 3], 2, [0, 1], [5, 5],
    ),
    "weka with a partial id": Case(
        [{"id": "t", "requests": [{"t": 2.0, "in": 70, "out": 1, "hash_ids": [1, 2]}, {"t": 4.0, "in": 9, "out": 1}]}],
        "weka", [70, 9], 0, [0, 2], [1, 1], "1 of 2 requests name no prefixes",
    ),
    "azure with zones": Case(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.25+00:00,0,5\n2024-05-10 00:00:01,12,5\n",
        "azure", [12], 12, [0], [5], "without a prompt",
    ),
    "azure with images": Case(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n2024-10-15 00:00:00,2,30,5\r\n",
        "azure", [30], 30, [0], [5],
    ),
    "burstgpt": Case(
        "Timestamp,Session ID,Model,Request tokens,Response tokens\n5,007,m,20,4\n7.5,,m,30,6\n",
        "burstgpt", [20, 30], 0, [0, 2.5], [4, 6], "2 of 2 requests name no prefixes",
    ),
}  # fmt: skip
SAID = {
    "text": Case([{"timestamp": 5, "text_input": "one two three"}], "mooncake", [3], 3, [0], [0]),
    # Text goes on from what was said; messages repeat it.
    "turns of text": Case(
        [{"session_id": 1, "text_input": "one two", "output_length": 4}, {"session_id": 1, "text_input": "three"}],
        "mooncake", [2, 7], 2, [0, 0], [4, 0],
    ),
    "messages": Case(
        [
            {"session_id": 1, "messages": [{"role": "user", "content": "one two"}]},
            {"session_id": 1, "messages": [{"role": "user", "content": "one two"}, {"role": "user", "content": [2]}]},
        ],
        "mooncake", [3, 5], 3, [0, 0], [0, 0],
    ),
    "aiperf single_turn": Case(
        [{"timestamp": 0, "text": "one two"}, {"timestamp": 500, "texts": ["one", "two three"]}],
        "aiperf", [2, 3], 2, [0, 0.5], [0, 0],
    ),
    "aiperf random_pool": Case(
        [{"text": "one two"}, {"texts": [{"name": "t", "contents": ["one", "two"]}]}],
        "aiperf", [2, 2], 2, [0, 0], [0, 0],
    ),
    # Each turn says what is new, also where it has a time; it waits for the answer in any case.
    "aiperf multi_turn": Case(
        [
            {"turns": [{"text": "one", "output_length": 2}, {"text": "two", "delay": 500}]},
            {"session_id": "s", "turns": [{"text": "one two", "timestamp": 9}, {"text": "three", "timestamp": 2000}]},
        ],
        "aiperf", [1, 2, 4, 3], 1, [0, 0.009, 0.5, 2], [2, 0, 0, 0], "2 of 4 requests, where they overlap, wait",
    ),
    "openai-batch": Case(
        [
            {"custom_id": "1", "body": {"messages": [{"role": "user", "content": "one"}], "max_tokens": 7}},
            {"custom_id": "2", "body": {"prompt": [7, 8], "model": "m"}},
        ],
        "openai-batch", [2, 2], 0, [0, 0], [7, 0], "'body.model' has 2 values",
    ),
    "genai-perf": Case(
        [{"data": [{"payload": [{"messages": [{"role": "user", "content": "one"}]}], "timestamp": [3]}] * 2}],
        "genai-perf", [2, 2], 2, [0, 0], [0, 0],
    ),
    "vllm-custom": Case(
        [{"prompt": "one two"}, {"prompt": "one", "output_tokens": 4}], "vllm-custom", [2, 1], 1, [0, 0], [0, 4]
    ),
    "lmcache": Case(
        [
            {"session_id": "a", "input": [{"role": "user", "content": "one"}], "output_length": 2, "pre_gap": 0.5},
            {"session_id": "a", "input": [{"role": "user", "content": "one"}] * 2, "output_length": 3, "pre_gap": 2},
        ],
        "lmcache", [2, 4], 2, [0, 2], [2, 3],
    ),
    "sharegpt": Case(
        [{"id": "c", "conversations": [{"from": who, "value": text} for who, text in TALK]}],
        "sharegpt", [5, 12], 5, [0, 0], [3, 3],
    ),
    "wildchat": Case(
        [{"timestamp": "2023-04-09", "conversation": [{"role": who, "content": text} for who, text in TALK[:3]]}],
        "wildchat", [5, 12], 5, [0, 0], [3, 0],
    ),
}  # fmt: skip


def written(folder: Path, case: Case) -> Path:
    path = folder / ("t.csv" if isinstance(case.rows, str) else "t.jsonl")
    path.write_bytes((case.rows if isinstance(case.rows, str) else "\n".join(map(json.dumps, case.rows))).encode())
    return path


def check(trace: Trace, case: Case) -> None:
    tokens = [request.token_ids() for request in trace.requests]
    assert [len(each) for each in tokens] == case.lengths == [request.num_tokens for request in trace.requests]
    pairs = list(zip(tokens[0], tokens[-1], strict=False))
    assert next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs)) == case.shared
    assert [request.arrival for request in trace.requests] == case.arrivals
    assert [request.num_output_tokens for request in trace.requests] == case.outputs
    assert (case.format, case.note in " ".join(trace.notes)) == (trace.format, True)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("tokenizers", reason="needs tokenizers (extra 'traces')")
    made = library.Tokenizer(
        library.models.WordLevel({"one": 0, "two": 1, "three": 2, "[2]": 3, "?": 4}, unk_token="?")
    )
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_recognised_and_read(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = written(tmp_path, case)
    check(load_trace(path), case)
    assert load_trace(path, case.format) == load_trace(path)
    packed = tmp_path / f"{path.name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    check(load_trace(packed), case)
    if not isinstance(case.rows, str):
        (tmp_path / "t.json").write_text(json.dumps(case.rows, indent=1))
        check(load_trace(tmp_path / "t.json"), case)


@pytest.mark.parametrize("name", SAID)
def test_text_is_read_with_a_tokenizer(tmp_path: Path, tokenizer: Path, name: str) -> None:
    path = written(tmp_path, SAID[name])
    check(load_trace(path, tokenizer=tokenizer), SAID[name])
    with pytest.raises(
        TraceError, match=f"line 1: a {SAID[name].format} trace with text, .*; name a tokenizer with --tok"
    ):
        load_trace(path)
    with pytest.raises(InvalidArgumentError, match=r"tokenizer: .* is no tokenizer\.json"):
        load_trace(path, tokenizer=path)


def test_zstandard_is_unpacked_frame_by_frame(tmp_path: Path) -> None:
    library = pytest.importorskip("zstandard", reason="needs zstandard (extra 'traces')")
    case = CASES["blocks of 64"]
    lines = written(tmp_path, case).read_bytes().splitlines(keepends=True)
    (tmp_path / "t.jsonl.zst").write_bytes(b"".join(map(library.compress, lines)))
    check(load_trace(tmp_path / "t.jsonl.zst"), case)
    (tmp_path / "t.jsonl.zst").write_bytes(library.compress(lines[0] * 9)[:-9])
    with pytest.raises(TraceError, match="is packed, and damaged or cut short"):
        load_trace(tmp_path / "t.jsonl.zst")


def test_labels_and_arrivals_stay_with_their_requests(tmp_path: Path) -> None:
    path = written(tmp_path, CASES["out of order"]._replace(rows=[row(9, 8, user="b"), row(1, 0), row(4, 9, user="a")]))
    with pytest.raises(TraceError, match="has no column 'group'; name another"):
        load_trace(path, column="group")
    assert load_trace(path, column="user").labels == ("a", "b")
    path.write_text(
        "\n".join(map(json.dumps, [row(1, 9, user=None), row(2, 9), row(3, 9, user=7), row(4, 9, user="")]))
    )
    assert load_trace(path, column="user").labels == (None, None, "7", None)
    path = written(tmp_path, CASES["out of order"]._replace(rows=[row(9, 8, user="b"), row(1, 0), row(4, 9, user="a")]))
    trace = load_trace(path, column="input_length")
    assert [request.num_tokens for request in trace.requests] == [9, 8]
    assert trace.labels == ("9", "8")


def test_large_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    """And progress is told in bytes of the file."""
    rows = [row(at, 512 * 9, list(range(at, at + 9)), note="x" * at) for at in range(700)]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    told: list[int] = []
    assert len(load_trace(tmp_path / "t.json", advance=told.append).requests) == 700
    assert sum(told) == (tmp_path / "t.json").stat().st_size
    assert sum(map(bool, told)) > 3


def known(tmp_path: Path, rows: list[dict[str, Any]], **more: Any) -> list[list[int]]:
    """Return the answers that are known of a trace, each as its request has it after the prompt in the last one."""
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    requests = load_trace(tmp_path / "t.jsonl", **more).requests
    return [[*each.token_ids(), *each.answer_ids] for each in requests if each.answer_ids]


def test_answers_are_those_that_the_next_turn_repeats(tmp_path: Path, tokenizer: Path) -> None:
    """Of any id that covers a part of the answer, and only where the next turn goes on with the same prompt."""
    two = [row(0, 600, [1, 2], output_length=500), row(9, 1536, [1, 3, 4], output_length=7)]
    ids = [{**each, "session_id": "s"} for each in two]
    assert known(tmp_path, ids) == [[1] * 512 + [3] * 512 + [4] * 76]
    assert known(tmp_path, two) == []
    assert known(tmp_path, [ids[0], {**ids[1], "hash_ids": [9, 3, 4]}]) == []  # another prompt
    assert known(tmp_path, [ids[0], {**ids[1], "input_length": 1030, "hash_ids": [1, 3, 4]}]) == []  # no room for it
    # The last block of the answer is whole in the third turn alone.
    third = row(20, 2048, [1, 3, 5, 6], session_id="s")
    assert known(tmp_path, [ids[0], {**ids[1], "input_length": 1200}, third])[0] == [1] * 512 + [3] * 512 + [5] * 76
    # Text has another number of tokens than the engine counted: what follows the answer's message is none of it.
    user, said = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}
    turns: list[dict[str, Any]] = [{"input": [user]}, {"input": [user, said, user]}]
    rows = [{"session_id": "a", "output_length": 90, "pre_gap": 1, **turn} for turn in turns]
    (found,) = known(tmp_path, rows, tokenizer=tokenizer)
    assert len(found) == 2 + 3
    requests = load_trace(tmp_path / "t.jsonl", tokenizer=tokenizer).requests
    assert [(each.after, each.delay) for each in requests] == [(-1, 0.0), (0, 1.0)]


def test_hostile_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    """A long row, in each form of file; prompts that repeat each other; a session that never ends."""
    monkeypatch.setattr(files, "_LONGEST", 1000)
    monkeypatch.setattr(files, "_CHUNK", 64)
    long = json.dumps(row(0, 512 * 900, list(range(900))))
    for name, text in (
        ("t.jsonl", long),
        ("t.json", f"[{long}]"),
        ("u.json", long[:-1] + "\n}"),
        ("t.csv", "a;b" * 999),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TraceError, match=r"has more than 1,000 characters in one object; write a request or"):
            load_trace(tmp_path / name)
    monkeypatch.setattr(traces, "_MOST_IDS", 9)
    path = written(tmp_path, SAID["sharegpt"])
    with pytest.raises(TraceError, match="prompts of over 16,777,216 tokens, or 9 ids in one row"):
        load_trace(path, tokenizer=tokenizer)
    monkeypatch.setattr(traces, "_MOST_TURNS", 2)
    path = written(tmp_path, Case([row(None, 9, [1], session_id="s", delay=1)] * 3, "", [], 0, [], []))
    with pytest.raises(TraceError, match="line 3: a session of over 16,777,216 tokens or 2 turns"):
        load_trace(path)
    path = written(tmp_path, Case([row(None, 9, [1], session_id="s", delay=-1)], "", [], 0, [], []))
    with pytest.raises(TraceError, match="'delay' must be a time of 0 or more"):
        load_trace(path)
