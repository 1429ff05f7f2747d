"""Every trace format is read into prompts that share exactly the tokens that the trace says they share.

How: a small file of each format in `data/`, whose token ids are compared prompt against prompt; then the same files
with one thing broken at a time, each of which must be an error that names the file, the line and a remedy. The layouts
of people's files are in test_layouts.py.

Not covered: whole public traces (see test_reference.py), and whether a trace tells the truth about its requests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockwright.errors import InvalidArgumentError, TraceError
from blockwright.replay.records import MAX_PROMPT_TOKENS, ContentNumbers, Trace
from blockwright.replay.traces import load_trace

DATA = Path(__file__).parent / "data"
FILES = {"mooncake": "mooncake.jsonl", "azure": "azure.csv", "bailian": "bailian.jsonl", "weka": "weka"}


def shared(trace: Trace, first: int, second: int) -> int:
    """Count the leading tokens that two prompts share."""
    pairs = zip(trace.requests[first].token_ids(), trace.requests[second].token_ids(), strict=False)
    return next(
        (count for count, (a, b) in enumerate(pairs) if a != b), min(lengths(trace)[first], lengths(trace)[second])
    )


def lengths(trace: Trace) -> list[int]:
    return [len(request.token_ids()) for request in trace.requests]


@pytest.mark.parametrize("name", FILES)
def test_the_format_is_recognised(name: str) -> None:
    found, reported = load_trace(DATA / FILES[name]), load_trace(DATA / FILES[name], name)
    assert found == reported
    assert found.format == name


@pytest.mark.parametrize("name", FILES)
def test_lengths_agree_with_the_tokens(name: str) -> None:
    trace = load_trace(DATA / FILES[name])
    assert lengths(trace) == [request.num_tokens for request in trace.requests]
    assert trace.num_tokens == sum(lengths(trace))
    assert trace.max_prompt_tokens == max(lengths(trace))
    assert trace.num_references(16) == sum(-(-length // 16) for length in lengths(trace))
    assert min(min(request.token_ids()) for request in trace.requests) >= 0


def test_mooncake_shares_prefixes_of_512_tokens() -> None:
    trace = load_trace(DATA / "mooncake.jsonl")
    assert lengths(trace) == [1124, 1536, 100]
    assert (shared(trace, 0, 1), shared(trace, 0, 2)) == (1024, 0)
    assert [request.arrival for request in trace.requests] == [0.0, 0.25, 1.5]
    assert [request.num_output_tokens for request in trace.requests] == [5, 7, 1]


def test_azure_prompts_share_nothing() -> None:
    trace = load_trace(DATA / "azure.csv")
    assert lengths(trace) == [40, 40]
    assert shared(trace, 0, 1) == 0
    assert [request.arrival for request in trace.requests] == [0.0, 0.5]


def test_bailian_ids_count_only_with_all_ids_before_them() -> None:
    trace = load_trace(DATA / "bailian.jsonl")
    # The second prompt goes on from the first one, whose last id is of a part of a block.
    assert shared(trace, 0, 1) == 40
    # The third prompt holds the second block of the first one, behind another first block.
    assert shared(trace, 0, 2) == 0


def test_weka_ids_are_local_and_tails_unshared() -> None:
    trace = load_trace(DATA / "weka")
    # By time: a at 0, b at 10, the sub-agent of a at 20 + 1, b at 25, a at 30.
    assert lengths(trace) == [130, 63, 70, 128, 192]
    assert [request.arrival for request in trace.requests] == [0.0, 10.0, 21.0, 25.0, 30.0]
    assert (shared(trace, 0, 4), shared(trace, 0, 2), shared(trace, 2, 4)) == (128, 64, 64)
    assert (shared(trace, 0, 3), shared(trace, 0, 1)) == (0, 0)


def test_weka_global_ids_are_shared_between_sessions(tmp_path: Path) -> None:
    for path in (DATA / "weka").iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace('"local"', '"global"'))
    assert shared(load_trace(tmp_path), 0, 3) == 128


def test_weka_sub_agents_may_count_from_the_session_start(tmp_path: Path) -> None:
    text = (DATA / "weka/a.json").read_text().replace('"t": 1.0', '"t": 21.0')
    (tmp_path / "a.json").write_text(text)
    assert [request.arrival for request in load_trace(tmp_path / "a.json").requests] == [0.0, 21.0, 30.0]


def test_weka_sessions_may_stand_in_lines(tmp_path: Path) -> None:
    sessions = [json.loads(path.read_text()) for path in sorted((DATA / "weka").iterdir())]
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    assert load_trace(path).requests == load_trace(DATA / "weka").requests


def test_limit_reads_no_further(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text((DATA / "mooncake.jsonl").read_text() + "rubbish\n")
    assert load_trace(path, limit=3).requests == load_trace(DATA / "mooncake.jsonl").requests
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 4: .*--limit 3"):
        load_trace(path)


def test_unit_overrides_the_tokens_of_an_id(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2, 3]}\n')
    assert list(load_trace(path, unit=8).requests[0].lengths) == [8, 8, 4]
    with pytest.raises(TraceError, match="must hold 1 ids for 20 tokens in blocks of 512, not 3"):
        load_trace(path)
    with pytest.raises(TraceError, match="must hold 2 ids for 20 tokens in blocks of 16, not 3"):
        load_trace(path, unit=16)


class Compared(int):
    """An id that counts how often it is compared with another."""

    count = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other


@pytest.mark.parametrize("scope", [None, "session"])
def test_ids_that_collide_are_not_compared_with_one_another(scope: str | None) -> None:
    """Python's hash of these integers is the same, so that a dictionary of them takes quadratic time."""
    numbers, ids = ContentNumbers(), [Compared(number * (2**61 - 1)) for number in range(-500, 500)]
    Compared.count = 0
    found = list(numbers.named(ids + ids, scope))
    assert found[:1000] == found[1000:]
    assert len(set(found)) == 1000
    assert Compared.count < 10 * len(ids)


def test_blank_lines_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    for name in ("mooncake", "azure", "bailian"):
        path = tmp_path / FILES[name]
        path.write_bytes(b"\xef\xbb\xbf" + (DATA / FILES[name]).read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
        assert load_trace(path).requests == load_trace(DATA / FILES[name]).requests


MOONCAKE = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}'
BAD_LINES = {
    "truncated": (MOONCAKE[:40], "truncated or malformed JSON"),
    "empty object": ("{}", "mooncake: lacks the field 'timestamp'"),
    "no length": ('{"timestamp": 0}', "mooncake: lacks the field 'input_length'"),
    "no object": ("[1, 2]", "is not a JSON object"),
    "no time": (MOONCAKE.replace('"timestamp": 0, ', ""), "lacks the field 'timestamp'"),
    "time not finite": (MOONCAKE.replace('p": 0', 'p": NaN'), "'timestamp' must be a time"),
    "time in words": (MOONCAKE.replace('p": 0', 'p": "noon"'), "'timestamp' must be a time"),
    "time beyond numbers": (MOONCAKE.replace('p": 0', f'p": {10**400}'), "'timestamp' must be a time"),
    "time beyond all times": (MOONCAKE.replace('p": 0', 'p": -1e300'), "'timestamp' must be a time"),
    "time is a truth": (MOONCAKE.replace('p": 0', 'p": true'), "'timestamp' must be a time"),
    "ids without tokens": (MOONCAKE.replace("513", "0"), "must hold 0 ids for 0 tokens"),
    "negative length": (MOONCAKE.replace("513", "-513"), "'input_length' must be a whole number from 0"),
    "fractional length": (MOONCAKE.replace("513", "513.5"), "'input_length' must be a whole number from 0"),
    "length is a truth": (MOONCAKE.replace("513", "true"), "'input_length' must be a whole number from 0"),
    "absurd length": (
        MOONCAKE.replace("513", str(MAX_PROMPT_TOKENS + 1)),
        "'input_length' must be a whole number from 0",
    ),
    "negative output": (MOONCAKE.replace('h": 5,', 'h": -5,'), "'output_length' must be a whole number from 0"),
    "id not a number": (MOONCAKE.replace("[0, 1]", '[0, "1"]'), "'hash_ids' must be a list of whole numbers or"),
    "ids not a list": (MOONCAKE.replace("[0, 1]", "7"), "'hash_ids' must be a list of whole numbers or"),
    "too few ids": (MOONCAKE.replace("[0, 1]", "[0]"), "must hold 2 ids for 513 tokens in blocks of 512, not 1"),
    "too many ids": (MOONCAKE.replace("[0, 1]", "[0, 1, 2]"), "must hold 2 ids for 513 tokens in blocks of 512, not 3"),
    "nested too deep": ("[" * 100_000, "malformed JSON"),
    "number too long": (MOONCAKE.replace("513", "5" * 5000), "malformed JSON"),
}


@pytest.mark.parametrize("fault", BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, fault: str) -> None:
    line, message = BAD_LINES[fault]
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{MOONCAKE}\n{line}\n{MOONCAKE}\n")
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line 2: ")
    assert message in text
    assert text.endswith("mend it, or replay only what precedes it with --limit 1")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,40,10\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16,3\n", 2, "nearest to azure and lacks 'GeneratedTokens'"),
        (AZURE + "2023-11-16 18:17:04.0,3180\n", 3, "2 columns where the header has 3"),
        (AZURE + "2023-11-16 18:17:04.0,3180,8,9\n", 3, "4 columns where the header has 3"),
        (AZURE + "2023-11-16 18:1", 3, "1 columns where the header has 3"),
        (AZURE + "yesterday,3180,8\n", 3, "azure: 'TIMESTAMP' must be a time, a date or a number"),
        (AZURE + "2023-11-16 18:17:04.0,many,8\n", 3, "'ContextTokens' must be a whole number from 0"),
        (AZURE + "2023-11-16 18:17:04.0,-3,8\n", 3, "'ContextTokens' must be a whole number from 0"),
        (AZURE + f"2023-11-16 18:17:04.0,{'9' * 5000},8\n", 3, "'ContextTokens' must be a whole number from 0"),
        (AZURE + "2023-11-16 18:17:04.0,3180,\n", 3, "'GeneratedTokens' must be a whole number from 0"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"hash_ids": [1, 2]', '"hash_ids": [1, 2, 3]', "must hold 2 ids for 70 tokens in blocks of 64, not 1"),
        ('"requests": [\n', '"others": [\n', "lacks the field 'requests'"),
        ('"requests": [\n', '"requests": [7,\n', "'requests' must be a list of objects"),
        ('"t": 20.0, ', "", "lacks the field 't'"),
        ('"block_size": 64', '"block_size": 0', "'block_size' must be a whole number from 1"),
        ('"stop": ""}]}', '"stop": "', "line 6: truncated or malformed JSON"),
    ],
)
def test_a_bad_session_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (DATA / "weka/a.json").read_text()
    assert old in text
    path = tmp_path / "a.json"
    path.write_text(new.join(text.rsplit(old, 1)) if "stop" in old else text.replace(old, new, 1))
    with pytest.raises(TraceError) as caught:
        load_trace(tmp_path, "weka")
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.jsonl", b" \n", "is empty; give the path of a trace"),
        ("notes.txt", b"nothing of a trace", "of no known trace format; give JSON lines"),
        ("latin.jsonl", b'{"timestamp": "\xe9"}', "is not text in UTF-8"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00\xff\xfe\x00", "is packed, and damaged or cut short"),
        ("bad.jsonl.zst", b"\x28\xb5\x2f\xfd\xff\xff\xff", "is packed, and damaged or cut short|install its library"),
        ("table.parquet", b"PAR1\x15\x04", "is a Parquet file; convert it to JSON lines"),
        ("nearest.jsonl", b'{"timestamp": 1, "hash_ids": [1]}', "nearest to mooncake and lacks 'input_length'; add"),
        ("near.jsonl", b'{"chat_id": 1, "time": 0}', "nearest to bailian and lacks 'input_length'; add"),
        ("other.jsonl", b'{"a": 1, "b": 2}', "no known trace format; its fields are 'a', 'b'; name it with --format"),
        ("spans.jsonl", b'{"trace_id": "t", "spans": []}', "is a trace of OpenTelemetry; it says how many tokens"),
        ("rounds.jsonl", b'{"round_index": 0, "usage": {}}', "is a trace of TraceLab; it says how many tokens"),
        ("header.csv", AZURE.encode()[:39], "holds no request with a prompt; give another file"),
        ("cut.json", MOONCAKE.join("[,").encode(), "line 1: truncated or malformed JSON"),
        ("numbers.json", b"[1, 2]", "line 1: is not a JSON object"),
    ],
)
def test_files_that_are_no_traces_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TraceError, match=message):
        load_trace(tmp_path / name)


def test_folders_and_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file; check the path"):
        load_trace(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="holds no request with a prompt; give another file"):
        load_trace(tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TraceError, match=r"cannot be read \(Is a directory\)"):
        load_trace(tmp_path)


def test_arguments_are_checked() -> None:
    path = DATA / "mooncake.jsonl"
    with pytest.raises(InvalidArgumentError, match="format: unknown trace format 'tea leaves'; use auto, azure"):
        load_trace(path, "tea leaves")
    with pytest.raises(InvalidArgumentError, match="limit: must be at least 1, not 0"):
        load_trace(path, limit=0)
    with pytest.raises(InvalidArgumentError, match="unit: must be at least 1, not -1"):
        load_trace(path, unit=-1)
