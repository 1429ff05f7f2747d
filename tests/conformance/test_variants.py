"""Property: a variant is the implementation with one place changed, and leaves everything else alone.

How: variants are loaded beside the real package, unchanged, with a patch, with a patch that does not fit any more and
with one that breaks the import; classes, modules and finders are compared before and after.
Not covered: what variants are used for (test_museum.py, test_mutants.py).
"""

import sys
from pathlib import Path

import pytest

import blockwright
from blockwright_lab.known_bugs.instrumented import VariantAdapter, adapter_on
from blockwright_lab.known_bugs.variants import Patch, StalePatchError, load, patched, source_of, variant
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Full, Group

PATCH = Patch("core/store.py", "self._num_free = count - 1", "self._num_free = count")


def modules() -> dict[str, object]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "blockwright"}


def test_everything_is_as_before() -> None:
    before, finders = modules(), sys.meta_path[:]
    variant(PATCH)
    assert modules() == before
    assert sys.meta_path == finders
    assert sys.modules["blockwright"] is blockwright


def test_a_failed_import_leaves_everything_as_before() -> None:
    before, finders = modules(), sys.meta_path[:]
    with pytest.raises(ZeroDivisionError):
        variant(Patch("core/store.py", "class BlockStore:", "1 // 0\nclass BlockStore:"))
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
    assert package.core.store.BlockStore.take.__code__.co_filename.endswith("store.py")


def test_a_patch_changes_the_variant_alone() -> None:
    assert variant(PATCH).BlockPool(4).num_free == 4
    assert variant().BlockPool(4).num_free == 3
    assert blockwright.BlockPool(4).num_free == 3


@pytest.mark.parametrize(
    "patch",
    [
        Patch("core/store.py", "no such text", ""),
        Patch("core/store.py", "self._num_free", "self._num_free"),
        Patch("core/store.py", "self._num_free = count - 1", "", times=2),
    ],
)
def test_a_stale_patch_fails_loudly(patch: Patch) -> None:
    with pytest.raises(StalePatchError, match="adapt the patch"):
        variant(patch)


def test_patches_of_one_file_follow_each_other() -> None:
    code = patched([PATCH, Patch("core/store.py", "self._num_free = count\n", "self._num_free = count + 1\n")])
    assert load(code).BlockPool(4).num_free == 5


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
