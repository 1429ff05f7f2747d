"""Keys that also cover the tokens behind their block (PUB-4), with each hasher; the scopes judge what is published."""

from collections.abc import Callable

import pytest
from tests.core.support import full, manager_of

from blockwright import BlockHasher, GivenHasher, MultiModalItem, Request, Sha256Hasher, SipHasher
from blockwright.errors import InvalidArgumentError

HASHERS: dict[str, Callable[[int], BlockHasher]] = {
    "sip": lambda lookahead: SipHasher(bytes(16), key_lookahead=lookahead),
    "sha": lambda lookahead: Sha256Hasher(b"", lookahead),
}


@pytest.mark.parametrize("name", HASHERS)
@pytest.mark.parametrize("lookahead", [1, 3, 9])
def test_a_key_covers_the_tokens_behind_its_block(name: str, lookahead: int) -> None:
    made = HASHERS[name](lookahead)
    tokens = list(range(4 + lookahead))
    request = Request("r", tokens[:-1], 4, hasher=made)
    assert request.block_hashes == []
    request.append_output_token_ids(tokens[-1])
    (key,) = request.block_hashes
    assert Request("whole", [*tokens, 7], 4, hasher=made).block_hashes[0] == key
    assert request.fork("child").block_hashes == request.copy().block_hashes == [key]
    assert Request("other", [*tokens[:-1], 77], 4, hasher=made).block_hashes != [key]
    assert Request("plain", tokens, 4, hasher=HASHERS[name](0)).block_hashes[0] != key
    item = MultiModalItem("image", 4, 1)
    assert Request("image", tokens, 4, hasher=made, mm_items=[item]).block_hashes != [key]


def test_what_cannot_be_looked_ahead_at_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="key_lookahead: must be 0 or more"):
        Sha256Hasher(b"", -1)


def test_keys_of_an_engine_may_come_late() -> None:
    keys = [bytes([number]) * 16 for number in (1, 2)]
    given: list[bytes] = []
    request = Request("r", range(4), 4, hasher=GivenHasher(given, key_lookahead=1))
    manager = manager_of(full(4))
    assert manager.allocate_slots(request, 4) is not None
    assert manager.num_published("r") == (0,)
    for number, key in enumerate(keys):
        given.append(key)
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids([9] * (1 if number == 0 else 4))
        assert manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None
        assert manager.num_published("r") == (number + 1,)
    other = Request("other", [*range(4), 9, 9], 4, hasher=GivenHasher(keys[:1], key_lookahead=1))
    assert manager.get_computed_blocks(other)[1] == 4
    manager.check()
