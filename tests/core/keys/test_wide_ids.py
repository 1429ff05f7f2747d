"""Property: a prompt's token ids may have 62 bits, and all of them count: in keys, hits, events, and what is shown.

How: prompts that are alike in the lower 31 bits, or in all, before one manager, from each kind of sequence.
Not covered: ids of more than 31 bits in outputs, which are refused (test_bad_input).
"""

from array import array

import pytest

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.errors import InvalidArgumentError
from blockwright.events import BlockStored

LARGE = 2**62 - 1
PROMPT = [7, LARGE, LARGE, 2**31, 5, 6]


@pytest.mark.parametrize("tokens", [PROMPT, tuple(PROMPT), array("q", PROMPT), array("Q", PROMPT), iter([1, 2, 3])])
def test_they_are_shown_as_they_were_given(tokens: object) -> None:
    request = Request("r", tokens, 2)
    expected = PROMPT if request.num_tokens == 6 else [1, 2, 3]
    for each in (request, request.copy(), request.fork("s")):
        assert each.all_token_ids == expected


def test_only_equal_ids_hit() -> None:
    spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float16")
    config = KVCacheConfig(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    manager = KVCacheManager(config, max_model_len=16, enable_kv_cache_events=True)

    def asked(name: str, *tokens: int) -> Request:
        return Request(name, tokens, hasher=Sha256Hasher(b""))

    first = asked("first", *PROMPT)
    assert manager.allocate_slots(first, 6) is not None
    first.num_computed_tokens = 6
    manager.free(first)
    assert manager.get_computed_blocks(asked("same", *PROMPT, 1))[1] == 6
    assert manager.get_computed_blocks(asked("low", *[token % 2**31 for token in PROMPT], 1))[1] == 0
    assert manager.get_computed_blocks(asked("parts", 7, LARGE, LARGE, 0, 5, 6, 1))[1] == 2
    assert manager.touch(asked("cut", *PROMPT, 1), 5)[1] == 4
    stored = [event.token_ids for event in manager.take_events() if isinstance(event, BlockStored)]
    assert stored == [(7, LARGE), (LARGE, 2**31), (5, 6)]
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        manager.touch(asked("wrong", *PROMPT), -1)


def test_ids_have_62_bits_at_most() -> None:
    with pytest.raises(InvalidArgumentError, match=rf"0\.\.{LARGE}, found {LARGE + 1} at 1"):
        Request("r", [LARGE, LARGE + 1])
