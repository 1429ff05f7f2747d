"""SipHash with 128-bit output, after the paper and the reference code of its authors: plain integers, word by word."""

MASK = 2**64 - 1
ROTATIONS = ((0, 1, 13), (2, 3, 16), (0, 3, 21), (2, 1, 17))
"""Of one round: what is added to what, which is then rotated by so many bits and combined with the sum."""
INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573)


def rotated(word: int, bits: int) -> int:
    """Rotate a word to the left."""
    return ((word << bits) | (word >> (64 - bits))) & MASK


def rounds(state: list[int], count: int) -> None:
    """Mix the state."""
    for _ in range(count):
        for to, by, bits in ROTATIONS:
            state[to] = (state[to] + state[by]) & MASK
            state[by] = rotated(state[by], bits) ^ state[to]
            if bits in (13, 17):
                state[to] = rotated(state[to], 32)


def siphash(key: bytes, message: bytes, compression: int = 1, finalisation: int = 3) -> bytes:
    """Hash a message under a key of 16 bytes."""
    halves = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    state = [halves[at % 2] ^ word for at, word in enumerate(INITIAL)]
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        state[3] ^= word
        rounds(state, compression)
        state[0] ^= word
    found = b""
    for at, mark in ((2, 0xEE), (1, 0xDD)):
        state[at] ^= mark
        rounds(state, finalisation)
        found += (state[0] ^ state[1] ^ state[2] ^ state[3]).to_bytes(8, "little")
    return found
