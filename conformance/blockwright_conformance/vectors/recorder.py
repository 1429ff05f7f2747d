"""The recorder: a manager that answers as the specification does, and writes down its calls.

An action of the explorer is performed on it as on any manager; the calls that come of it, with their answers, are the
steps of a vector.
"""

from typing import Any, Self

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import When
from blockwright_spec.manager.state import Hit, Running, State, Waiting
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Prefix

from ..kv_cache.abstraction import expected
from ..kv_cache.actions import meaning, perform
from ..kv_cache.adapter import Observation
from ..kv_cache.outcome import ManagerOutcome
from ..kv_cache.parts import OTHER, names_of
from .calls import Answer, ByCalls, Call


class WrongCallError(Exception):
    """A call is wrong by the specification."""


class Recorder(ByCalls):
    """Answers the calls of one action as the specification does."""

    errors: tuple[type[Exception], ...] = (WrongCallError,)
    stale: tuple[type[Exception], ...] = (WrongCallError,)
    follows_policy = True

    def __init__(self, state: State, outcome: ManagerOutcome) -> None:
        self.state, self.outcome = state, outcome
        self.steps: list[tuple[Call, Answer]] = []
        self.prefixes: dict[str, Prefix] = {
            name: request.prefix
            for name, request in zip(names_of(state), state.requests, strict=True)
            if isinstance(request, Running | Waiting)
        }

    def copy(self) -> Self:
        return type(self)(self.state, self.outcome)

    def said(self, word: str, *values: Any, may: tuple[str, ...] = ("ok",)) -> Answer:
        """Write down a call with its answer; a wrong call raises what a manager would."""
        answer = self.question(word, values) or self.step(word)
        self.steps.append((Call(word, values), answer))
        if answer.word == "error":
            raise WrongCallError(answer.reason)
        return answer

    def question(self, word: str, values: tuple[Any, ...]) -> Answer | None:
        """Return the answer to a call that is never refused; except for copies, it is no step of the specification."""
        state, groups = self.state, range(len(self.state.config.groups))
        match word, values:
            case "send", (name, *prefix):
                self.prefixes[name] = tuple(prefix)
                return Answer("ok")
            case "forget", (name,):
                self.prefixes.pop(name, None)
                return Answer("ok")
            case "find", (name,):
                hit = found(state, self.prefixes[name], LRU) if state.config.caching else Hit()
                return Answer("hit", hit.length, hit.tables)
            case "copies", _:
                copies = [tuple([copy[1:] for copy in state.copies if copy[0] == group]) for group in groups]
                return Answer("copies", copies=tuple(copies))
            case "common", (name, running):
                slot = names_of(state).index(name)
                return Answer("counts", counts=tuple([common_prefix_blocks(state, slot, at, running) for at in groups]))
        return None

    def step(self, word: str) -> Answer:
        refusal, done = self.outcome.refusal, self.outcome.done
        is_wrong = refusal is not None and When.INVALID in refusal.reason.value
        if word == "batch" and not is_wrong:
            return Answer("served", served=tuple([step.new for step in done]), whole=refusal is None)
        if refusal is not None:
            return Answer("error" if is_wrong else "refused", reason=refusal.reason.name)
        return Answer("blocks", tables=done[0].new) if word == "allocate" else Answer("ok")

    def observe(self, names: tuple[str, ...]) -> Observation:
        return expected(self.state)


def taken(state: State, action: Any) -> tuple[list[tuple[Call, Answer]], ManagerOutcome]:
    """Return the calls of an action, with the right answers, and its outcome by the specification."""
    outcome = meaning(state, action)
    recorder = Recorder(state, outcome)
    unplanned = action._replace(planned=False) if getattr(action, "planned", False) else action
    reply = perform(recorder, unplanned, state)
    if (reply.refused or reply.error is not None) != (outcome.refusal is not None):
        raise AssertionError(f"{action}: the calls came to {reply}, the specification says {outcome.refusal}")
    return recorder.steps, outcome


def questions(state: State, prompts: tuple[Prefix, ...]) -> list[tuple[Call, Answer]]:
    """Return questions that change nothing, with the right answers: lookups of prompts, and what requests share."""
    recorder = Recorder(state, ManagerOutcome(state, ()))
    for prefix in prompts if state.config.caching else ():
        recorder.send(OTHER, prefix)
        recorder.find(OTHER)
    if recorder.steps:
        recorder.forget(OTHER)
    for name, request in zip(names_of(state), state.requests, strict=True):
        if isinstance(request, Running):
            for count in range(1, len(state.requests) + 1):
                recorder.common_prefix(name, count)
    return recorder.steps
