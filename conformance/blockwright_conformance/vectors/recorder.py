"""The scribe: a manager that answers as the specification says, and writes down what it was asked.

An action of the explorer is performed on it as on any manager; the calls that come of it, with their answers, are the
steps of a vector.
"""

from typing import Any, Self

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Step, When
from blockwright_spec.manager.state import Hit, Running, State, Waiting
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Prefix

from ..kv_cache.abstraction import expected
from ..kv_cache.actions import Action, meaning, perform
from ..kv_cache.adapter import Found, Observation, Served
from ..kv_cache.outcome import ManagerOutcome
from ..kv_cache.parts import OTHER, names_of
from .calls import Answer, ByCalls, Call, Tables


class WrongCallError(Exception):
    """A call is wrong, as the specification says."""


class Scribe(ByCalls):
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

    def said(self, word: str, *values: Any, may: tuple[str, ...] = ("ok",), answer: Answer | None = None) -> Answer:
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
        self.said("send", name, *prefix, answer=Answer("ok"))

    def forget(self, name: str) -> None:
        self.prefixes.pop(name, None)
        self.said("forget", name, answer=Answer("ok"))

    def find(self, name: str) -> Found:
        hit = found(self.state, self.prefixes[name], LRU) if self.state.config.caching else Hit()
        self.said("find", name, answer=Answer("hit", hit.length, hit.tables))
        return Found(hit.length, hit.tables)

    def allocate(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Tables | None:
        new = self.told.done[0].new if self.told.steps else ()
        answer = Answer("blocks", tables=new) if self.told.steps else None
        asked = self.asking(name, computed, step, length, hit_of)
        return new if self.said("allocate", *asked, answer=answer).word == "blocks" else None

    def allocate_each(self, asks: tuple[tuple[str, int, int], ...], lookahead: int) -> tuple[tuple[Served, ...], bool]:
        served, refusal = tuple([step.new for step in self.told.done]), self.told.refusal
        is_wrong = refusal is not None and When.INVALID in refusal.reason.value
        answer = None if is_wrong else Answer("served", served=served, whole=refusal is None)
        self.said("batch", lookahead, asks, answer=answer)
        return tuple([Served(new) for new in served]), refusal is None

    def take_copies(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        groups = range(len(self.state.config.groups))
        copies = tuple([tuple([copy[1:] for copy in self.state.copies if copy[0] == group]) for group in groups])
        self.said("copies", answer=Answer("copies", copies=copies))
        return copies

    def common_prefix(self, name: str, running: int) -> tuple[int, ...]:
        slot, groups = names_of(self.state).index(name), range(len(self.state.config.groups))
        counts = tuple([common_prefix_blocks(self.state, slot, group, running) for group in groups])
        self.said("common", name, running, answer=Answer("counts", counts=counts))
        return counts

    def observe(self, names: tuple[str, ...]) -> Observation:
        return expected(self.state)


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
