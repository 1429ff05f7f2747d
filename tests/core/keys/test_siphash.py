"""Property: `siphash128` is SipHash with 128 bits of output, for every message length and number of rounds.

How: 2-4-128 against the authors' published vectors; every other number of rounds against a plain implementation that is
first checked against the same vectors, over all lengths up to three length bytes (so that the length wraps) and drawn
keys and messages.

Not covered: that the primitive is secure, and timing.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.keys.siphash import VECTOR_63, VECTORS, reference_siphash128

from blockwright import siphash128
from blockwright.errors import BlockwrightError, InvalidArgumentError

KEY = bytes(range(16))


@pytest.mark.parametrize("function", [siphash128, reference_siphash128])
def test_published_vectors(function: type) -> None:
    for length, vector in [*enumerate(VECTORS), (63, VECTOR_63)]:
        assert function(KEY, bytes(range(length)), 2, 4).hex() == vector


def test_every_length() -> None:
    message = bytes(i * 7 % 251 for i in range(800))
    for length in [*range(130), *range(248, 265), *range(504, 521), 800]:
        assert siphash128(KEY, message[:length]) == reference_siphash128(KEY, message[:length])


@given(st.binary(min_size=16, max_size=16), st.binary(max_size=200), st.integers(1, 9), st.integers(1, 9))
def test_any_key_message_and_rounds(key: bytes, message: bytes, compression: int, finalisation: int) -> None:
    expected = reference_siphash128(key, message, compression, finalisation)
    assert siphash128(key, message, compression, finalisation) == expected


def test_extreme_words() -> None:
    """All bits set and only top bits set: where signed 64-bit words overflow first."""
    for key in (b"\xff" * 16, b"\x00" * 7 + b"\x80" + b"\xff" * 8, bytes(16)):
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            message = bytes([byte]) * 300
            for length in (0, 7, 8, 15, 16, 127, 128, 255, 256, 300):
                assert siphash128(key, message[:length]) == reference_siphash128(key, message[:length])


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_key_length(length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="key"):
        siphash128(bytes(length), b"")


@pytest.mark.parametrize("rounds", [(0, 3), (1, 0), (10, 3), (1, 10), (-1, 3), (2**63, 3), (1, 2**70)])
def test_round_counts(rounds: tuple[int, int]) -> None:
    with pytest.raises(BlockwrightError, match="rounds"):
        siphash128(KEY, b"", *rounds)
