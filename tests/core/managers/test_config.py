"""Property: a configuration names each layer once, one kind to a group, and says whose cache a shared layer reads.

How: configurations made by hand, good and bad; a bad one is a typed error that names the argument.
Not covered: how many bytes a configuration takes (tests of the kinds), and what managers do with groups.
"""

import pytest

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="float16")
NEAR = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="float16", sliding_window=64)
GROUPS = [KVCacheGroupSpec(["a", "b"], FULL), KVCacheGroupSpec(["c"], NEAR)]


def test_layers_of_one_kind_make_a_group() -> None:
    group = KVCacheGroupSpec.of({"a": FULL, "b": FULL})
    assert list(group.layer_names) == ["a", "b"]
    assert group.kv_cache_spec == FULL


@pytest.mark.parametrize(
    "layers",
    [
        {"a": FULL, "b": NEAR},
        {"a": FULL, "b": FullAttentionSpec(block_size=8, num_kv_heads=2, head_size=8, dtype="float16")},
        {},
    ],
)
def test_layers_of_several_kinds_make_none(layers: dict[str, KVCacheSpec]) -> None:
    with pytest.raises(InvalidArgumentError, match="layers"):
        KVCacheGroupSpec.of(layers)


def test_a_shared_layer_reads_the_table_of_its_target() -> None:
    config = KVCacheConfig(8, GROUPS, shared_layers={"d": "c", "e": "a"})
    assert [config.group_of(name) for name in "abcde"] == [0, 0, 1, 1, 0]
    with pytest.raises(InvalidArgumentError, match="layer_name"):
        config.group_of("f")


@pytest.mark.parametrize("shared", [{"a": "c"}, {"d": "f"}, {"d": "e", "e": "a"}])
def test_a_shared_layer_has_no_cache_of_its_own(shared: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="shared_layers"):
        KVCacheConfig(8, GROUPS, shared_layers=shared)


@pytest.mark.parametrize("names", [(["a"], ["a"]), (["a", "a"], ["b"])])
def test_a_layer_stands_in_one_group(names: tuple[list[str], list[str]]) -> None:
    first, second = names
    with pytest.raises(InvalidArgumentError, match="kv_cache_groups"):
        KVCacheConfig(8, [KVCacheGroupSpec(first, FULL), KVCacheGroupSpec(second, NEAR)])
