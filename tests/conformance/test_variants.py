"""Property: a variant is the implementation with one place changed, and leaves everything else alone.

How: variants are loaded beside the real package, unchanged, with a change, with changes that do not fit any
more and with one that breaks the import; classes, modules and finders are compared before and after.
Not covered: what variants are used for (test_known_bugs.py, test_mutants.py).
"""

import difflib
import re
import sys
from pathlib import Path

import pytest

import blockwright
from blockwright_lab.known_bugs.changes import Change, StaleChangeError, edited, source_of
from blockwright_lab.known_bugs.instrumented import VariantAdapter, adapter_on
from blockwright_lab.known_bugs.variants import load, variant
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Full, Group

CHANGE = Change("BlockStore.__init__", "self._num_free: i64 = count - 1", "self._num_free = count")


def modules() -> dict[str, object]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "blockwright"}


def test_everything_is_as_before() -> None:
    before, finders = modules(), sys.meta_path[:]
    variant(CHANGE)
    assert modules() == before
    assert sys.meta_path == finders
    assert sys.modules["blockwright"] is blockwright


def test_a_failed_import_leaves_everything_as_before() -> None:
    before, finders = modules(), sys.meta_path[:]
    with pytest.raises(ZeroDivisionError):
        load({"core/store.py": compile("1 // 0", "store.py", "exec")})
    assert modules() == before
    assert sys.meta_path == finders


def test_a_variant_has_its_own_classes_and_is_consistent() -> None:
    package = variant()
    assert package.KVCacheManager is not blockwright.KVCacheManager
    assert package.errors.StaleHitError is not blockwright.errors.StaleHitError
    assert package.core.manager.KVCacheManager is package.KVCacheManager
    assert package.core.store.StaleHitError is package.errors.StaleHitError
    assert package.core.group.FullAttentionSpec is package.FullAttentionSpec
    assert package is not variant()


def test_a_variant_is_uncompiled() -> None:
    package = variant()
    for name in ("store", "index", "manager"):
        module = getattr(package.core, name)
        assert Path(module.__file__).suffix == ".py"
    assert package.core.store.BlockStore._take.__code__.co_filename.endswith("store.py")


def test_a_change_changes_the_variant_alone() -> None:
    assert variant(CHANGE).BlockPool(4).num_free == 4
    assert variant().BlockPool(4).num_free == 3
    assert blockwright.BlockPool(4).num_free == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Change("BlockStore.__init__", "count - 2", bug="B9"), r"B9: `count - 2` stands 0 times.*nearest:\s+count - 1"),
        (Change("BlockStore.__init__", "count - 1", "count"), "stands 2 times, not 1"),
        (Change("BlockStore.__init__", "PrefixIndex(count)", "", times=2), "not 2"),
        (Change("__post_init__", "super().__post_init__()"), "stands in each of .*: name the class"),
        (Change("take_two", "self._evict(block, 1)"), "no function take_two; nearest: .* it stands in: .*take_one"),
        (Change("BlockStore._take", "self._evict(block, 1)"), "it stands in: core.store.BlockStore._fill_ranked"),
    ],
    ids=["other", "often", "once", "anywhere", "nowhere", "elsewhere"],
)
def test_a_stale_change_names_what_is_nearest(change: Change, told: str) -> None:
    with pytest.raises(StaleChangeError, match=re.compile(told, re.DOTALL)):
        edited([change])


def test_changes_of_one_source_follow_each_other() -> None:
    later = Change("BlockStore.__init__", "self._num_free = count", "self._num_free += 1", "after")
    assert variant(CHANGE, later).BlockPool(4).num_free == 5


def test_code_is_found_by_its_tree_and_replaced_as_text() -> None:
    """Spaces, brackets and line breaks of an anchor do not matter; what stands around it stays as it is."""
    first = Change("take_one", "self._evict( block, 1 )")  # alone in its block
    then = Change("_evict", "journal is  None", "for each in ids:\n    pass", "before")
    last = Change("_let_go", "if block == 0: continue")
    old = source_of("core/store.py").splitlines()
    new = edited([first, then, last])["core/store.py"].splitlines()
    changed = [line.strip() for line in difflib.ndiff(old, new) if line[0] in "+-"]
    assert sorted(changed) == [
        "+             pass", "+             pass", "+         for each in ids:",
        "-                 continue", "-             if block == 0:", "-             self._evict(block, 1)",
    ]  # fmt: skip


def test_a_file_that_is_not_imported_is_an_error() -> None:
    code = compile(source_of("cli.py"), "cli.py", "exec")
    with pytest.raises(LookupError, match=r"cli\.py"):
        load({"cli.py": code})


def test_an_adapter_stands_on_its_variant() -> None:
    package = variant()
    made = adapter_on(package)(Config((Group(Full(), 1),), 4, 4))
    assert type(made.manager) is package.KVCacheManager
    assert type(made.copy()) is type(made)
    assert isinstance(made, VariantAdapter)
    assert package.errors.StaleHitError in made.errors
    assert blockwright.errors.StaleHitError not in made.errors
