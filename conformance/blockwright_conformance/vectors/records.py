"""Vectors as JSON lines: one vector a line, each whole in itself.

`docs/reference/vectors.md` describes every field; a change of this module that readers would notice needs another
`VERSION`.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Group

from ..kv_cache.adapter import Observation
from ..kv_cache.scopes import LAYERS, configured, kind_and_lengths, option
from ..kv_cache.scopes import plain as frozen
from .calls import ANSWERS, SIGNATURES, Answer, Call

VERSION = 1
FOLDER = Path(__file__).parent

MOST_BLOCKS = 1 << 20
"""Blocks of a pool at most: a state has an entry for each."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Python raises where data is not as expected."""


class VectorStep(NamedTuple):
    """A call, the answer expected, and the state expected after it; None where the state is not compared."""

    call: Call
    answer: Answer
    state: Observation | None = None


class Vector(NamedTuple):
    scope: str
    number: int
    config: Config
    requests: tuple[str, ...]
    """Every id that the engine uses for requests, in the order in which states show them."""
    steps: tuple[VectorStep, ...]


UNTOLD: dict[str, Any] = dict.fromkeys(("outside", "passing", "tips", "spares"))
"""What an adapter shows and vectors say nothing of."""

FLAGS = {"caching": True, "eagle": False, "overlaps": False, "settles": False, "watermark": 0}
"""Options of a configuration, and what they are where they are left out."""


def group_record(group: Group) -> dict[str, Any]:
    name, lengths = kind_and_lengths(group.kind)
    return {"kind": name, "block_size": group.block_size} | lengths


def group_of(record: dict[str, Any]) -> Group:
    kind, own = LAYERS[record["kind"]]
    return Group(kind(*(record[length] for length in own if length in record)), record["block_size"])


def config_record(config: Config) -> dict[str, Any]:
    rest = {name: option(config, name) for name, usual in FLAGS.items() if option(config, name) != usual}
    groups = [group_record(group) for group in config.groups]
    return {"groups": groups, "num_blocks": config.num_blocks, "max_model_len": config.max_model_len} | rest


def config_of(record: dict[str, Any]) -> Config:
    if not 1 <= record["num_blocks"] <= MOST_BLOCKS:
        raise ValueError(f"num_blocks: expected 1 to {MOST_BLOCKS}, not {record['num_blocks']}")
    groups = tuple(group_of(group) for group in record["groups"])
    rest = {name: record[name] for name in FLAGS if name in record}
    return configured(groups, record["num_blocks"], record["max_model_len"], **rest)


def answer_record(answer: Answer) -> dict[str, Any]:
    return {"answer": answer.word} | {field.name: getattr(answer, field.name) for field in ANSWERS[answer.word]}


def answer_of(record: dict[str, Any]) -> Answer:
    names = [name for name in Answer._fields if name in record]
    return Answer(record["answer"], **{name: frozen(record[name]) for name in names})


def state_record(state: Observation) -> dict[str, Any]:
    """Return a state as data, without fields that no request of the scope has."""
    keys = [(block, content[0], *content[1]) for block, content in enumerate(state.keys or ()) if content]
    more = {
        "published": any(state.published or ()),
        "states": any(table for tables in state.states or () for table in tables or ()),
        "settled": any(each is not None for each in state.settled or ()),
        "copies": bool(state.copies),
    }
    always = {"tables": state.tables, "queue": state.queue, "references": state.references, "keys": keys}
    return always | {name: getattr(state, name) for name, is_shown in more.items() if is_shown}


def state_of(record: dict[str, Any], num_blocks: int) -> Observation:
    keys: list[Any] = [None] * num_blocks
    for block, at, extra, tokens in record["keys"]:
        keys[block] = at, (extra, tuple(tokens))
    tables, queue, references = (frozen(record[name]) for name in ("tables", "queue", "references"))
    none = [None] * len(tables)
    published, settled = (frozen(record.get(name, none)) for name in ("published", "settled"))
    states = frozen(record.get("states", [each and [[]] * len(each) for each in record["tables"]]))
    copies = frozen(record.get("copies", []))
    return Observation(tables, queue, references, tuple(keys), published, len(queue), states, settled, copies)


def step_records(steps: Iterable[VectorStep]) -> Iterator[dict[str, Any]]:
    """Yield the steps as data; a state equal to the one before is only marked as the same."""
    before: dict[str, Any] | None = None
    for step in steps:
        record = {"call": step.call.word} | {field.name: value for field, value in step.call.stated()}
        record["expect"] = answer_record(step.answer)
        if step.state is not None:
            state = state_record(step.state)
            record["state"] = "same" if state == before else state
            before = state
        yield record


def steps_of(records: list[dict[str, Any]], num_blocks: int) -> Iterator[VectorStep]:
    before: Observation | None = None
    for record in records:
        fields = SIGNATURES[record["call"]]
        call = Call(record["call"], tuple([frozen(record.get(field.name, field.default)) for field in fields]))
        state = record.get("state")
        now = before if state == "same" else None if state is None else state_of(state, num_blocks)
        before = before if now is None else now
        yield VectorStep(call, answer_of(record["expect"]), now)


def line_of(vector: Vector) -> str:
    head = {"blockwright_vector": VERSION, "scope": vector.scope, "number": vector.number}
    record = head | {"config": config_record(vector.config), "requests": vector.requests}
    record["steps"] = list(step_records(vector.steps))
    return json.dumps(record, separators=(",", ":"))


def vector_of(line: str) -> Vector:
    record = json.loads(line)
    if record.get("blockwright_vector") != VERSION:
        raise ValueError(f"expected a vector of version {VERSION}, found {line[:60]!r}; make the vectors again")
    config = config_of(record["config"])
    steps = tuple(steps_of(record["steps"], config.num_blocks))
    return Vector(record["scope"], record["number"], config, tuple(record["requests"]), steps)


def read(path: Path) -> list[Vector]:
    """Read a file of vectors; a ValueError names the line that is none."""
    vectors = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            vectors.append(vector_of(line))
        except UNREADABLE as error:
            raise ValueError(f"{path}:{number}: {type(error).__name__}: {error}") from error
    return vectors


def samples(files: Iterable[Path] = ()) -> list[Vector]:
    """Read files of vectors, by default those of the kit: a transition of every sort in some small scopes."""
    return [vector for path in list(files) or sorted(FOLDER.glob("*.jsonl")) for vector in read(path)]


def file_name(scope_name: str) -> str:
    words = "".join(each if each.isalnum() else " " for each in scope_name.replace("+", " and ")).split()
    return "-".join(words) + ".jsonl"


def write(path: Path, vectors: Iterable[Vector]) -> int:
    lines = [line_of(vector) for vector in vectors]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)
