"""The wire: calls and answers as lines of text that a small C program can read with ``strtok``.

One line is sent, one line comes back. Words are separated by one space, lists by commas, tables of several groups by
slashes, and entries for several requests or blocks by semicolons; "-" stands for nothing.
"""

from collections.abc import Iterable
from typing import Any

from blockwright_spec.manager.state import Config

from ..capabilities import Capabilities
from ..kv_cache.adapter import Observation
from .calls import SIGNATURES, STALE, Answer, Call, Field, Tables
from .records import FLAGS, LENGTHS, config_of, group_record

VERSION = 1
NOTHING, NO_TABLE = "-", "none"


class WireError(ValueError):
    """A line that is not one of the protocol."""


def listed(numbers: Iterable[int]) -> str:
    """Write integers."""
    return ",".join(map(str, numbers)) or NOTHING


def integers(text: str) -> tuple[int, ...]:
    """Read integers."""
    return () if text == NOTHING else tuple([int(each) for each in text.split(",")])


def tabled(tables: Tables) -> str:
    """Write a table per group."""
    return "/".join(map(listed, tables)) or NOTHING


def tables_of(text: str) -> Tables:
    """Read a table per group."""
    return tuple(map(integers, text.split("/")))


def value_text(field: Field, value: Any) -> str:
    """Write an argument."""
    if field.shape == "tokens":
        return listed(value)
    if field.shape == "pairs":
        return ";".join(":".join(map(str, pair)) for pair in value) or NOTHING
    return str(value)


def value_of(field: Field, text: str) -> Any:
    """Read an argument."""
    if field.shape == "tokens":
        return integers(text)
    if field.shape == "pairs":
        pairs = [] if text == NOTHING else [each.split(":") for each in text.split(";")]
        return tuple([(name, *map(int, numbers)) for name, *numbers in pairs])
    return text if field.shape == "name" else int(text)


def call_line(call: Call) -> str:
    """Write a call: its word, its arguments in order, and options that are not at their defaults."""
    words = [call.word]
    for field, value in call.stated():
        text = value_text(field, value)
        words.append(text if field.default is None else f"{field.name}={text}")
    return " ".join(words)


def call_of(line: str) -> Call:
    """Read a call.

    Raises:
        WireError: it is none.
    """
    word, *rest = line.split()
    if word not in SIGNATURES:
        raise WireError(f"call: expected one of {', '.join(SIGNATURES)}, not {word!r}")
    options = dict(each.split("=", 1) for each in rest if "=" in each)
    plain = iter([each for each in rest if "=" not in each])
    try:
        values = [
            value_of(field, next(plain) if field.default is None else options.get(field.name, str(field.default)))
            for field in SIGNATURES[word]
        ]
    except (StopIteration, ValueError) as error:
        names = " ".join(field.name for field in SIGNATURES[word])
        raise WireError(f"{word}: expected {word} {names}, not {line!r}") from error
    return Call(word, tuple(values))


def answer_line(answer: Answer) -> str:
    """Write an answer."""
    match answer.word:
        case "hit":
            return f"hit {answer.length} {tabled(answer.tables)}"
        case "blocks":
            return f"blocks {tabled(answer.tables)}"
        case "served":
            tables = ";".join(map(tabled, answer.served)) or NOTHING
            return f"served {len(answer.served)} {'whole' if answer.whole else 'part'} {tables}"
        case "copies":
            return "copies " + "/".join(",".join(f"{a}:{b}" for a, b in pairs) or NOTHING for pairs in answer.copies)
        case "counts":
            return f"counts {listed(answer.counts)}"
        case "error":
            return "error stale" if answer.reason.startswith(STALE) else "error"
        case word:
            return word


def answer_of(line: str) -> Answer:
    """Read an answer.

    Raises:
        WireError: it is none.
    """
    words = line.split()
    try:
        match words:
            case ["ok" | "refused" as word]:
                return Answer(word)
            case ["hit", length, tables]:
                return Answer("hit", int(length), tables_of(tables) if int(length) else ())
            case ["blocks", tables]:
                return Answer("blocks", tables=tables_of(tables))
            case ["served", count, "whole" | "part" as how, tables]:
                served = () if int(count) == 0 else tuple(map(tables_of, tables.split(";")))
                return Answer("served", served=served, whole=how == "whole")
            case ["copies", groups]:
                pairs = [[] if each == NOTHING else each.split(",") for each in groups.split("/")]
                copies = tuple(
                    [tuple([(int(a), int(b)) for a, b in (one.split(":") for one in each)]) for each in pairs]
                )
                return Answer("copies", copies=copies)
            case ["counts", counts]:
                return Answer("counts", counts=integers(counts))
            case ["error", "stale", *_]:
                return Answer("error", reason=STALE)
            case ["error", *rest]:
                return Answer("error", reason=" ".join(rest))
    except ValueError as error:
        raise WireError(f"answer: cannot read {line!r}: {error}") from error
    raise WireError(f"answer: expected ok, hit, blocks, served, copies, counts, refused or error, not {line!r}")


def config_line(config: Config) -> str:
    """Write the line that asks for a new manager."""
    options = [
        f"{name}={int(getattr(config, name))}" for name, usual in FLAGS.items() if getattr(config, name) != usual
    ]
    groups = [":".join(map(str, group_record(group).values())) for group in config.groups]
    return " ".join(["new", str(config.num_blocks), str(config.max_model_len), *groups, *options])


def config_from(line: str) -> Config:
    """Read the line that asks for a new manager."""
    _, blocks, longest, *rest = line.split()
    options: dict[str, Any] = dict(each.split("=", 1) for each in rest if "=" in each)
    numbers = {name: type(usual)(int(options[name])) for name, usual in FLAGS.items() if name in options}
    groups = []
    for kind, size, *length in (each.split(":") for each in rest if "=" not in each):
        own = {LENGTHS[kind]: int(length[0])} if length else {}
        groups.append({"kind": kind, "block_size": int(size)} | own)
    return config_of({"groups": groups, "num_blocks": int(blocks), "max_model_len": int(longest)} | numbers)


FIELDS = ("tables", "queue", "references", "keys", "published", "free", "states", "settled", "copies")
"""What a state may show, each as ``name=value``; the tables always."""


def state_line(state: Observation) -> str:
    """Write a state."""

    def each(values: Iterable[Any], write: Any) -> str:
        return ";".join(NO_TABLE if value is None else write(value) for value in values) or NOTHING

    words = ["state", f"tables={each(state.tables, tabled)}"]
    if state.queue is not None:
        words.append(f"queue={listed(state.queue)}")
    if state.references is not None:
        words.append(f"references={listed(state.references)}")
    if state.keys is not None:
        keys = [(block, *content) for block, content in enumerate(state.keys) if content]
        words.append("keys=" + (";".join(f"{b}:{at}:{extra}:{listed(t)}" for b, at, (extra, t) in keys) or NOTHING))
    if state.published is not None:
        words.append(f"published={each(state.published, listed)}")
    if state.free is not None:
        words.append(f"free={state.free}")
    if state.states is not None:
        words.append(f"states={each(state.states, tabled)}")
    if state.settled is not None:
        words.append(f"settled={each(state.settled, str)}")
    if state.copies is not None:
        words.append("copies=" + (";".join(f"{at}:{a}:{b}" for at, a, b in state.copies) or NOTHING))
    return " ".join(words)


def state_of(line: str, num_blocks: int) -> Observation:
    """Read a state.

    Raises:
        WireError: it is none.
    """
    word, *rest = line.split()
    if word != "state" or not rest:
        raise WireError(f"state: expected state tables=..., not {line!r}")
    try:
        return Observation(**{name: shown(name, text, num_blocks) for name, text in (each.split("=") for each in rest)})
    except (ValueError, TypeError, IndexError) as error:
        raise WireError(f"state: cannot read {line!r}: {error}") from error


def shown(name: str, text: str, num_blocks: int) -> Any:
    """Read one field of a state."""
    entries = [] if text == NOTHING else text.split(";")
    match name:
        case "queue" | "references":
            return integers(text)
        case "free":
            return int(text)
        case "tables" | "states":
            return tuple([None if each == NO_TABLE else tables_of(each) for each in text.split(";")])
        case "published":
            return tuple([None if each == NO_TABLE else integers(each) for each in entries])
        case "settled":
            return tuple([None if each == NO_TABLE else int(each) for each in entries])
        case "copies":
            return tuple([tuple(map(int, each.split(":"))) for each in entries])
        case "keys":
            keys: list[Any] = [None] * num_blocks
            for block, at, extra, tokens in (each.split(":") for each in entries):
                keys[int(block)] = int(at), (int(extra), integers(tokens))
            return tuple(keys)
        case _:
            raise ValueError(f"expected one of {', '.join(FIELDS)}, not {name!r}")


def hello_line(name: str, capabilities: Capabilities, follows_policy: bool) -> str:
    """Write what a manager says of itself; spaces in words become underscores."""
    sets = [(each, getattr(capabilities, each)) for each in ("kinds", "calls", "features")]
    words = [f"{each}={','.join(sorted(words)).replace(' ', '_') or NOTHING}" for each, words in sets]
    return " ".join(["hello", str(VERSION), name, *words, f"policy={'lru' if follows_policy else 'any'}"])


def hello_of(line: str) -> tuple[str, Capabilities, bool]:
    """Read what a manager says of itself: its name, what it can do, and whether it follows the policy.

    Raises:
        WireError: it says nothing of the kind, or speaks another version.
    """
    words = line.split()
    if len(words) < 3 or words[:2] != ["hello", str(VERSION)]:
        raise WireError(f"hello: expected hello {VERSION} NAME kinds=... features=..., not {line!r}")
    options = dict(each.split("=", 1) for each in words[3:] if "=" in each)
    if unknown := options.keys() - {"kinds", "calls", "features", "policy"}:
        raise WireError(f"hello: expected kinds, calls, features and policy, not {', '.join(sorted(unknown))}")
    sets: dict[str, Any] = {
        name: frozenset(options.get(name, "").replace("_", " ").split(",")) - {"", NOTHING}
        for name in ("kinds", "calls", "features")
    }
    return words[2], Capabilities(**sets), options.get("policy", "lru") == "lru"
