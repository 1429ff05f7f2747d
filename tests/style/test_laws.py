"""Property: every law has a name and one sentence, and stands in the one list that all others read.

How: the chapters are parsed for functions `law_*`; those and the lists must hold the same functions, each opening
with `NAME-1: sentence.`, under a name of its own, and with a source.
Not covered: whether the laws are true (conformance), or the sentence says what the function does (reading).
"""

import ast
import re
from pathlib import Path

import pytest

from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import CALL_LAWS, Law
from blockwright_spec.manager.laws import (
    BLOCK_LAWS,
    EVENT_LAWS,
    LAWS,
    METRIC_LAWS,
    ORDER_LAWS,
    RESTART_LAWS,
    RETENTION_LAWS,
    ROUTER_LAWS,
    STEP_LAWS,
)
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

ROOT = Path(__file__).resolve().parents[2]
LISTED = (
    *CALL_LAWS,
    *BLOCK_LAWS,
    *LAWS,
    *STEP_LAWS,
    *EVENT_LAWS,
    *ROUTER_LAWS,
    *METRIC_LAWS,
    *ORDER_LAWS,
    *RESTART_LAWS,
    *RETENTION_LAWS,
    *PAGED_LAWS,
    *PAGED_STEP_LAWS,
    *OFFLOAD_LAWS,
    *PART_FOUR_LAWS,
)

each_law = pytest.mark.parametrize("law", LISTED, ids=lambda law: law.holds.__name__)


def defined() -> list[str]:
    """The names of all functions law_* in all chapters."""
    chapters = sorted((ROOT / "spec/blockwright_spec").rglob("*.py"))
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in chapters)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return sorted(node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("law_"))


def test_every_law_is_listed_once() -> None:
    assert sorted(law.holds.__name__ for law in LISTED) == defined()


def test_names_are_unique() -> None:
    names = [law.id for law in LISTED]
    assert sorted(set(names)) == sorted(names)


@each_law
def test_law_has_a_name_a_sentence_and_a_source(law: Law) -> None:
    assert re.fullmatch(r"[A-Z]+-[1-9]\d*", law.id)
    first_line = (law.holds.__doc__ or "").splitlines()[0]
    assert re.fullmatch(rf"{law.id}: [^\n]+[.]", first_line)
    assert law.statement
    assert law.source
