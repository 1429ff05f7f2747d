"""The key of a block: a hash of the whole prefix up to the block's end.

Inside one process the key is SipHash-1-3-128 under a secret drawn at start, so that no outsider can construct two
prefixes with one key. Where keys leave the process (events, offload, shared stores) use `Sha256Hasher` with an explicit
seed, so that processes agree. Both chain: a block's key covers its parent's key, so equal keys mean equal prefixes.

Bytes that are hashed, all little-endian (a fixed layout, so that no two different inputs look alike):

    root      identity of the request: adapter and salt, each tagged and with its length
    block     parent key (16 bytes) | tokens, 4 bytes each, padded to 8 | digest of the extra keys (16 bytes, only if
              there are any) | tokens in the block, plus 1 << 32 if there are extra keys (7 bytes)

The same source serves both builds: words are taken modulo 2**64 by `& m`, where `m` is -1 in C (where `i64` wraps) and
2**64 - 1 in Python (where integers grow).

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012); the 128-bit output of the authors' reference
code. One compression and three finalisation rounds are what CPython and Rust use for their tables.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from blockwright.errors import InvalidArgumentError

_FLAG_EXTRA: Final = 1 << 32
_TOP_BYTE: Final = 1 << 56
_ROUNDS: Final = 13
"""One compression and three finalisation rounds."""
_FIRST: Final = 8
_APART: Final = 64
"""The shortest prefix, in blocks, that is found in another prompt, and how far apart they lie in long ones."""
_SLOTS: Final = 1 << 12
"""Places in which prompts are found."""
REMEMBERED: Final = 20 << 20
"""Bytes that the prompts that are remembered take, if nothing else is said: their tokens, keys and `OVERHEAD`."""
OVERHEAD: Final = 384
"""Bytes that a remembered prompt takes beside its tokens and keys, about: three objects, and its places in lists."""
_KEY: Final = 24
"""Bytes for each key: its two words, and half as many again that a vector has room for."""


def _sip(
    s0: i64,
    s1: i64,
    s2: i64,
    s3: i64,
    rounds: i64,
    head: i64,
    h0: i64,
    h1: i64,
    data: bytes,
    start: i64,
    words: i64,
    last: i64,
    odd: i64 = 0,
) -> tuple[i64, i64]:
    """Hash `head` words (of h0, h1), then `words` words of `data` from byte `start`, then `last`.

    With `odd` 1 the last of these words is four bytes of `data`, with zeros behind them. s0 .. s3 are the state at the
    start, from the key. `rounds` is 10 * compression + finalisation. `last` is the reference code's final word: length
    and left-over bytes. About 3 ns a word when compiled.
    """
    step: i64 = 1 << 61
    m: i64 = step * 8 - 1
    v0: i64 = s0 & m
    v1: i64 = s1 & m
    v2: i64 = s2 & m
    v3: i64 = s3 & m
    compression: i64 = rounds // 10
    first: i64 = 0
    total: i64 = head + words
    whole: i64 = total - odd
    i: i64 = 0
    # Steps 0 .. total absorb a word each; the two after them squeeze the two halves of the output.
    while i < total + 3:
        word: i64 = 0
        left = compression
        if i < head:
            word = (h0 if i == 0 else h1) & m
        elif i < whole:
            word = read_i64_le(data, start + (i - head) * 8) & m
        elif i < total:
            word = i64(read_i32_le(data, start + (i - head) * 8))  # a token, which is never negative
        elif i == total:
            word = last & m
        else:
            left = rounds - compression * 10
            if i == total + 1:
                v2 ^= 0xEE
            else:
                v1 ^= 0xDD
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
        if i == total + 1:
            first = v0 ^ v1 ^ v2 ^ v3
        i += 1
    second = v0 ^ v1 ^ v2 ^ v3
    # Back to signed words, the form that vectors store.
    return first - ((first >> 63) & 1) * (m + 1), second - ((second >> 63) & 1) * (m + 1)


@final
class _SipKey:
    def __init__(self, key: bytes) -> None:
        if len(key) != 16:
            raise InvalidArgumentError(f"key: must be 16 bytes, not {len(key)}")
        k0, k1 = _words(key)
        self.v0: i64 = k0 ^ _words(b"uespemosmodnarod")[0]
        self.v1: i64 = k1 ^ _words(b"uespemosmodnarod")[1] ^ 0xEE
        self.v2: i64 = k0 ^ _words(b"arenegylsetybdet")[0]
        self.v3: i64 = k1 ^ _words(b"arenegylsetybdet")[1]

    def hash_bytes(self, message: bytes, rounds: i64) -> tuple[i64, i64]:
        whole: i64 = len(message) // 8
        tail = message[whole * 8 :]
        last = read_i64_le(tail + bytes(7 - len(tail)) + bytes([len(message) & 0xFF]), 0)
        return _sip(self.v0, self.v1, self.v2, self.v3, rounds, 0, 0, 0, message, 0, whole, last)


def _words(key: bytes) -> tuple[i64, i64]:
    return read_i64_le(key, 0), read_i64_le(key, 8)


def word_bytes(low: i64, high: i64) -> bytes:
    writer = BytesWriter()
    write_i64_le(writer, low)
    write_i64_le(writer, high)
    return writer.getvalue()


def hash_words(block_hash: bytes) -> tuple[i64, i64]:
    """Return the first 16 bytes of a block hash as two words.

    Raises:
        InvalidArgumentError: it is shorter.
    """
    if not isinstance(block_hash, bytes) or len(block_hash) < 16:
        raise InvalidArgumentError(f"block_hash: must be bytes, at least 16 of them, not {block_hash!r}")
    # Signed, because vectors store signed words; the index compares them as they are.
    low = int.from_bytes(block_hash[:8], "little", signed=True)
    high = int.from_bytes(block_hash[8:16], "little", signed=True)
    return low, high


def siphash128(key: bytes, message: bytes, compression: int = 1, finalisation: int = 3) -> bytes:
    """Return the 16-byte SipHash of any message under a 16-byte key.

    Complexity: O(len(message)). Source: the SipHash reference code; rounds 2 and 4 give its published vectors.

    Raises:
        InvalidArgumentError: the key has another length, or a round count is not within 1..9.
    """
    if not (1 <= compression <= 9 and 1 <= finalisation <= 9):
        raise InvalidArgumentError("compression, finalisation: rounds must be within 1..9")
    low, high = _SipKey(key).hash_bytes(message, compression * 10 + finalisation)
    return word_bytes(low, high)


def next_length(count: i64) -> i64:
    """Return the first of 8, 16, 32, 64, 128, 192, 256, ... above `count`: lengths in blocks to which keys are made.

    So many first blocks of a prompt are found again by the key of the last of them. O(1).
    """
    step: i64 = _FIRST
    while step < _APART and step * 2 <= count:
        step *= 2
    return (count // step + 1) * step


@mypyc_attr(allow_interpreted_subclasses=True)
class HashChain:
    """The running hash of one request: feed it blocks, it appends their keys.

    Keys are stored as two signed 64-bit words per block in a vector, which indexes by the first 128 bits of a digest.
    """

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        """Write the keys of the next `num_blocks` blocks to `words`, from index `at`.

        Those before are of the blocks before, and stay. Their tokens lie in `data` from byte `start`. `extra` is
        the encoding of the extra keys; with any, `num_blocks` is 1. Complexity: O(tokens).
        """
        raise NotImplementedError

    def recall(self, data: bytes, words: vec[i64], stop: i64) -> vec[i64]:
        """Return the keys of more of the blocks that `data` begins with, `stop` at most; `words` if no more are known.

        `words` holds those of the first ones. The keys come from prompts with equal tokens that were hashed before.
        """
        return words

    def remember(self, data: bytes, words: vec[i64], start: i64, stop: i64) -> None:
        """Note the keys of the blocks that `data` begins with; those from `start` to `stop` have just been made."""

    def copy(self) -> HashChain:
        raise NotImplementedError

    def attempt(self) -> HashChain:
        """Return the chain to advance: this one, unless advancing may fail midway; then a copy."""
        return self

    def may_wait(self) -> bool:
        """Return whether a key is made when it is first needed, within a call of the manager, not as early as possible.

        Only what runs no code of a caller's may wait: such code could raise, or call the manager, in mid-change.
        """
        return False

    def digest(self, index: i64, words: vec[i64]) -> bytes:
        """Return the key of the block at `index` as bytes, in full length."""
        return word_bytes(words[2 * index], words[2 * index + 1])


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockHasher:
    """A way to hash blocks; requests of one manager share one.

    Attributes:
        is_collision_resistant: no attacker can construct two prefixes with one key. Without it a manager demands
            ``verify_tokens=True``.
        is_portable: equal in every process with the same seed, so keys may leave this one.
        key_lookahead: tokens behind its block that a key also covers, because a draft head's data at the block's last
            position depends on them. No block of a hit is then computed again (``use_eagle=False``). law: PUB-4.
    """

    def __init__(self, is_collision_resistant: bool, is_portable: bool, key_lookahead: int = 0) -> None:
        """Declare the properties.

        Raises:
            InvalidArgumentError: `key_lookahead` is negative or too large.
        """
        if not 0 <= key_lookahead < 1 << 20:
            raise InvalidArgumentError(f"key_lookahead: must be 0 or more, and below 2**20, not {key_lookahead!r}")
        self.is_collision_resistant = is_collision_resistant
        self.is_portable = is_portable
        self.key_lookahead = key_lookahead

    def start(self, root: bytes, block_size: i64) -> HashChain:
        raise NotImplementedError


@final
class _Prompt:
    """A prompt that was hashed: its packed tokens, and the keys of the blocks that it begins with."""

    def __init__(self, data: bytes, words: vec[i64], block_size: i64) -> None:
        """Take the packed tokens, and the keys made so far; in memory it counts as if all were made."""
        self.data = data
        self.words: vec[i64] = words
        self.size: i64 = i64(len(data)) + i64(len(data)) // (4 * block_size) * _KEY + OVERHEAD

    def forget(self) -> None:
        """Drop its contents; slots may still refer to it."""
        self.data = b""
        self.words = vec[i64]()


@final
class _Memory:
    """The prompts that were hashed last, so that the blocks of one that begins alike are compared, not hashed again.

    Comparing is several times faster. A prompt is looked for by the key of a prefix, which is as good as the prefix:
    other content or another identity has another key. Forgotten or overwritten prompts are hashed again.
    """

    def __init__(self, limit: i64) -> None:
        self._limit: i64 = limit
        self._slots: list[_Prompt | None] = []
        self._kept: deque[_Prompt] = deque()
        self._size: i64 = 0

    def find(self, low: i64) -> _Prompt | None:
        """Return a prompt that may have a prefix with this key. O(1)."""
        return self._slots[low & (_SLOTS - 1)] if self._size > 0 else None

    def note(self, low: i64, prompt: _Prompt) -> None:
        """Let it be found by the key of one of its prefixes. O(1)."""
        self._slots[low & (_SLOTS - 1)] = prompt

    def keep(self, prompt: _Prompt) -> None:
        # One prompt that is larger than the limit would push out all others and then itself.
        if prompt.size > self._limit:
            prompt.forget()
            return
        if not self._slots:
            self._slots = [None] * _SLOTS
        self._kept.append(prompt)
        self._size += prompt.size
        while self._size > self._limit:
            oldest = self._kept.popleft()
            self._size -= oldest.size
            oldest.forget()


def _end_of_equal(data: bytes, other: bytes, start: i64, stop: i64) -> i64:
    """Return how far from `start` on both are equal, to the word of 8 bytes, below `stop`."""
    i = start
    while (
        i + 32 <= stop
        and (
            (read_i64_le(data, i) ^ read_i64_le(other, i))
            | (read_i64_le(data, i + 8) ^ read_i64_le(other, i + 8))
            | (read_i64_le(data, i + 16) ^ read_i64_le(other, i + 16))
            | (read_i64_le(data, i + 24) ^ read_i64_le(other, i + 24))
        )
        == 0
    ):
        i += 32
    while i + 8 <= stop and read_i64_le(data, i) == read_i64_le(other, i):
        i += 8
    return i


@final
class _SipChain(HashChain):
    """Chain of keyed 128-bit PRF values: a block's key comes from its tokens and its parent's key.

    Copies share one object, because the keys depend only on the constructor's arguments. `remember` may set `_prompt`,
    which changes the cost of later calls and never their keys.
    """

    def __init__(self, key: _SipKey, memory: _Memory, low: i64, high: i64, block_size: i64) -> None:
        self._key = key
        self._memory = memory
        self._prompt: _Prompt | None = None  # as the memory has it
        self._low: i64 = low
        self._high: i64 = high
        self._block_size: i64 = block_size

    def recall(self, data: bytes, words: vec[i64], stop: i64) -> vec[i64]:
        at: i64 = len(words)
        prompt = self._memory.find(words[at - 2]) if at > 0 else None
        if prompt is None:
            return words
        known = prompt.words
        # The slot is found by 12 bits: only the whole key says that the prompt has this prefix.
        if i64(len(known)) <= at or known[at - 2] != words[at - 2] or known[at - 1] != words[at - 1]:
            return words
        step = self._block_size * 4
        limit = min(min(stop, i64(len(known)) // 2) * step, i64(len(prompt.data)))
        end = 2 * (_end_of_equal(data, prompt.data, at // 2 * step, limit) // step)
        return known[:end] if end > at else words

    def remember(self, data: bytes, words: vec[i64], start: i64, stop: i64) -> None:
        prompt = self._prompt
        length = next_length(max(start, _FIRST) - 1)
        if prompt is None and length < stop:
            prompt = _Prompt(data, words, self._block_size)
            self._memory.keep(prompt)
            self._prompt = prompt
        if prompt is None or len(prompt.data) == 0:  # too short, or forgotten
            return
        prompt.words = words if i64(len(words)) == 2 * stop else words[: 2 * stop]  # not those of the output
        # The prompt is found at few lengths: each costs a slot, and a shared prefix seldom ends within a block of one.
        while length < stop:
            self._memory.note(words[2 * length - 2], prompt)
            length = next_length(length)

    def copy(self) -> HashChain:
        return self

    def may_wait(self) -> bool:
        return True

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        key = self._key
        size = self._block_size
        step: i64 = size * 4
        whole: i64 = (size + 1) // 2
        header: i64 = size
        odd: i64 = size % 2
        if len(extra) > 0:
            # The digest of extra keys follows the tokens of its block, so they are copied together.
            low, high = key.hash_bytes(extra, _ROUNDS)
            data = data[start : start + step] + bytes(4 * odd) + word_bytes(low, high)
            start = 0
            header += _FLAG_EXTRA
            whole += 2
            odd = 0
        v0 = key.v0
        v1 = key.v1
        v2 = key.v2
        v3 = key.v3
        low = self._low
        high = self._high
        if at > 0:
            low = words[at - 2]
            high = words[at - 1]
        last: i64 = header + ((whole * 8 + 16 + 7) & 0xFF) * _TOP_BYTE
        j: i64 = 0
        while j < num_blocks:
            low, high = _sip(v0, v1, v2, v3, _ROUNDS, 2, low, high, data, start + j * step, whole, last, odd)
            words[at + 2 * j] = low
            words[at + 2 * j + 1] = high
            j += 1


class SipHasher(BlockHasher):
    """Keyed SipHash-1-3-128: the default inside one process (about 50 ns per 16 tokens when compiled)."""

    def __init__(self, key: bytes | None = None, remembered_bytes: int = REMEMBERED, key_lookahead: int = 0) -> None:
        """Take a 16-byte secret key; without one it is drawn from the operating system.

        Args:
            key: see above.
            remembered_bytes: that the prompts that were hashed last may take, so that a prompt that begins like one of
                them is compared, not hashed again: 4 bytes a token, 24 a block (its key), and 384 a prompt; a key takes
                some 100 uncompiled. 0 keeps no tokens beyond their requests.
            key_lookahead: tokens behind its block that a key also covers; then no prompt is remembered.

        Raises:
            InvalidArgumentError: names the argument.
        """
        super().__init__(True, False, key_lookahead)
        if not 0 <= remembered_bytes < 1 << 60:
            raise InvalidArgumentError(f"remembered_bytes: must be 0 or more, and below 2**60, not {remembered_bytes}")
        self._key = _SipKey(os.urandom(16) if key is None else key)
        self._memory = _Memory(remembered_bytes)
        low, high = self._key.hash_bytes(b"", _ROUNDS)
        self._low: i64 = low
        self._high: i64 = high

    def start(self, root: bytes, block_size: i64) -> HashChain:
        low = self._low
        high = self._high
        if len(root) > 0:
            low, high = self._key.hash_bytes(root, _ROUNDS)
        return _SipChain(self._key, self._memory, low, high, block_size)

    def next_words(self, low: i64, high: i64, data: bytes, extra: bytes) -> tuple[i64, i64]:
        """Return the key, as two words, of one block with these packed tokens after the one with the key (low, high).

        Zeros mean that there is no block before. Complexity: O(tokens).
        """
        words = vec[i64]([0, 0])
        _SipChain(self._key, self._memory, low, high, i64(len(data)) // 4).extend(data, 0, 1, extra, words, 0)
        return words[0], words[1]


class _Sha256Chain(HashChain):
    """One running SHA-256 over the whole prefix; a digest is taken at each block boundary."""

    def __init__(self, running: hashlib._Hash, digests: list[bytes], block_size: i64) -> None:
        self._running = running
        self._digests = digests
        self._block_size: i64 = block_size

    def copy(self) -> HashChain:
        return _Sha256Chain(self._running.copy(), self._digests[:], self._block_size)

    def attempt(self) -> HashChain:
        """Return a copy, which takes the digests over."""
        return _Sha256Chain(self._running.copy(), self._digests, self._block_size)

    def may_wait(self) -> bool:
        return True

    def digest(self, index: i64, words: vec[i64]) -> bytes:
        return self._digests[index]

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        digests = self._digests
        del digests[at // 2 :]  # what an attempt that failed has left
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

    def __init__(self, seed: bytes, key_lookahead: int = 0) -> None:
        """Take the seed that all processes of one deployment share; any length, not secret."""
        super().__init__(True, True, key_lookahead)
        self._seed = seed

    def has_seed(self, seed: bytes) -> bool:
        return self._seed == seed

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

    def attempt(self) -> HashChain:
        """Return a copy: the caller's function may raise."""
        return self.copy()

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

    For tests that force collisions, and for engines that bring their own block hashes. `is_portable` promises that
    other processes get the same digests, so that events may carry them.
    """

    def __init__(
        self,
        function: Callable[[bytes, bytes], bytes],
        is_collision_resistant: bool = False,
        is_portable: bool = False,
    ) -> None:
        super().__init__(is_collision_resistant, is_portable)
        self._function = function

    def start(self, root: bytes, block_size: i64) -> HashChain:
        return _FunctionChain(self._function, self._function(b"", root), block_size)


@final
class _GivenChain(HashChain):
    """Keys that are in a list already; the chain itself has no state."""

    def __init__(self, block_hashes: list[bytes], first: i64) -> None:
        self._hashes = block_hashes
        self._first: i64 = first

    def copy(self) -> HashChain:
        return self

    def digest(self, index: i64, words: vec[i64]) -> bytes:
        return self._hashes[self._first + index]

    def extend(self, data: bytes, start: i64, num_blocks: i64, extra: bytes, words: vec[i64], at: i64) -> None:
        hashes = self._hashes
        i: i64 = at // 2
        stop: i64 = i + num_blocks
        first = self._first
        if first + stop > i64(len(hashes)):
            raise InvalidArgumentError(f"block_hashes: {len(hashes)} are given, the tokens fill {first + stop} blocks")
        while i < stop:
            key = hashes[first + i]
            if len(key) < 16:
                raise InvalidArgumentError(f"block_hashes: needs 16 bytes at least, number {first + i} has {len(key)}")
            words[2 * i] = read_i64_le(key, 0)
            words[2 * i + 1] = read_i64_le(key, 8)
            i += 1


class GivenHasher(BlockHasher):
    """Keys that an engine has computed itself: one hasher per request, over a list that the engine appends to.

    Each covers the whole prefix up to its block's end, and all that identifies it; the first 16 bytes count. A block
    costs about 10 ns when compiled.
    """

    def __init__(
        self,
        block_hashes: list[bytes],
        is_collision_resistant: bool = True,
        is_portable: bool = True,
        key_lookahead: int = 0,
        first: int = 0,
    ) -> None:
        """Take the list, which must grow before the request gets the tokens, and the engine's promises.

        With `key_lookahead`, the list has a block's key once the request has that many tokens behind the block. That of
        the first block is number `first`: where it is 1, the key of each block is that of the prefix up to the next
        one's end, so that a draft head's data, which depends on the token behind it, is known by it.
        """
        super().__init__(is_collision_resistant, is_portable, key_lookahead)
        self._hashes = block_hashes
        if not 0 <= first < 1 << 20:
            raise InvalidArgumentError(f"first: must be 0 or more, and below 2**20, not {first!r}")
        self._first: i64 = first

    def start(self, root: bytes, block_size: i64) -> HashChain:
        return _GivenChain(self._hashes, self._first)


DEFAULT_HASHER: BlockHasher = SipHasher()
"""The hasher of requests that name none: its secret is drawn once per process."""
