"""The laws as data: every law of the four parts, with its evidence."""

import inspect
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import CALL_LAWS
from blockwright_spec.manager.laws import (
    BLOCK_LAWS,
    EVENT_LAWS,
    LAWS,
    METRIC_LAWS,
    ORDER_LAWS,
    PAIR_LAWS,
    POLICY_LAWS,
    POLICY_STEP_LAWS,
    RESTART_LAWS,
    ROUTER_LAWS,
    STEP_LAWS,
)
from blockwright_spec.offload.chain_laws import CHAIN_LAWS, CHAIN_STEP_LAWS
from blockwright_spec.offload.directory import DIRECTORY_LAWS
from blockwright_spec.offload.tier_events import TOLD_LAWS
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS
from blockwright_spec.worker.storage_laws import STORAGE_LAWS

from . import data

NAMED = re.compile(r"\b[A-Z]+-[1-9]\d*\b")


@dataclass(frozen=True, slots=True)
class Family:
    """Laws that are checked together: of what, and by which rows of the report."""

    part: int
    of: str
    """What they are laws of."""
    counted: str
    """What is counted of the rows: ``states`` or ``transitions``."""
    kinds: tuple[str, ...]
    managers: tuple[str, ...] = ()
    """Only rows of these managers, if any are named, or of others than these if `others`."""
    others: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report in which these laws are checked."""
        found = data.rows(*self.kinds)
        return [row for row in found if not self.managers or (row["manager"] in self.managers) is not self.others]


TIERS = ("LRU", "ARC")
FAMILIES: tuple[tuple[Family, tuple[Any, ...]], ...] = (
    (Family(1, "every call of parts one to three that tests end in its middle", "transitions", ()), CALL_LAWS[:1]),
    (Family(1, "every altered input of a reader", "transitions", ("decoders",)), CALL_LAWS[1:]),
    (Family(1, "every state of the block machine that a state of some part is", "states", ("refinement",)), BLOCK_LAWS),
    (Family(1, "every state of a manager", "states", ("lockstep", "choices")), LAWS),
    (Family(1, "every step of a manager", "transitions", ("lockstep", "choices")), STEP_LAWS),
    (Family(1, "what is told, at every point of a history", "transitions", ("lockstep",)), EVENT_LAWS),
    (Family(1, "what a router answers, in every state", "states", ("lockstep",)), ROUTER_LAWS),
    (Family(1, "every step in which what happens is counted", "transitions", ("lockstep",)), METRIC_LAWS),
    (Family(1, "every call under an order of eviction", "transitions", ("policies",)), ORDER_LAWS),
    (Family(1, "every restart that tests play", "transitions", ()), RESTART_LAWS),
    (Family(1, "every state in which candidates are told apart", "states", ("lockstep",)), POLICY_LAWS),
    (Family(1, "every step in which candidates are told apart", "transitions", ("lockstep",)), POLICY_STEP_LAWS),
    (Family(1, "every pair of histories", "states", ("retention",)), PAIR_LAWS),
    (Family(2, "every state of block tables", "states", ("paged",)), PAGED_LAWS),
    (Family(2, "every call on block tables", "transitions", ("paged",)), PAGED_STEP_LAWS),
    (Family(3, "every state of a tier, alone or in a chain", "states", ("offload",)), TIER_LAWS),
    (Family(3, "every call on a tier", "transitions", ("offload",), TIERS), TIER_STEP_LAWS),
    (Family(3, "every directory opened again", "states", ("faults",), ("DiskStore",)), DIRECTORY_LAWS),
    (Family(3, "every state of a chain", "states", ("offload",), TIERS, True), CHAIN_LAWS),
    (Family(3, "every call on a chain", "transitions", ("offload",), TIERS, True), CHAIN_STEP_LAWS),
    (Family(3, "every call on a chain of which routers are told", "transitions", ("offload",), TIERS, True), TOLD_LAWS),
    (Family(4, "every step's inputs", "transitions", ("inputs machine", "worker")), INPUT_LAWS),
    (Family(4, "every call on the rows", "transitions", ("inputs machine", "worker")), ROW_LAWS),
    (Family(4, "every plan of random models in tests", "transitions", ()), STORAGE_LAWS),
)


@dataclass(frozen=True, slots=True)
class Law:
    """One law."""

    id: str
    family: Family
    statement: str
    more: str
    """What its docstring says beyond the sentence."""
    source: str
    chapter: str
    function: str


def read(family: Family, law: Any) -> Law:
    """Return a law of a list."""
    said = inspect.getdoc(law.holds) or ""
    sentence, _, more = said.partition("\n\n")
    statement = " ".join(sentence.partition(": ")[2].split())
    chapter = law.holds.__module__.partition(".")[2]
    return Law(law.id, family, statement, more, law.source, chapter, law.holds.__name__)


@cache
def by_id() -> dict[str, Law]:
    """Return every law by its id, in the order of the lists."""
    return {law.id: read(family, law) for family, listed in FAMILIES for law in listed}


def label(name: str) -> str:
    """Return the label of a law's entry."""
    return f"law-{name.lower()}"


def page_of(label: str) -> str:
    """Return the document that holds a law's entry."""
    return page(by_id()[label.removeprefix("law-").upper()].family.part)


def page(part: int) -> str:
    """Return the document of the laws of a part."""
    return f"book/laws/part-{part}"
