"""The scribe: a manager that answers as the specification says, and writes down what it was asked.

An action of the explorer is performed on it as on any manager; the calls that come of it, with their answers, are the
steps of a vector.
"""

from typing import Any, Self

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Publication, Step, When
from blockwright_spec.manager.state import Hit, Running, State, Waiting
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Prefix

from ..kv_cache.abstraction import expected
from ..kv_cache.actions import Action, meaning, perform
from ..kv_cache.adapter import Explained, Found, Observation, Planned, Served
from ..kv_cache.outcome import ManagerOutcome
from ..kv_cache.parts import OTHER, names_of
from .calls import NOBODY, Answer, Call, Tables


class WrongCallError(Exception):
    """A call is wrong, as the specification says."""


class Scribe:
    """Answers the calls of one action as the specification tells."""

    errors: tuple[type[Exception], ...] = (WrongCallError,)
    stale: tuple[type[Exception], ...] = (WrongCallError,)
    follows_policy = True

    def __init__(self, state: State, told: ManagerOutcome) -> None:
        self.state, self.told = state, told
        self.steps: list[tuple[Call, Answer]] = []
        self.prefixes: dict[str, Prefix] = {
            name: request.prefix
            for name, request in zip(names_of(state), state.requests, strict=True)
            if isinstance(request, Running | Waiting)
        }

    def copy(self) -> Self:
        """Return a twin."""
        return type(self)(self.state, self.told)

    def say(self, word: str, *values: Any, answer: Answer | None = None) -> Answer:
        """Write down a call with its answer; a wrong call raises what a manager would.

        Raises:
            WrongCallError: the specification says that the call is wrong.
        """
        refusal = self.told.refusal
        if answer is None and refusal is not None:
            answer = Answer("error" if When.INVALID in refusal.reason.value else "refused", reason=refusal.reason.name)
        answer = answer or Answer("ok")
        self.steps.append((Call(word, values), answer))
        if answer.word == "error":
            raise WrongCallError(answer.reason)
        return answer

    def send(self, name: str, prefix: Prefix) -> None:
        self.prefixes[name] = prefix
        self.say("send", name, *prefix, answer=Answer("ok"))

    def forget(self, name: str) -> None:
        self.prefixes.pop(name, None)
        self.say("forget", name, answer=Answer("ok"))

    def find(self, name: str) -> Found:
        hit = found(self.state, self.prefixes[name], LRU) if self.state.config.caching else Hit()
        self.say("find", name, answer=Answer("hit", hit.length, hit.tables))
        return Found(hit.length, hit.tables)

    def allocate(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Tables | None:
        options = step.lookahead, int(step.publication is Publication.LATER), step.drafts, step.external, step.encoder
        new = self.told.done[0].new if self.told.steps else ()
        answer = Answer("blocks", tables=new) if self.told.steps else None
        asked = (name, computed, step.new, length, hit_of or NOBODY, *options, int(step.whole), step.reserve)
        return new if self.say("allocate", *asked, answer=answer).word == "blocks" else None

    def plan(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Planned:
        """Refuse to plan: `taken` has an action without its plan.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("plan: vectors ask for slots, they do not plan them")

    def commit(self, name: str) -> Tables:
        """Refuse to commit.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("commit: vectors ask for slots, they do not plan them")

    def start(self) -> None:
        self.say("start")

    def settle(self, rejected: tuple[tuple[str, int], ...]) -> None:
        self.say("settle", rejected)

    def finish_load(self, name: str, count: int) -> None:
        self.say("loaded", name, count)

    def allocate_each(self, asks: tuple[tuple[str, int, int], ...], lookahead: int) -> tuple[tuple[Served, ...], bool]:
        served, refusal = tuple([step.new for step in self.told.done]), self.told.refusal
        is_wrong = refusal is not None and When.INVALID in refusal.reason.value
        answer = None if is_wrong else Answer("served", served=served, whole=refusal is None)
        self.say("batch", lookahead, asks, answer=answer)
        return tuple([Served(new) for new in served]), refusal is None

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.say("append", name, tokens)

    def publish(self, name: str, end: int) -> None:
        self.say("publish", name, end)

    def trim(self, name: str, end: int) -> None:
        self.say("trim", name, end)

    def free(self, name: str) -> None:
        self.say("free", name)

    def fork(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        return self.say("fork", name, child, computed, *prefix).word == "ok"

    def take_copies(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        groups = range(len(self.state.config.groups))
        copies = tuple([tuple([copy[1:] for copy in self.state.copies if copy[0] == group]) for group in groups])
        self.say("copies", answer=Answer("copies", copies=copies))
        return copies

    def reset(self) -> bool:
        return self.say("reset").word == "ok"

    def common_prefix(self, name: str, running: int) -> tuple[int, ...]:
        slot, groups = names_of(self.state).index(name), range(len(self.state.config.groups))
        counts = tuple([common_prefix_blocks(self.state, slot, group, running) for group in groups])
        self.say("common", name, running, answer=Answer("counts", counts=counts))
        return counts

    def pin(self, blocks: tuple[int, ...]) -> None:
        """Refuse to pin.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("pin: vectors do not pin")

    def explain(self, name: str) -> Explained:
        """Refuse to explain.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("explain: vectors do not ask why")

    def observe(self, names: tuple[str, ...]) -> Observation:
        return expected(self.state)

    def check(self) -> None:
        """Do nothing: the specification's own laws are checked elsewhere."""


def taken(state: State, action: Action) -> tuple[list[tuple[Call, Answer]], ManagerOutcome]:
    """Give the calls that an action comes to, with the right answers, and what the specification tells of it.

    Raises:
        AssertionError: the calls do not come to what the specification tells.
    """
    told = meaning(state, action)
    scribe = Scribe(state, told)
    unplanned = action._replace(planned=False) if getattr(action, "planned", False) else action  # type: ignore[call-arg]
    reply = perform(scribe, unplanned, state)
    if (reply.refused or reply.error is not None) != (told.refusal is not None):
        raise AssertionError(f"{action}: the calls came to {reply}, the specification tells {told.refusal}")
    return scribe.steps, told


def questions(state: State, prompts: tuple[Prefix, ...]) -> list[tuple[Call, Answer]]:
    """Give questions that change nothing, with the right answers: lookups of prompts, and what requests share."""
    scribe = Scribe(state, ManagerOutcome(state, ()))
    for prefix in prompts if state.config.caching else ():
        scribe.send(OTHER, prefix)
        scribe.find(OTHER)
    if scribe.steps:
        scribe.forget(OTHER)
    for name, request in zip(names_of(state), state.requests, strict=True):
        if isinstance(request, Running):
            for count in range(1, len(state.requests) + 1):
                scribe.common_prefix(name, count)
    return scribe.steps
