"""The judge: puts a manager through a vector, and names the first difference.

A manager that makes the choices of the LRU policy is held to every block id. Any other may name blocks as it likes: its
ids are matched with the vector's as they come, and the two names of blocks that are alike (both free, both with the
same key or none) may be exchanged. Where it makes a choice that no exchange explains, but that is legal, the histories
part, and the rest of the vector does not apply to it.
"""

from typing import NamedTuple

from blockwright_spec.manager.state import NULL, Table

from ..kv_cache.abstraction import differences
from ..kv_cache.adapter import ManagerAdapter, Observation, Tables
from ..kv_cache.world import Factory
from .calls import EITHER, STALE, Answer, Call, asked
from .records import UNTOLD, Vector, VectorStep


class Judgement(NamedTuple):
    """What became of a vector: no fault, a fault at a step, or parted from it at a step."""

    steps: int
    fault: str = ""
    parted: bool = False


class PartedError(Exception):
    """The manager made another legal choice than the vector."""


class DifferenceError(Exception):
    """The manager differs from the vector."""


class Matching:
    """Which of the manager's blocks corresponds to which of the vector's."""

    def __init__(self, num_blocks: int, state: Observation) -> None:
        self.block_of = list(range(num_blocks))
        self.name_of = list(range(num_blocks))
        self.state = state
        self.hits: dict[str, Tables] = {}

    def exchange(self, one: int, other: int) -> None:
        blocks = self.block_of
        blocks[one], blocks[other] = blocks[other], blocks[one]
        self.name_of[blocks[one]], self.name_of[blocks[other]] = one, other

    def key(self, block: int) -> object:
        return self.state.keys[block] if self.state.keys else None

    def match(self, wanted: int, block: int, legal: frozenset[int], by_key: bool) -> None:
        """Match a block of the manager with one of the vector's, which it may use, and by which the vector goes on."""
        if (wanted == NULL) != (block == NULL) or not 0 <= block < len(self.name_of):
            raise DifferenceError("a null block against one that is not, or no block of the pool")
        name = self.name_of[block]
        if name == wanted:
            return
        if name not in legal if not by_key else self.key(name) != self.key(wanted):
            raise DifferenceError(
                f"block {block} may not be {'served: it holds something else' if by_key else 'taken'}"
            )
        free = self.state.queue or ()
        if self.key(name) != self.key(wanted) or name not in free or wanted not in free:
            raise PartedError
        self.exchange(name, wanted)

    def match_all(self, wanted: Tables, given: Tables, legal: frozenset[int], by_key: bool = False) -> None:
        if tuple(map(len, wanted)) != tuple(map(len, given)):
            raise DifferenceError("another number of entries")
        for wants, blocks in zip(wanted, given, strict=True):
            for want, block in zip(wants, blocks, strict=True):
                self.match(want, block, legal, by_key)

    def legal(self, call: Call, requests: tuple[str, ...]) -> frozenset[int]:
        """Return the blocks that may be taken: free ones that no hit adopts, and those that a request gives back."""
        given = call.arguments()
        adopted = self.hits.get(given.get("hit_of", ""), ())
        askers = {given["request"]} if "request" in given else {name for name, *_ in given["asks"]}
        own = [tables for name, tables in zip(requests, self.state.tables, strict=True) if name in askers and tables]
        free = set(self.state.queue or ()).difference(*adopted)
        return frozenset(free.union(*(table for tables in own for table in tables)))

    def translated(self, shown: Observation) -> Observation:
        name, order = self.name_of, self.block_of

        def tables(groups: tuple[Table, ...] | None) -> tuple[Table, ...] | None:
            return None if groups is None else tuple([tuple([name[block] for block in table]) for table in groups])

        return shown._replace(
            tables=tuple([tables(groups) for groups in shown.tables]),
            queue=shown.queue and tuple([name[block] for block in shown.queue]),
            references=shown.references and tuple([shown.references[block] for block in order]),
            keys=shown.keys and tuple([shown.keys[block] for block in order]),
            states=shown.states and tuple([tables(groups) for groups in shown.states]),
            copies=shown.copies and tuple([(group, name[one], name[two]) for group, one, two in shown.copies]),
        )


def blank(vector: Vector) -> Observation:
    blocks = vector.config.num_blocks
    none = (None,) * len(vector.requests)
    return Observation(none, tuple(range(1, blocks)), (0,) * blocks, (None,) * blocks)


def judge(factory: Factory, vector: Vector) -> Judgement:
    adapter = factory(vector.config)
    matching = Matching(vector.config.num_blocks, blank(vector))
    for number, step in enumerate(vector.steps, 1):
        try:
            answer = asked(adapter, step.call)
        except Exception as error:
            return Judgement(number, f"expected {brief(step.answer)}, found {type(error).__name__}: {error}")
        try:
            compare(adapter, matching, vector, step, answer)
        except PartedError:
            return Judgement(number, parted=True)
        except DifferenceError as error:
            return Judgement(number, f"expected {brief(step.answer)}, found {brief(answer)}: {error}")
        if step.state is not None:
            matching.state = step.state
            if faults := shown_faults(adapter, matching, vector, step.state):
                return Judgement(number, "; ".join(faults))
    return Judgement(len(vector.steps))


def compare(adapter: ManagerAdapter, matching: Matching, vector: Vector, step: VectorStep, answer: Answer) -> None:
    """Compare an answer with the one expected, as far as it is not a choice that is left open."""
    wanted = step.answer
    if answer.word != wanted.word and not (wanted.reason == EITHER and {answer.word, wanted.word} <= REFUSALS):
        raise DifferenceError("another answer")
    if wanted.reason == STALE and not answer.reason.startswith(STALE):
        raise DifferenceError("a stale hit has an error of its own")
    if (answer.length, answer.whole, answer.counts) != (wanted.length, wanted.whole, wanted.counts):
        raise DifferenceError("another length or count")
    if len(answer.served) != len(wanted.served):
        raise DifferenceError("another number of requests served")
    if adapter.follows_policy:
        if (answer.tables, answer.served, answer.copies) != (wanted.tables, wanted.served, wanted.copies):
            raise DifferenceError("other blocks")
        return
    if wanted.word == "hit":
        matching.hits[step.call.values[0]] = wanted.tables
        matching.match_all(wanted.tables, answer.tables, frozenset(), by_key=True)
    elif wanted.word in ("blocks", "served"):
        legal = matching.legal(step.call, vector.requests)
        matching.match_all(wanted.tables, answer.tables, legal)
        for wants, tables in zip(wanted.served, answer.served, strict=True):
            matching.match_all(wants, tables, legal)


REFUSALS = frozenset(("refused", "error"))


def shown_faults(adapter: ManagerAdapter, matching: Matching, vector: Vector, wanted: Observation) -> list[str]:
    try:
        shown = adapter.observe(vector.requests)._replace(**UNTOLD)
        if adapter.follows_policy:
            return differences(wanted, shown)
        return differences(wanted, matching.translated(shown), ordered=False)
    except Exception as error:
        return [f"the state cannot be shown: {type(error).__name__}: {error}"]


def brief(answer: Answer) -> str:
    empty = Answer(answer.word)
    rest = [f"{name}={value}" for name, value in answer._asdict().items() if value != getattr(empty, name)]
    return " ".join([answer.word, *rest])
