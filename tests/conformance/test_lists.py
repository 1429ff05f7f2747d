"""Property: the lists that the gates go by are whole: nothing of the product is left out of them without a reason.

How: sources against the targets of mutation, known bugs against laws, places and the damage that they do.
Not covered: what the gates then find (`make conform PROFILE=pr`, `make conform-checks`).
"""

from pathlib import Path

import blockwright
from blockwright_lab.book.law_tags import law_ids
from blockwright_lab.contracts.gate import CONTRACTS
from blockwright_lab.known_bugs.bugs import BUGS, NOT_POSSIBLE
from blockwright_lab.known_bugs.changes import edited
from blockwright_lab.mutation import survivors
from blockwright_lab.mutation.planted import FAULTS, LAWS
from blockwright_lab.mutation.targets import MEDIA, TARGETS, all_mutations, target
from blockwright_lab.numerics.damage_gate import HARMLESS, SHOWN
from blockwright_spec.block_machine import STEPS

SOURCES = Path(blockwright.__path__[0])
TOLD = "HASH-1 HASH-2 HASH-3 STAT-1 DEMAND-1 REFUSE-1 REFUSE-2 LOOKUP-1 PLAN-1 PLAN-2 STORE-1".split()
"""What trials and comparisons are named by that are no laws of the book."""


def test_every_source_is_mutated_once_or_left_out_with_a_reason() -> None:
    files = [file for each in TARGETS for file in each.files]
    assert len(files) == len(set(files))
    core = {path for folder in ("core", "worker") for path in (SOURCES / folder).rglob("*.py")}
    core |= {SOURCES / name for name in ("observe/picture.py", "observe/checkpoint.py")}
    core.add(SOURCES / "engines/vllm/single_type_managers.py")
    assert {str(path.relative_to(SOURCES)) for path in core if path.name != "__init__.py"} == set(target("core").files)
    offload = {path.relative_to(SOURCES).as_posix() for path in (SOURCES / "offload").rglob("*.py")}
    named = {*target("offload").files, *(f"offload/{name}.py" for each in MEDIA for name in each.split())}
    assert {name for name in offload ^ named if "/tiers/" not in name} == set()
    assert all((survivors.TREE / file.partition("::")[0]).exists() for each in TARGETS for file in each.tests)
    digests = [(each.of, each.digest) for each in all_mutations()]
    assert len(set(digests)) == len(digests)


BY_HAND = {"BLOCK": "block_machine", "LAYOUT": "storage", "DISK": "directory", "CALL": "directory", "KEEP": "keeping"}
BY_HAND |= {"SHARE": "retention", "HINT": "retention"}
"""The tests of the specification that show laws broken which no scope can break, by the names of the laws."""


def test_every_law_alone_refuses_something() -> None:
    """A known bug, a planted fault, or a state or history by hand: a law that is weakened to nothing is noticed."""
    left = [law for law in law_ids() if law not in {bug.law for bug in BUGS} | LAWS.keys()]
    files = {law: survivors.TREE / f"tests/spec/test_{BY_HAND[law.partition('-')[0]]}.py" for law in left}
    assert [law for law, file in files.items() if law not in file.read_text(encoding="utf-8")] == []
    assert LAWS.keys() <= set(law_ids())


def test_survivors_have_a_reason() -> None:
    found = [why for listed in survivors.survivors().values() for held in listed.values() for why in held.values()]
    assert [why for why in found if len(why.split()) < 3] == []


def test_known_bugs_name_laws_and_differ() -> None:
    laws = {*law_ids(), *TOLD}
    assert [bug.id for bug in BUGS if bug.law not in laws and not bug.law.startswith("REF-0")] == []
    assert (
        len(BUGS) == len({bug.id for bug in BUGS}) == len({(bug.place, *edited(bug.changes).items()) for bug in BUGS})
    )
    assert not {bug.id[:3] for bug in BUGS} & set(NOT_POSSIBLE)


def test_known_bugs_do_damage_or_are_said_not_to() -> None:
    assert sorted([*SHOWN, *HARMLESS]) == sorted(bug.id for bug in BUGS)
    assert all(HARMLESS.values())


def test_contracts_and_planted_faults_name_each_other_and_every_step() -> None:
    refuting = {fault["refuted_by"] for fault in FAULTS if "part" not in fault}
    assert refuting <= {each.statement for each in CONTRACTS}
    assert {step.__name__ for step in STEPS} <= {statement.split()[0] for statement in refuting}
