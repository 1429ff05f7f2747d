"""Property: what is encoded is what routers decode, byte for byte in their words, and decoding gives the index back.

How: the fields of vLLM's and SGLang's events are written down here; a random history goes through every form into a
`PrefixIndex`.
Not covered: the routers' own code (`python benchmarks/event_consumers.py`); sockets (test_zmq.py).
"""

from dataclasses import replace
from typing import Any

import pytest

msgspec = pytest.importorskip("msgspec")

from tests.observe.engine import SIZE, Engine, full, window

from blockwright.errors import InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored
from blockwright.observe import PrefixIndex
from blockwright.observe.wire import Encoder, GroupKind, decode, hash_of, kinds_of

TOKENS = b"\7\0\0\0\10\0\0\0"
FIRST = BlockStored(b"\1" * 32, None, TOKENS, 2)
SECOND = BlockStored(b"\2" * 32, b"\1" * 32, TOKENS, 2)
ONE, TWO = int.from_bytes(b"\1" * 8, "big"), int.from_bytes(b"\2" * 8, "big")


def reported(encoder: Encoder, *events: Any) -> Any:
    return msgspec.msgpack.decode(encoder(events, 1.5))


def test_vllm_form() -> None:
    """Always three parts; what is None is left out of a map, but for the seven fields that are always written."""
    stamp, events, rank = reported(Encoder(rank=3), FIRST, SECOND, BlockRemoved(b"\2" * 32), AllBlocksCleared())
    assert (stamp, rank) == (1.5, 3)
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [ONE, TWO],
            "parent_block_hash": None,
            "token_ids": [7, 8, 7, 8],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        },
        {"type": "BlockRemoved", "block_hashes": [TWO], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]
    assert hash_of(bytes(24) + b"\xff" * 8) == 2**64 - 1


def test_vllm_form_names_what_tokens_do_not_say() -> None:
    """Adapter, salt and items; the group with its kind; a tier by its owner. Chains of unlike blocks are not joined."""
    salted = FIRST._replace(cache_salt="tenant", lora_name="adapter", mm_items=(("image", 1, 5),))
    other = SECOND._replace(group_id=1, medium="DISK", is_parent_absent=True)
    encoder = Encoder(groups=[*kinds_of([full()]), GroupKind("sliding_window", 6)])
    (one, two, gone) = reported(encoder, salted, other, BlockRemoved(b"\2" * 32, 1, "DISK"))[1]
    assert (one["extra_keys"], one["lora_name"]) == ([["adapter", ["image", 1], "tenant"]], "adapter")
    assert (one["cache_salt"], "cache_salt" in two) == ("tenant", False)
    assert (one["group_idx"], one["kv_cache_spec_kind"]) == (0, "full_attention")
    assert "kv_cache_spec_sliding_window" not in one
    assert (two["group_idx"], two["kv_cache_spec_sliding_window"]) == (1, 6)
    assert kinds_of([window(6), replace(window(6), sink_len=1)]) == [GroupKind("sliding_window", 6), ("unknown", None)]
    assert (two["medium"], two["ownership"], two["parent_block_hash"]) == ("STORAGE", "DISK", ONE)
    assert gone == {
        "type": "BlockRemoved", "block_hashes": [TWO], "medium": "STORAGE", "group_idx": 1, "ownership": "DISK",
    }  # fmt: skip
    assert [getattr(event, "block_hash", None) for event in decode(encoder([salted, other], 0.0))] == [ONE, TWO]


def test_older_form_is_an_array() -> None:
    encoder = Encoder(as_arrays=True)
    stored, gone, cleared = reported(encoder, FIRST, BlockRemoved(b"\1" * 32), AllBlocksCleared())[1]
    assert stored[:8] == ["BlockStored", [ONE], None, [7, 8], 2, None, "GPU", None]
    assert stored[8:] == [None] * 4
    assert gone == ["BlockRemoved", [ONE], "GPU", None]
    assert cleared == ["AllBlocksCleared"]


def test_sglang_form() -> None:
    """A salt beside the tokens, its own names of media; what it cannot tell from other content is not told at all."""
    encoder = Encoder("sglang")
    salted = FIRST._replace(cache_salt="tenant", medium="CPU")
    unsaid = [FIRST._replace(group_id=1), FIRST._replace(lora_name="a"), FIRST._replace(mm_items=(("i", 0, 1),))]
    (one, gone) = reported(encoder, salted, *unsaid, BlockRemoved(b"\1" * 32, 0, "STORE"))[1]
    assert one == {
        "type": "BlockStored", "block_hashes": [ONE], "parent_block_hash": None, "token_ids": [7, 8], "block_size": 2,
        "lora_id": None, "medium": "CPU_PINNED", "cache_salt": "tenant",
    }  # fmt: skip
    assert gone["medium"] == "EXTERNAL"
    (back,) = decode(encoder([salted], 0.0))
    assert back == salted._replace(block_hash=ONE)


@pytest.mark.parametrize("form", [{}, {"as_arrays": True}, {"groups": [GroupKind("full_attention")]}])
def test_a_history_survives_the_wire(form: dict[str, Any]) -> None:
    engine, index = Engine(3), PrefixIndex()
    engine.steps(200)
    encoder = Encoder(**form)
    for batch in engine.stream.since(0):
        index.apply(decode(encoder(batch.events, batch.timestamp)))
    assert index.known_keys() == {(hash_of(key), group, medium) for key, group, medium in engine.stream.known_keys()}
    late = PrefixIndex(decode(encoder(engine.stream.snapshot().events, 0.0)))
    assert late.known_keys() == index.known_keys()
    for request in engine.running:
        lengths = [
            each.match(request.all_token_ids, lora_name=request.lora_name, cache_salt=request.cache_salt)
            for each in (index, late)
        ]
        assert lengths == [len(request.block_hashes) * SIZE] * 2


def test_wrong_arguments_and_payloads() -> None:
    with pytest.raises(InvalidArgumentError, match="form: must be"):
        Encoder("other")
    with pytest.raises(InvalidArgumentError, match="as_arrays"):
        Encoder("sglang", as_arrays=True)
    for event in (FIRST._replace(group_id=1), BlockRemoved(b"\1" * 32, 1)):
        with pytest.raises(InvalidArgumentError, match="groups: 1 kinds were given, and an event is of group 1; give"):
            Encoder(groups=kinds_of([full()]))([event], 0.0)
    for payload in (b"", b"\xc1", msgspec.msgpack.encode([1.0, [[7]], 0]), msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(InvalidArgumentError, match="payload"):
            decode(payload)


def test_engines_name_salts_and_adapters_in_their_own_ways() -> None:
    """vLLM names a salt with the first block of a chain alone, older engines an adapter by its number."""
    tokens = [7, 8] * 3
    chain = {"type": "BlockStored", "block_hashes": [1, 2, 3], "parent_block_hash": None, "token_ids": tokens}
    fields = {
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["salt"], None, None],
    }
    whole = {**chain, **fields}
    split = [
        {**whole, "block_hashes": [at + 1], "parent_block_hash": at or None, "token_ids": [7, 8], "extra_keys": [keys]}
        for at, keys in enumerate([["salt"], None, None])
    ]
    for events in ([whole], split):
        index = PrefixIndex(decode(msgspec.msgpack.encode([0.0, events, 0])))
        assert (index.match(tokens, cache_salt="salt"), index.match(tokens)) == (6, 0)
    numbered = {**whole, "lora_id": 7, "extra_keys": [[7], [7], [7]]}
    index = PrefixIndex(decode(msgspec.msgpack.encode([0.0, [numbered, {**whole, "block_hashes": [4, 5, 6]}], 0])))
    assert (index.match(tokens, lora_id=7), index.match(tokens, cache_salt="salt"), index.match(tokens)) == (6, 6, 0)
    index.apply([BlockRemoved(1)])
    assert (index.match(tokens, lora_id=7), index.match(tokens, cache_salt="salt")) == (0, 6)


def test_blocks_are_told_apart_by_the_tokens_that_their_hashes_look_ahead_at() -> None:
    """In vLLM's form they are in a field of their own; SGLang writes the tokens of a draft model's keys in pairs."""
    chain = [FIRST._replace(lookahead=TOKENS[:4]), SECOND._replace(lookahead=TOKENS[4:])]
    _, (event,), _ = reported(Encoder("vllm"), *chain)
    assert event["lookahead_token_ids"] == [[7], [8]]
    assert [reported(encoder, *chain)[1] for encoder in (Encoder("sglang"), Encoder("vllm", as_arrays=True))] == [
        [],
        [],
    ]
    pairs = {**event, "token_ids": [[7, 8], [8, 7], [7, 8], [8, 8]], "lookahead_token_ids": None}
    for told in (event, pairs):
        index = PrefixIndex(decode(msgspec.msgpack.encode([0.0, [told], 0])))
        assert [index.match([7, 8, 7, 8, *more]) for more in ([], [8], [9], [8, 9])] == [2, 4, 2, 4]
    with pytest.raises(InvalidArgumentError, match="pair"):
        decode(msgspec.msgpack.encode([0.0, [{**pairs, "token_ids": [[7, 8], [7, 7], [7, 8], [8, 8]]}], 0]))


def test_sglang_leaves_out_the_blocks_with_items_alone() -> None:
    third = BlockStored(b"\3" * 32, b"\2" * 32, TOKENS, 2)
    _, events, _ = reported(Encoder("sglang"), FIRST, SECOND._replace(mm_items=(("image", 0, 2),)), third)
    assert [event["block_hashes"] for event in events] == [[ONE], [int.from_bytes(b"\3" * 8, "big")]]


def test_a_hash_is_the_same_on_every_medium() -> None:
    """A tier's key has the number of the group behind the digest."""
    assert hash_of(bytes(range(32))) == hash_of(bytes(range(32)) + b"\1\0\0\0")
