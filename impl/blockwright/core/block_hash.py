"""The key of a block: a hash of the whole prefix up to the block's end.

Inside one process the key is SipHash-1-3-128 under a secret drawn at start: nobody outside can construct two prefixes
with one key. Where keys leave the process (events, offload, shared stores) use `Sha256Hasher` with an explicit seed, so
that processes agree. Both chain: a block's key covers its parent's key, so equal keys mean equal prefixes.

Bytes that are hashed, all little-endian (a fixed layout, so that no two different inputs look alike):

    root      identity of the request: adapter and salt, each tagged and with its length
    block     header word (tokens in the block, 1 << 32 if extra keys follow) | parent key (2 words)
              | tokens, 4 bytes each, padded to whole words | digest of the extra keys (2 words, only if there are any)

The same source serves both builds: words are taken modulo 2**64 by `& m`, where `m` is -1 in C (where `i64` wraps) and
2**64 - 1 in Python (where integers grow).

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012); the 128-bit output of the authors' reference
code. One compression and three finalisation rounds are what CPython and Rust use for their tables.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from blockwright.errors import InvalidArgumentError

_EMPTY = b""
_FLAG_EXTRA = 1 << 32


def _sip(
    k0: i64, k1: i64, rounds: i64, head: i64, h0: i64, h1: i64, h2: i64, data: bytes, start: i64, words: i64, last: i64
) -> tuple[i64, i64]:
    """Hash `head` words (of h0, h1, h2), then `words` words of `data` from byte `start`, then `last`.

    `rounds` is 10 * compression + finalisation. `last` is the reference code's final word: length and left-over bytes.
    Four words of state live in locals: 128-bit output, about 2 ns a word when compiled.
    """
    one: i64 = 1 << 62
    m: i64 = one * 4 - 1
    compression: i64 = rounds // 10
    finalisation: i64 = rounds % 10
    v0: i64 = (k0 & m) ^ 0x736F6D6570736575
    v1: i64 = (k1 & m) ^ 0x646F72616E646F6D ^ 0xEE
    v2: i64 = (k0 & m) ^ 0x6C7967656E657261
    v3: i64 = (k1 & m) ^ 0x7465646279746573
    first: i64 = 0
    second: i64 = 0
    total: i64 = head + words + 1
    i: i64 = 0
    left: i64 = 0
    word: i64 = 0
    # Steps 0 .. total-1 absorb a word each; the two after them squeeze the two halves of the output.
    while i < total + 2:
        if i < head:
            word = h0 & m if i == 0 else (h1 & m if i == 1 else h2 & m)
            left = compression
        elif i < total - 1:
            word = read_i64_le(data, start + (i - head) * 8) & m
            left = compression
        elif i == total - 1:
            word = last & m
            left = compression
        elif i == total:
            word = 0
            v2 ^= 0xEE
            left = finalisation
        else:
            word = 0
            v1 ^= 0xDD
            left = finalisation
        v3 ^= word
        while left > 0:
            v0 = (v0 + v1) & m
            v2 = (v2 + v3) & m
            v1 = ((v1 << 13) & m) | ((v1 >> 51) & 0x1FFF)
            v3 = ((v3 << 16) & m) | ((v3 >> 48) & 0xFFFF)
            v1 ^= v0
            v3 ^= v2
            v0 = ((v0 << 32) & m) | ((v0 >> 32) & 0xFFFFFFFF)
            v2 = (v2 + v1) & m
            v0 = (v0 + v3) & m
            v1 = ((v1 << 17) & m) | ((v1 >> 47) & 0x1FFFF)
            v3 = ((v3 << 21) & m) | ((v3 >> 43) & 0x1FFFFF)
            v1 ^= v2
            v3 ^= v0
            v2 = ((v2 << 32) & m) | ((v2 >> 32) & 0xFFFFFFFF)
            left -= 1
        v0 ^= word
        if i == total:
            first = v0 ^ v1 ^ v2 ^ v3
        elif i == total + 1:
            second = v0 ^ v1 ^ v2 ^ v3
        i += 1
    # Back to signed words, the form that vectors store.
    return first - ((first >> 63) & 1) * (m + 1), second - ((second >> 63) & 1) * (m + 1)


def _words(key: bytes) -> tuple[i64, i64]:
    """Read 16 bytes as two signed words."""
    return read_i64_le(key, 0), read_i64_le(key, 8)


def word_bytes(low: i64, high: i64) -> bytes:
    """Return two words as 16 little-endian bytes."""
    writer = BytesWriter()
    write_i64_le(writer, low)
    write_i64_le(writer, high)
    return writer.getvalue()


def siphash128(key: bytes, message: bytes, compression: int = 1, finalisation: int = 3) -> bytes:
    """Return the 16-byte SipHash of any message under a 16-byte key.

    Complexity: O(len(message)). Source: the SipHash reference code; rounds 2 and 4 give its published vectors.

    Raises:
        InvalidArgumentError: the key has another length, or a round count is not within 1..9.
    """
    if len(key) != 16:
        raise InvalidArgumentError(f"key: must be 16 bytes, not {len(key)}")
    if not (1 <= compression <= 9 and 1 <= finalisation <= 9):
        raise InvalidArgumentError("compression, finalisation: rounds must be within 1..9")
    k0, k1 = _words(key)
    whole: i64 = len(message) // 8
    tail = message[whole * 8 :]
    last = read_i64_le(tail + bytes(7 - len(tail)) + bytes([len(message) & 0xFF]), 0)
    low, high = _sip(k0, k1, compression * 10 + finalisation, 0, 0, 0, 0, message, 0, whole, last)
    return word_bytes(low, high)


@mypyc_attr(allow_interpreted_subclasses=True)
class HashChain:
    """The running hash of one request: feed it blocks, it appends their keys.

    Keys are stored as two signed 64-bit words per block in a vector, which indexes by the first 128 bits of a digest.
    """

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        """Write the keys of the next `num_blocks` blocks to `words`, from index `at`.

        Their tokens lie in `data` from byte `start`. `extra` is the encoding of the extra keys; with any, `num_blocks`
        is 1. Complexity: O(tokens).
        """
        raise NotImplementedError

    def copy(self) -> HashChain:
        """Return an independent chain in the same state."""
        raise NotImplementedError

    def digest(self, index: i64, words: vec[i64]) -> bytes:
        """Return the key of the block at `index` as bytes, in full length."""
        return word_bytes(words[2 * index], words[2 * index + 1])


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockHasher:
    """A way to hash blocks; requests of one manager share one.

    Attributes:
        is_collision_resistant: nobody can construct two prefixes with one key. Without it a manager demands
            ``verify_tokens=True``.
        is_portable: equal in every process with the same seed, so keys may leave this one.
    """

    def __init__(self, is_collision_resistant: bool, is_portable: bool) -> None:
        """Declare the two properties."""
        self.is_collision_resistant = is_collision_resistant
        self.is_portable = is_portable

    def start(self, root: bytes, block_size: i64) -> HashChain:
        """Return a new chain for a request with this identity encoding."""
        raise NotImplementedError


class _SipChain(HashChain):
    """Chain of keyed 128-bit PRF values; the parent's key is the state."""

    def __init__(self, k0: i64, k1: i64, low: i64, high: i64, block_size: i64) -> None:
        self._k0: i64 = k0
        self._k1: i64 = k1
        self._low: i64 = low
        self._high: i64 = high
        self._block_size: i64 = block_size

    def copy(self) -> HashChain:
        return _SipChain(self._k0, self._k1, self._low, self._high, self._block_size)

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        block_size = self._block_size
        step: i64 = block_size * 4
        whole: i64 = (block_size + 1) // 2
        header: i64 = block_size
        if len(extra) > 0 or block_size % 2 == 1:
            # Copy what cannot be hashed in place: an odd token count is padded, extra keys follow the tokens.
            if len(extra) > 0:
                header |= _FLAG_EXTRA
                low, high = _sip_bytes(self._k0, self._k1, extra)
                tail = word_bytes(low, high)
                whole += 2
            else:
                tail = _EMPTY
            pad = bytes(4) if block_size % 2 == 1 else _EMPTY
            writer = BytesWriter()
            i: i64 = 0
            while i < num_blocks:
                writer.write(data[start + i * step : start + (i + 1) * step])
                writer.write(pad)
                writer.write(tail)
                i += 1
            data = writer.getvalue()
            start = 0
            step = whole * 8
        k0, k1, low, high = self._k0, self._k1, self._low, self._high
        last: i64 = ((3 + whole) * 8 & 0x7F) << 56
        j: i64 = 0
        while j < num_blocks:
            low, high = _sip(k0, k1, 13, 3, header, low, high, data, start + j * step, whole, last)
            words[at + 2 * j] = low
            words[at + 2 * j + 1] = high
            j += 1
        self._low = low
        self._high = high


def _sip_bytes(k0: i64, k1: i64, message: bytes) -> tuple[i64, i64]:
    """SipHash-1-3-128 of a message of any length, as words."""
    return _words(siphash128(word_bytes(k0, k1), message))


class SipHasher(BlockHasher):
    """Keyed SipHash-1-3-128: the default inside one process (about 35 ns per 16 tokens when compiled)."""

    def __init__(self, key: bytes | None = None) -> None:
        """Take a 16-byte secret key; without one it is drawn from the operating system."""
        super().__init__(True, False)
        if key is None:
            key = os.urandom(16)
        if len(key) != 16:
            raise InvalidArgumentError(f"key: must be 16 bytes, not {len(key)}")
        self._k0, self._k1 = _words(key)

    def start(self, root: bytes, block_size: i64) -> HashChain:
        low, high = _sip_bytes(self._k0, self._k1, root)
        return _SipChain(self._k0, self._k1, low, high, block_size)


class _Sha256Chain(HashChain):
    """One running SHA-256 over the whole prefix; a digest is taken at each block boundary."""

    def __init__(self, running: hashlib._Hash, digests: list[bytes], block_size: i64) -> None:
        self._running = running
        self._digests = digests
        self._block_size: i64 = block_size

    def copy(self) -> HashChain:
        return _Sha256Chain(self._running.copy(), self._digests[:], self._block_size)

    def digest(self, index: i64, words: vec[i64]) -> bytes:
        return self._digests[index]

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        digests = self._digests
        update = self._running.update
        take = self._running.digest
        step: i64 = self._block_size * 4
        if len(extra) > 0:
            # No token has its top bit set, so the mark cannot be read as one.
            update(b"\xff\xff\xff\xff" + len(extra).to_bytes(4, "little") + extra)
        i: i64 = 0
        while i < num_blocks:
            update(data[start : start + step])
            digest = take()
            digests.append(digest)
            words[at + 2 * i] = read_i64_le(digest, 0)
            words[at + 2 * i + 1] = read_i64_le(digest, 8)
            start += step
            i += 1


class Sha256Hasher(BlockHasher):
    """SHA-256 under an explicit seed: for keys that leave the process (about 250 ns per 16 tokens)."""

    def __init__(self, seed: bytes) -> None:
        """Take the seed that all processes of one deployment share; any length, not secret."""
        super().__init__(True, True)
        self._seed = seed

    def start(self, root: bytes, block_size: i64) -> HashChain:
        head = len(self._seed).to_bytes(8, "little") + self._seed + len(root).to_bytes(8, "little") + root
        return _Sha256Chain(hashlib.sha256(head + int(block_size).to_bytes(8, "little")), [], block_size)


class _FunctionChain(HashChain):
    """Chain of a caller's own function; the parent's digest is the state."""

    def __init__(self, function: Callable[[bytes, bytes], bytes], parent: bytes, block_size: i64) -> None:
        self._function = function
        self._parent = parent
        self._block_size: i64 = block_size

    def copy(self) -> HashChain:
        return _FunctionChain(self._function, self._parent, self._block_size)

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        step: i64 = self._block_size * 4
        i: i64 = 0
        while i < num_blocks:
            digest = self._function(self._parent, data[start : start + step] + extra)
            self._parent = digest
            key = (digest + bytes(16))[:16]
            words[at + 2 * i] = read_i64_le(key, 0)
            words[at + 2 * i + 1] = read_i64_le(key, 8)
            start += step
            i += 1


class FunctionHasher(BlockHasher):
    """Any function of (parent digest, block bytes) to a digest, of which the first 16 bytes count.

    For tests that force collisions, and for engines that have block hashes of their own.
    """

    def __init__(self, function: Callable[[bytes, bytes], bytes], is_collision_resistant: bool = False) -> None:
        """Take the function and what it promises."""
        super().__init__(is_collision_resistant, False)
        self._function = function

    def start(self, root: bytes, block_size: i64) -> HashChain:
        return _FunctionChain(self._function, self._function(_EMPTY, root), block_size)


DEFAULT_HASHER: BlockHasher = SipHasher()
"""The hasher of requests that name none: its secret is drawn once per process."""
