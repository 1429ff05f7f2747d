"""Property: identities are equal exactly if all that decides the bytes of a block is, and show no secret.

How: fields and extras are altered one at a time, and drawn at random; what is shown is searched for the seed.
Not covered: collisions of BLAKE2b.
"""

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.errors import InvalidArgumentError
from blockwright.offload.checksum import CHECKSUMS, DIGEST_SIZE, checksum
from blockwright.offload.identity import CacheIdentity

SEED = b"a seed that nobody is to see"
FIELDS: dict[str, Any] = {
    "model": "llama",
    "layout": "layers, heads",
    "dtype": "bfloat16",
    "block_size": 16,
    "hash_seed": SEED,
    "extras": {"tp_rank": 0, "tp_world": 2, "kv_scale": 0.5},
}
OURS = CacheIdentity(**FIELDS)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("model", "llama2"),
        ("layout", "heads, layers"),
        ("dtype", "float16"),
        ("block_size", 32),
        ("hash_seed", SEED + b"\0"),
        ("extras", {"tp_rank": 1, "tp_world": 2, "kv_scale": 0.5}),
        ("extras", {"tp_rank": 0, "tp_world": 2}),
        ("extras", {"tp_rank": False, "tp_world": 2, "kv_scale": 0.5}),
        ("extras", {"tp_rank": 0.0, "tp_world": 2, "kv_scale": 0.5}),
        ("extras", {"tp_rank": "0", "tp_world": 2, "kv_scale": 0.5}),
        ("extras", {"tp_rank": b"0", "tp_world": 2, "kv_scale": 0.5}),
    ],
)
def test_each_field_makes_another_identity(field: str, other: Any) -> None:
    different = CacheIdentity(**{**FIELDS, field: other})
    assert different != OURS
    assert different.digest() != OURS.digest()


def test_the_order_of_extras_does_not_matter() -> None:
    same = CacheIdentity(**{**FIELDS, "extras": dict(reversed(FIELDS["extras"].items()))})
    assert same == OURS
    assert (hash(same), same.digest()) == (hash(OURS), OURS.digest())
    assert OURS != "something else"


def test_the_digest_stays_the_same_between_versions() -> None:
    assert OURS.digest().hex() == "4b8a3093b9727b691e4ddeed14d17acde6e58e4aeddedab10258e05e6e3dc673"


TEXT = st.text(max_size=3)
EXTRAS = st.dictionaries(TEXT, st.one_of(TEXT, st.binary(max_size=3), st.booleans(), st.integers(), st.floats()))
IDENTITIES = st.builds(CacheIdentity, TEXT, TEXT, TEXT, st.integers(1, 3), st.binary(max_size=3), EXTRAS)


@given(IDENTITIES, IDENTITIES)
def test_only_equal_fields_encode_equally(one: CacheIdentity, other: CacheIdentity) -> None:
    def fields(identity: CacheIdentity) -> str:
        extras = dict(identity.extras)
        return repr((identity.model, identity.layout, identity.dtype, identity.block_size, identity.hash_seed)) + repr(
            extras
        )

    assert (one.encode() == other.encode()) == (fields(one) == fields(other))


@given(st.lists(TEXT, min_size=3, max_size=3), st.lists(TEXT, min_size=3, max_size=3))
def test_text_does_not_move_from_field_to_field(one: list[str], other: list[str]) -> None:
    identities = [CacheIdentity(model, layout, dtype, 1, b"") for model, layout, dtype in (one, other)]
    assert (identities[0] == identities[1]) == (one == other)


def test_nothing_shows_the_seed() -> None:
    shown = repr(OURS) + str(OURS) + str(OURS.describe())
    assert "secret" not in shown
    assert SEED.decode() not in shown
    assert SEED.hex() not in shown
    assert "hash_seed=blake2b:" in shown


def test_seeds_look_different() -> None:
    assert repr(CacheIdentity(**{**FIELDS, "hash_seed": b"1"})) != repr(CacheIdentity(**{**FIELDS, "hash_seed": b"2"}))


def test_an_identity_cannot_change() -> None:
    extras = {"tp_rank": 0}
    identity = CacheIdentity("m", "l", "d", 1, b"", extras)
    before = identity.digest()
    extras["tp_rank"] = 1
    assert identity.digest() == before
    with pytest.raises(AttributeError):
        identity.model = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        identity.extras["tp_rank"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps(identity)) == copy.deepcopy(identity) == identity


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("block_size", 0, "block_size: must be an integer within 1..2147483647, not 0"),
        ("block_size", True, "block_size: must"),
        ("block_size", 1.0, "block_size: must"),
    ],
)
def test_other_types_are_refused(field: str, wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        CacheIdentity(**{**FIELDS, field: wrong})


@pytest.mark.parametrize("name", CHECKSUMS)
def test_checksums_cover_key_length_and_bytes_but_not_the_cut(name: str) -> None:
    def of(key: bytes, *parts: bytes) -> bytes:
        return checksum(name, key, [memoryview(part) for part in parts])

    whole = of(b"key", b"abcdef")
    assert len(whole) == DIGEST_SIZE
    assert of(b"key", b"ab", b"", b"cdef") == whole
    others = [of(b"kez", b"abcdef"), of(b"key", b"abcdeg"), of(b"ke", b"yabcdef"), of(b"key", b"abcdef\0")]
    assert len({whole, *others}) == 5


def test_the_fast_checksum_is_preferred() -> None:
    assert CHECKSUMS[-1] == "blake2b_128"
    pytest.importorskip("xxhash")
    assert CHECKSUMS[0] == "xxh3_128"
