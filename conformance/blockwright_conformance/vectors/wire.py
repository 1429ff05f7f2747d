"""The wire: calls and answers as lines of text that a small C program can read with ``strtok``.

One line is sent, one line comes back. Words are separated by one space, lists by commas, tables of several groups by
slashes, and entries for several requests or blocks by semicolons; "-" means nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

from blockwright_spec.manager.state import Config

from ..capabilities import Capabilities
from ..kv_cache.adapter import Observation, Tables
from ..kv_cache.scopes import LAYERS, option
from .calls import ANSWERS, SIGNATURES, STALE, Answer, Call, Field
from .records import FLAGS, UNREADABLE, config_of, group_record

VERSION = 1
NOTHING, NO_TABLE = "-", "none"


class WireError(ValueError):
    def __init__(self, text: str) -> None:
        super().__init__(text if len(text) <= 400 else f"{text[:400]}...")


def listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers)) or NOTHING


def integers(text: str) -> tuple[int, ...]:
    return () if text == NOTHING else tuple([int(each) for each in text.split(",")])


def tabled(tables: Tables) -> str:
    return "/".join(map(listed, tables)) or NOTHING


def tables_of(text: str) -> Tables:
    return tuple(map(integers, text.split("/")))


def pairs_text(pairs: Iterable[tuple[Any, ...]]) -> str:
    return ";".join(":".join(map(str, pair)) for pair in pairs) or NOTHING


def pairs_of(text: str) -> tuple[tuple[Any, ...], ...]:
    pairs = [] if text == NOTHING else [each.split(":") for each in text.split(";")]
    return tuple([(name, *map(int, numbers)) for name, *numbers in pairs])


def copies_text(copies: Iterable[Iterable[tuple[int, int]]]) -> str:
    return "/".join(",".join(f"{a}:{b}" for a, b in pairs) or NOTHING for pairs in copies)


def copies_of(text: str) -> tuple[tuple[tuple[int, int], ...], ...]:
    groups = [[] if each == NOTHING else [one.split(":") for one in each.split(",")] for each in text.split("/")]
    return tuple([tuple([(int(a), int(b)) for a, b in group]) for group in groups])


SHAPES: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "count": (str, int),
    "name": (str, str),
    "tokens": (listed, integers),
    "pairs": (pairs_text, pairs_of),
    "tables": (tabled, tables_of),
    "copies": (copies_text, copies_of),
}
"""How a value of each shape is written, and read again."""


def call_line(call: Call) -> str:
    words = [call.word]
    for field, value in call.stated():
        text = SHAPES[field.shape][0](value)
        words.append(text if field.default is None else f"{field.name}={text}")
    return " ".join(words)


def call_of(line: str) -> Call:
    word, *rest = line.split() or [""]
    if word not in SIGNATURES:
        raise WireError(f"call: expected one of {', '.join(SIGNATURES)}, not {word!r}")
    fields, options = SIGNATURES[word], dict(each.split("=", 1) for each in rest if "=" in each)
    plain = iter([each for each in rest if "=" not in each])
    try:
        texts = [next(plain) if each.default is None else options.get(each.name, each.default) for each in fields]
        values = [SHAPES[field.shape][1](str(text)) for field, text in zip(fields, texts, strict=True)]
    except (StopIteration, *UNREADABLE) as error:
        names = " ".join(field.name for field in fields)
        raise WireError(f"{word}: expected {word} {names}, not {line!r}") from error
    return Call(word, tuple(values))


def parts_of(word: str) -> tuple[Field, ...]:
    """Return the fields of an answer that a line has; a refusal's reason is for readers of files."""
    return ANSWERS[word] if word != "refused" else ()


def answer_line(answer: Answer) -> str:
    if answer.word == "served":
        tables = ";".join(map(tabled, answer.served)) or NOTHING
        return f"served {len(answer.served)} {'whole' if answer.whole else 'part'} {tables}"
    if answer.word == "error":
        return "error stale" if answer.reason.startswith(STALE) else "error"
    fields = parts_of(answer.word)
    return " ".join([answer.word, *(SHAPES[field.shape][0](getattr(answer, field.name)) for field in fields)])


def answer_of(line: str) -> Answer:
    try:
        match line.split():
            case ["served", count, "whole" | "part" as how, tables]:
                served = () if int(count) == 0 else tuple(map(tables_of, tables.split(";")))
                return Answer("served", served=served, whole=how == "whole")
            case ["error", "stale", *_]:
                return Answer("error", reason=STALE)
            case ["error", *rest]:
                return Answer("error", reason=" ".join(rest))
            case ["hit", "0", _]:
                return Answer("hit")
            case [word, *texts] if word in ANSWERS and len(texts) == len(fields := parts_of(word)):
                pairs = zip(fields, texts, strict=True)
                return Answer(word, **{field.name: SHAPES[field.shape][1](text) for field, text in pairs})
    except UNREADABLE as error:
        raise WireError(f"answer: cannot read {line!r}: {error}") from error
    raise WireError(f"answer: expected ok, hit, blocks, served, copies, counts, refused or error, not {line!r}")


def config_line(config: Config) -> str:
    options = [f"{name}={int(option(config, name))}" for name, usual in FLAGS.items() if option(config, name) != usual]
    groups = [":".join(map(str, group_record(group).values())) for group in config.groups]
    return " ".join(["new", str(config.num_blocks), str(config.max_model_len), *groups, *options])


def config_from(line: str) -> Config:
    try:
        _, blocks, longest, *rest = line.split()
        options: dict[str, Any] = dict(each.split("=", 1) for each in rest if "=" in each)
        numbers = {name: type(usual)(int(options[name])) for name, usual in FLAGS.items() if name in options}
        groups = []
        for kind, size, *lengths in (each.split(":") for each in rest if "=" not in each):
            own = dict(zip(LAYERS[kind][1], map(int, lengths), strict=False))
            groups.append({"kind": kind, "block_size": int(size)} | own)
        return config_of({"groups": groups, "num_blocks": int(blocks), "max_model_len": int(longest)} | numbers)
    except UNREADABLE as error:
        raise WireError(f"new: cannot read {line!r}: {type(error).__name__}: {error}") from error


def keys_text(keys: Iterable[Any]) -> str:
    found = [(block, *content) for block, content in enumerate(keys) if content]
    return ";".join(f"{block}:{at}:{extra}:{listed(tokens)}" for block, at, (extra, tokens) in found) or NOTHING


def keys_of(text: str) -> dict[int, Any]:
    entries = [] if text == NOTHING else [each.split(":") for each in text.split(";")]
    return {int(block): (int(at), (int(extra), integers(tokens))) for block, at, extra, tokens in entries}


def of_requests(shape: str) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """Return how a value for each request is written and read; some have none."""
    write, read = SHAPES[shape]
    return (
        lambda values: ";".join(NO_TABLE if value is None else write(value) for value in values) or NOTHING,
        lambda text: tuple([None if each == NO_TABLE else read(each) for each in text.split(";")]),
    )


FIELDS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "tables": of_requests("tables"),
    "queue": SHAPES["tokens"],
    "references": SHAPES["tokens"],
    "keys": (keys_text, keys_of),
    "published": of_requests("tokens"),
    "free": SHAPES["count"],
    "states": of_requests("tables"),
    "settled": of_requests("count"),
    "copies": (pairs_text, lambda text: tuple([(int(at), *ends) for at, *ends in pairs_of(text)])),
}
"""What a state may show, each as ``name=value``, and how it is written and read; the tables always."""


def state_line(state: Observation) -> str:
    shown = [(name, write, getattr(state, name)) for name, (write, _) in FIELDS.items()]
    return " ".join(["state", *(f"{name}={write(value)}" for name, write, value in shown if value is not None)])


def state_of(line: str, num_blocks: int) -> Observation:
    word, *rest = line.split() or [""]
    if word != "state" or not rest:
        raise WireError(f"state: expected state tables=..., not {line!r}")
    try:
        shown: dict[str, Any] = {name: FIELDS[name][1](text) for name, text in (each.split("=") for each in rest)}
        if "keys" in shown:
            every: list[Any] = [None] * num_blocks
            for block, content in shown["keys"].items():
                every[block] = content
            shown["keys"] = tuple(every)
        return Observation(**shown)
    except KeyError as error:
        raise WireError(f"state: expected fields {', '.join(FIELDS)}, not {error}") from error
    except UNREADABLE as error:
        raise WireError(f"state: cannot read {line!r}: {error}") from error


def hello_line(name: str, capabilities: Capabilities, follows_policy: bool) -> str:
    """Write a manager's declaration; spaces in words become underscores."""
    sets = [(each, getattr(capabilities, each)) for each in ("kinds", "calls", "features")]
    words = [f"{each}={','.join(sorted(words)).replace(' ', '_') or NOTHING}" for each, words in sets]
    return " ".join(["hello", str(VERSION), name, *words, f"policy={'lru' if follows_policy else 'any'}"])


def hello_of(line: str) -> tuple[str, Capabilities, bool]:
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
