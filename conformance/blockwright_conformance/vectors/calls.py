"""Calls and answers without Python: plain names, integers and lists, the same in a vector and on the wire.

A call represents one method of `adapter.ManagerAdapter`. ``calls.toml`` lists its arguments; those with a default may
be left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.outcomes import Publication
from blockwright_spec.reads import Prefix

from ..kv_cache.adapter import Asks, Batch, Copies, Found, ManagerAdapter, Served, Tables
from ..kv_cache.parts import step_of
from ..kv_cache.scopes import rows_of


class Field(NamedTuple):
    name: str
    shape: str = "count"
    """A "count" (integer), a "name", "tokens" (integers), "pairs" (of a name and integers), or of an answer its own."""
    default: int | None = None
    """The value that stands for it where it is left out; None: it is never left out."""


def field_of(text: str) -> Field:
    """Return a field of the file: ``name:shape=default``."""
    named, _, default = text.partition("=")
    name, _, shape = named.partition(":")
    return Field(name, shape or "count", int(default) if default else None)


FILE = rows_of(__file__)
SIGNATURES, ANSWERS = (
    {word: tuple(map(field_of, texts)) for word, texts in FILE[part].items()} for part in ("calls", "answers")
)
"""The fields of each call, and of each answer, by their words."""
SILENT: dict[str, str] = FILE["silent"]
STEP = tuple([each.name for each in SIGNATURES["allocate"] if each.default is not None])
"""What `allocate` may ask for beyond new tokens."""

NOBODY = "-"
"""The name of no request: `hit_of` where a call brings no hit."""


class Call(NamedTuple):
    """A call by its word, with a value for each field of its signature."""

    word: str
    values: tuple[Any, ...] = ()

    def arguments(self) -> dict[str, Any]:
        return {field.name: value for field, value in zip(SIGNATURES[self.word], self.values, strict=True)}

    def stated(self) -> list[tuple[Field, Any]]:
        pairs = zip(SIGNATURES[self.word], self.values, strict=True)
        return [(field, value) for field, value in pairs if field.default is None or value != field.default]


class Answer(NamedTuple):
    """The answer to a call; `ANSWERS` lists which fields count under which word."""

    word: str
    length: int = 0
    tables: Tables = ()
    served: tuple[Tables, ...] = ()
    """New entries of each request that was served."""
    whole: bool = True
    copies: Copies = ()
    counts: tuple[int, ...] = ()
    reason: str = ""


STALE, EITHER = "HIT_STALE", "TOO_LONG"
"""The reason that has an error of its own, and the one that may be answered by a refusal or by an error."""


def asked(adapter: ManagerAdapter, call: Call) -> Answer:
    try:
        return answered(adapter, call)
    except adapter.stale as error:
        return Answer("error", reason=f"{STALE}: {error}")
    except adapter.errors as error:
        return Answer("error", reason=f"{type(error).__name__}: {error}")


def answered(adapter: ManagerAdapter, call: Call) -> Answer:
    given = call.arguments()
    match call.word:
        case "send":
            adapter.send(given["request"], (given["extra"], given["tokens"]))
        case "find":
            return Answer("hit", *adapter.find(given["request"]))
        case "allocate":
            hit_of = None if given["hit_of"] == NOBODY else given["hit_of"]
            step = step_of(given["new"], **{name: given[name] for name in STEP})
            new = adapter.allocate(given["request"], given["computed"], step, given["hit_length"], hit_of)
            return Answer("refused") if new is None else Answer("blocks", tables=new)
        case "batch":
            served, whole = adapter.allocate_each(given["asks"], given["lookahead"])
            return Answer("served", served=tuple([each.new for each in served]), whole=whole)
        case "fork":
            prefix = given["extra"], given["tokens"]
            forked = adapter.fork(given["request"], given["child"], prefix, given["computed"])
            return Answer("ok" if forked else "refused")
        case "copies":
            return Answer("copies", copies=adapter.take_copies())
        case "reset":
            return Answer("ok" if adapter.reset() else "refused")
        case "common":
            return Answer("counts", counts=adapter.common_prefix(given["request"], given["running"]) or ())
        case word:
            getattr(adapter, SILENT[word])(*call.values)
    return Answer("ok")


def saying(word: str) -> Callable[..., None]:
    def method(self: "ByCalls", *values: Any) -> None:
        self.said(word, *values)

    return method


class ByCalls:
    """A manager that is asked by calls: the other way round, each method makes one call and reads its answer."""

    def said(self, word: str, *values: Any, may: tuple[str, ...] = ("ok",)) -> Answer:
        raise NotImplementedError

    def send(self, name: str, prefix: Prefix) -> None:
        self.said("send", name, *prefix)

    def find(self, name: str) -> Found:
        hit = self.said("find", name, may=("hit",))
        return Found(hit.length, hit.tables)

    def allocate(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Tables | None:
        later = int(step.publication is Publication.LATER)
        options = step.lookahead, later, step.drafts, step.external, step.encoder, int(step.whole), step.reserve
        values = computed, step.new, length, hit_of or NOBODY, *options, step.checkpoint
        answer = self.said("allocate", name, *values, may=("blocks", "refused"))
        return answer.tables if answer.word == "blocks" else None

    def allocate_each(self, asks: Asks, lookahead: int) -> Batch:
        answer = self.said("batch", lookahead, asks, may=("served",))
        return tuple([Served(tables) for tables in answer.served]), answer.whole

    def fork(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        return self.said("fork", name, child, computed, *prefix, may=("ok", "refused")).word == "ok"

    def take_copies(self) -> Copies:
        return self.said("copies", may=("copies",)).copies

    def reset(self) -> bool:
        return self.said("reset", may=("ok", "refused")).word == "ok"

    def common_prefix(self, name: str, running: int) -> tuple[int, ...]:
        return self.said("common", name, running, may=("counts",)).counts

    start, settle, finish_load, append, publish, publish_before, trim, free, free_before, forget = map(saying, SILENT)

    def unasked(self, *_: Any) -> NoReturn:
        """Refuse a line that is no call of the protocol."""
        raise NotImplementedError("not a call of the protocol: plan, commit, holds from outside, explain, hints")

    plan = commit = pin = take = unpin = explain = lease = count_on = retain = release_prefix = advance_time = unasked
    touch = unasked

    def check(self) -> None:
        """Do nothing: a manager in another process checks itself, or not."""
