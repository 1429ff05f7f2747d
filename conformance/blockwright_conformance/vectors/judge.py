"""The judge: puts a manager that makes the choices of the LRU policy through a vector, and names the first difference.

Whoever takes blocks in another order is explored (``blockwright conform --impl``), where the specification follows.
"""

from typing import NamedTuple

from ..kv_cache.abstraction import differences
from ..kv_cache.adapter import ManagerAdapter, Observation
from ..kv_cache.world import Factory
from .calls import EITHER, STALE, Answer, asked
from .records import UNTOLD, Vector


class Judgement(NamedTuple):
    """What became of a vector: after how many steps, and the fault of the last one."""

    steps: int
    fault: str = ""


def judge(factory: Factory, vector: Vector) -> Judgement:
    adapter = factory(vector.config)
    for number, step in enumerate(vector.steps, 1):
        try:
            answer = asked(adapter, step.call)
            fault = difference(step.answer, answer)
        except Exception as error:
            return Judgement(number, f"expected {brief(step.answer)}, found {type(error).__name__}: {error}")
        if fault:
            return Judgement(number, f"expected {brief(step.answer)}, found {brief(answer)}: {fault}")
        if step.state is not None and (faults := shown_faults(adapter, vector, step.state)):
            return Judgement(number, "; ".join(faults))
    return Judgement(len(vector.steps))


def difference(wanted: Answer, answer: Answer) -> str:
    """Name the difference between an answer and the one expected; a reason binds only where its error is its own."""
    if answer.word != wanted.word and not (wanted.reason == EITHER and {answer.word, wanted.word} <= REFUSALS):
        return "another answer"
    if wanted.reason == STALE and not answer.reason.startswith(STALE):
        return "a stale hit has an error of its own"
    if wanted.word in REFUSALS or wanted._replace(reason="") == answer._replace(reason=""):
        return ""
    return "another length, count or block"


REFUSALS = frozenset(("refused", "error"))


def shown_faults(adapter: ManagerAdapter, vector: Vector, wanted: Observation) -> list[str]:
    try:
        return differences(wanted, adapter.observe(vector.requests)._replace(**UNTOLD))
    except Exception as error:
        return [f"the state cannot be shown: {type(error).__name__}: {error}"]


def brief(answer: Answer) -> str:
    empty = Answer(answer.word)
    rest = [f"{name}={value}" for name, value in answer._asdict().items() if value != getattr(empty, name)]
    return " ".join([answer.word, *rest])
