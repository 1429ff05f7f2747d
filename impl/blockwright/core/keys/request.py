"""A request: its tokens, and the keys of its full blocks.

Tokens are kept packed (four bytes each), keys as two 64-bit words per block; there is no Python object per token or
block. Keys are made once, when they are first needed: a lookup asks for a few at a time and goes no further than its
first miss, a step asks for those of the blocks that it publishes. They stay with the request until it is dropped, so a
block that was trimmed needs no parent to be found again.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, SupportsIndex, cast, final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le
from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.arguments import Tokens, integer, whole
from blockwright.core.keys.block_hash import DEFAULT_HASHER, BlockHasher, HashChain, next_length
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import WIDE
from blockwright.ids import id_given, id_kept

MAX_TOKEN_ID: Final = 2**31 - 1
MAX_PROMPT_ID: Final = 2**62 - 1
"""Engines put ids of more than 31 bits into prompts, in the place of images: `pack_prompt`."""
NO_SIZE: Final = 0
TO_COME: Final = -1
MAX_LENGTH: Final = 2**31 - 1
"""Tokens that a request can have at most; the packed structures count in 32 bits."""
OWN_SIZE: Final = "manager"
"""As the block size of a request: that of the manager which serves it."""

_uids = [0]
_FEW = 64  # tokens of an array that are sooner read one by one than copied whole
_ONE_TOKEN = [0]  # to make a request of, as long as it has not become a copy


class MultiModalItem(NamedTuple):
    """One image, clip or the like within a prompt.

    Attributes:
        identifier: hash of its content, whole; two items with one identifier are taken to be equal.
        offset: position of its first placeholder token.
        length: its placeholder tokens.
    """

    identifier: str
    offset: int
    length: int


def exact_text(text: str) -> str:
    """Return the same text as an exact `str`: Python's own hash and comparison cannot fail. O(1).

    A subclass may bring its own, which would run, and might raise, in the middle of later calls.
    """
    # A dictionary would call the subclass's `__hash__` in the middle of a step, where an error tears the manager.
    return text if type(text) is str else str.__str__(text)


def owner_mark(name: str | None) -> i64:
    """Return 64 bits that represent a salt or an adapter's name in this process, never 0; 0 for None. O(length)."""
    if name is None:
        return 0
    mark: i64 = hash(name)
    return mark if mark != 0 else 1


def _tagged(tag: bytes, text: str) -> bytes:
    """Encode one extra key: a tag byte, the length, the text; no two sequences of them look alike."""
    data = text.encode("utf-8", "surrogatepass")
    return tag + len(data).to_bytes(8, "little") + data


def pack_tokens(name: str, token_ids: object) -> bytes:
    """Pack token ids, four bytes each, after checking that each is an integer within 0 .. 2**31 - 1.

    Takes a list or another iterable of ints, or anything with the buffer protocol (``array``, numpy) or a ``numpy()``
    method (a CPU tensor) that is one-dimensional. Complexity: O(n); buffers of 32-bit integers are copied whole.

    Raises:
        InvalidArgumentError: names the argument `name` and the first offending value.
    """
    if isinstance(token_ids, list):
        return _pack_list(name, token_ids)
    if isinstance(token_ids, array) and len(token_ids) <= _FEW:
        return _pack_list(name, token_ids.tolist())
    if isinstance(token_ids, tuple):
        return _pack_list(name, list(token_ids))
    if not isinstance(token_ids, (str, bytes, bytearray)):
        view = _viewed(token_ids)
        if view is None:
            to_numpy = getattr(token_ids, "numpy", None)
            if to_numpy is not None:
                token_ids = to_numpy()
                view = _viewed(token_ids)
        if view is not None:
            try:
                return _pack_view(name, view)
            except NotImplementedError:  # a format that memoryview cannot unpack
                return _pack_list(name, list(cast("Iterable[int]", token_ids)))
        if isinstance(token_ids, Iterable):
            return _pack_list(name, list(token_ids))
    raise InvalidArgumentError(f"{name}: needs a sequence of integers, not {type(token_ids).__name__}")


def pack_prompt(name: str, token_ids: object) -> tuple[bytes, list[MultiModalItem]]:
    """Pack the tokens of a prompt, whose ids may have 62 bits, with an item for each of more than 31.

    Of such an id the lower 31 bits are packed, and its item carries it whole into keys, events and comparisons. O(n).

    Raises:
        InvalidArgumentError: names the argument and the first offending value.
    """
    try:
        return pack_tokens(name, token_ids), []
    except InvalidArgumentError:
        if isinstance(token_ids, (str, bytes, bytearray)) or not isinstance(token_ids, Iterable):
            raise
        try:
            ids = [operator.index(cast("Any", token)) for token in token_ids]
        except TypeError:
            ids = []
        wide = [at for at, token in enumerate(ids) if token > MAX_TOKEN_ID]
        if not wide:
            raise
    bad = [at for at, token in enumerate(ids) if not 0 <= token <= MAX_PROMPT_ID]
    if bad:
        raise InvalidArgumentError(
            f"{name}: token ids must be integers within 0..{MAX_PROMPT_ID}, found {ids[bad[0]]!r} at {bad[0]}"
        )
    items = [MultiModalItem(f"{WIDE}{ids[at]}", at, 1) for at in wide]
    return _pack_list(name, [token & MAX_TOKEN_ID for token in ids]), items


def _viewed(token_ids: object) -> memoryview | None:
    try:
        return memoryview(token_ids)  # type: ignore[arg-type]
    except TypeError:
        return None


def _pack_list(name: str, token_ids: list[int]) -> bytes:
    writer = BytesWriter()
    # Eight times 2**61 is 0 in C and positive in Python: so the source tells which build it is in.
    step: i64 = 1 << 61
    grows = step * 8 != 0  # uncompiled: there `for` does not check that a token is an integer
    try:
        for token in token_ids:
            if token < 0 or token > MAX_TOKEN_ID or (grows and not isinstance(token, int)):
                break
            write_i32_le(writer, i32(token))
        else:
            return writer.getvalue()
    except (TypeError, ValueError):
        pass
    position = len(writer) // 4
    found = cast("list[object]", token_ids)[position]
    # Integers of numpy are none for the compiled loop. Only a list that has them is gone through a second time.
    if not isinstance(found, int) and all([hasattr(token, "__index__") for token in cast("list[object]", token_ids)]):
        return _pack_list(name, [operator.index(token) for token in cast("list[Any]", token_ids)])
    raise InvalidArgumentError(
        f"{name}: token ids must be integers within 0..{MAX_TOKEN_ID}, found {found!r} at {position}"
    )


def _pack_view(name: str, view: memoryview) -> bytes:
    if view.ndim != 1:
        raise InvalidArgumentError(f"{name}: must have one dimension, not {view.ndim}")
    if len(view) <= _FEW:
        return _pack_list(name, view.tolist())
    if view.itemsize == 8 and view.format in ("q", "l", "Q", "L", "<q", "=q"):
        return _narrowed(bytes(view)) or _pack_list(name, view.tolist())
    if view.itemsize != 4 or view.format not in ("i", "l", "I", "L", "<i", "=i"):
        return _pack_list(name, view.tolist())
    data = bytes(view)
    size: i64 = len(data)
    signs: i64 = 0
    i: i64 = 0
    while i + 32 <= size:
        # Negative numbers and those above the maximum have the same top bit, so one test at the end covers all tokens.
        signs |= read_i64_le(data, i) | read_i64_le(data, i + 8) | read_i64_le(data, i + 16) | read_i64_le(data, i + 24)
        i += 32
    while i + 8 <= size:
        signs |= read_i64_le(data, i)
        i += 8
    if i < size:
        signs |= i64(read_i32_le(data, i))
    # Either half of a word has its top bit set iff some token was negative or above the maximum.
    if ((signs >> 31) & 1) != 0 or signs < 0:
        return _pack_list(name, view.tolist())
    return data


def _narrowed(data: bytes) -> bytes:
    """Pack integers of 64 bits, or return nothing: one of them is out of range."""
    count: i64 = len(data) // 8
    tokens = zeros32(count)  # storing in a vector takes a third of the time of writing bytes
    seen: i64 = 0
    i: i64 = 0
    while i < count:
        token = read_i64_le(data, 8 * i)
        seen |= token
        tokens[i] = i32(token & MAX_TOKEN_ID)
        i += 1
    return bytes(tokens) if seen >> 31 == 0 else b""


@final
class BlockKeys:
    """The keys of a request's full blocks as one group of layers sees them.

    Attributes:
        words: two words for each key of the request that has been made; `ensure_keys` makes more.
        units: hashed units per block of the group; a block's key is that of its last unit, which covers the prefix.
        request: the request, for its content; None where only hashes are known.
        num_units: hashed units that are full.
    """

    def __init__(self, words: vec[i64], units: i64, request: Request | None) -> None:
        self.words: vec[i64] = words
        self.units: i64 = units
        self.request = request
        self.num_units: i64 = i64(len(words)) // 2 if request is None else request.num_full_blocks()

    def num_blocks(self) -> i64:
        """Return how many blocks are full, and so can be asked for."""
        return self.num_units // self.units

    def ensure_keys(self, count: i64) -> i64:
        """Make the keys of the first `count` blocks, and a few more; return how many blocks have one.

        Complexity: O(tokens hashed).
        """
        request = self.request
        made: i64 = i64(len(self.words)) // 2
        if request is not None and made < count * self.units:
            # After a first hit the next are likely: making keys in growing steps spares calls, and little is made in
            # vain.
            request.hash_until(max(count * self.units, next_length(made) if made > 0 else made))
            self.words = request._words
            made = i64(len(self.words)) // 2
        return made // self.units

    def key(self, index: i64) -> tuple[i64, i64]:
        """Return the two words of the key of a block, which is made if it was not. O(1), or O(tokens hashed)."""
        self.ensure_keys(index + 1)
        at = 2 * ((index + 1) * self.units - 1)
        return self.words[at], self.words[at + 1]

    def content(self, index: i64, block_size: i64) -> bytes:
        request = self.request
        if request is None:
            raise InvalidArgumentError("verify_tokens: needs a request; bare hashes cannot be verified")
        return request.prefix_content((index + 1) * block_size, request._lookahead)


class ManagerTables:
    """The base of a request's block tables, through which it finds the manager that serves it.

    Attributes:
        owner: number of the manager; 0 once the request is released.
    """

    def __init__(self, owner: i64) -> None:
        self.owner: i64 = owner


@final
class Answer:
    """What the last lookup of a request found, for one that is repeated. Nothing of it is ever changed.

    Attributes:
        num_tokens, longest: tokens of the request then, and the longest hit that was asked for.
        edition: of the index that it was found in.
        length, junction: of the hit, and the longest hit that layers with full attention had alone.
        ids: the entries of the hit, per group.
    """

    def __init__(
        self,
        num_tokens: i64,
        longest: i64,
        edition: object,
        length: i64,
        junction: i64,
        ids: list[vec[i32]],
    ) -> None:
        self.num_tokens: i64 = num_tokens
        self.longest: i64 = longest
        self.edition = edition
        self.length: i64 = length
        self.junction: i64 = junction
        self.ids = ids

    def is_still(self, num_tokens: i64, longest: i64, edition: object) -> bool:
        """Return whether a lookup now would find the same: as many tokens as then, and no key came or went. O(1)."""
        # Tokens are only ever appended, so that a request with as many as then has the same ones.
        return self.edition is edition and self.num_tokens == num_tokens and self.longest == longest


@final
class Request:
    """A request as the KV-cache manager sees it.

    Attributes:
        block_size: tokens per hashed block; None while the request has no keys.
        num_prompt_tokens: tokens of the prompt.
        cache_salt, lora_name: parts of the identity; requests that differ in them never share blocks.
        prompt_logprobs: the engine needs log-probabilities of the prompt, so a cached prefix cannot be skipped.

    Example:
        >>> request = Request("r1", [7, 8, 9, 10, 11], block_size=4)
        >>> request.num_tokens, len(request.block_hashes)
        (5, 1)
    """

    def __init__(
        self,
        request_id: Hashable,
        prompt_token_ids: object,
        block_size: int | str | None = OWN_SIZE,
        *,
        cache_salt: str | None = None,
        lora_name: str | None = None,
        mm_items: Sequence[MultiModalItem] = (),
        hasher: BlockHasher | None = None,
        prompt_logprobs: bool = False,
    ) -> None:
        """Pack the prompt; its blocks are hashed when their keys are needed.

        Args:
            request_id: a non-empty string, or any other hashable object but None. Equal ids are the same.
            prompt_token_ids: at least one integer within 0 .. 2**62 - 1; a list, ``array``, numpy array or CPU tensor.
                One above 2**31 - 1 takes as long as a multimodal item.
            block_size: tokens per hashed block: ``"manager"``, those of the manager that the request is first brought
                to, if that caches, or a number that divides its blocks. With None the request is never cached.
            cache_salt: keeps the prefix private to requests with the same salt.
            lora_name: the adapter.
            mm_items: multimodal items, each within the prompt; blocks that overlap one carry its identity.
            hasher: how blocks are hashed; by default keyed SipHash with this process's secret. A caller's hasher is
                called here and when tokens are appended, not later.
            prompt_logprobs: see above.

        Complexity: O(tokens + items). Compiled, 16 tokens take about 20 ns from a list and 4 from an array, and 30 more
        once they are hashed; with items a microsecond, and the logarithm of their number if none overlaps another.

        Raises:
            InvalidArgumentError: names the argument.
        """
        self._request_id: str = request_id if type(request_id) is str and request_id else id_kept(request_id)
        size: i64 = NO_SIZE
        if isinstance(block_size, str):
            if block_size != OWN_SIZE:
                raise InvalidArgumentError(f"block_size: must be a number, {OWN_SIZE!r} or None, not {block_size!r}")
            size = TO_COME
        elif block_size is not None:
            if isinstance(block_size, bool) or not 1 <= block_size <= MAX_LENGTH:
                raise InvalidArgumentError(f"block_size: must be within 1..{MAX_LENGTH}, not {block_size!r}")
            size = operator.index(block_size)
        self._prompt, wide = pack_prompt("prompt_token_ids", prompt_token_ids)
        self._num_prompt: i64 = len(self._prompt) // 4
        if self._num_prompt < 1 or self._num_prompt > MAX_LENGTH:
            raise InvalidArgumentError(f"prompt_token_ids: needs 1..{MAX_LENGTH} tokens, not {self._num_prompt}")
        self._output: vec[i32] = vec[i32]()
        self._num_computed: i64 = 0
        self._num_looked_up: i64 = 0  # tokens of its last lookup; 0 once it is admitted
        self._junction: i64 = 0  # see `junction`
        self._lease: i64 = 0  # see `lease`
        self._was_admitted = False
        # Tokens of its last lookup beyond the device, and those found there; 0 once it is admitted.
        self._num_asked_outside: i64 = 0
        self._num_found_outside: i64 = 0
        self.cache_salt = None if cache_salt is None else exact_text(cache_salt)
        self.lora_name = None if lora_name is None else exact_text(lora_name)
        # By these the blocks of a salt, or of an adapter, are found again to be forgotten; 0 where there is none.
        self._salt_mark: i64 = owner_mark(self.cache_salt)
        self._adapter_mark: i64 = owner_mark(self.lora_name)
        self.prompt_logprobs = prompt_logprobs
        self._mm_items = _checked_items([*mm_items, *wide] if wide else mm_items, self._num_prompt)
        # Per item, in order of offsets: where the last of the items up to it ends, so that a block finds its first one.
        self._mm_ends: list[int] = []
        if self._mm_items:
            self._mm_ends = list(accumulate([item.offset + item.length for item in self._mm_items], max))
        used = DEFAULT_HASHER if hasher is None else hasher
        self.hasher = used
        self._lookahead: i64 = used.key_lookahead
        self._root = b"" if self.lora_name is None else _tagged(b"L", self.lora_name)
        if self.cache_salt is not None:
            self._root += _tagged(b"S", self.cache_salt)
        self._block_size: i64 = size
        self._chain: HashChain | None = None
        self._is_eager = False  # its hasher is asked as soon as a block is full
        if size > 0:
            self._start_chain(size)
        self._words: vec[i64] = vec[i64]()
        self._hashed = b""  # tokens of the block that was hashed last on its own, and where it begins
        self._hashed_at: i64 = 0
        _uids[0] += 1
        self._uid: i64 = _uids[0]
        self._held: ManagerTables | None = None
        self._answer: Answer | None = None  # of its last lookup; None once it is admitted
        self._hash_early()

    def hash_by(self, block_size: i64) -> None:
        """Let the request be hashed in blocks of a manager's size, if it was made to be hashed so. O(1)."""
        if self._block_size != TO_COME:
            return
        self._start_chain(block_size)
        self._block_size = block_size
        try:
            self._hash_early()
        except BaseException:  # a hasher's, say
            self._chain = None
            self._is_eager = False
            self._block_size = TO_COME
            raise

    def _start_chain(self, block_size: i64) -> None:
        """Have the hasher start a chain of blocks of this size."""
        chain = self.hasher.start(self._root, block_size)
        self._is_eager = not chain.may_wait()
        self._chain = chain

    def copy(self) -> Request:
        """Return an independent copy of the same request: for a copied manager, not for the same one."""
        twin = Request(self._request_id, _ONE_TOKEN)
        twin._request_id = self._request_id
        twin._prompt = self._prompt
        twin._num_prompt = self._num_prompt
        twin._output = self._output[:]
        twin._num_computed = self._num_computed
        twin._num_looked_up = self._num_looked_up
        twin._junction = self._junction
        twin._lease = self._lease
        twin._was_admitted = self._was_admitted
        twin._num_asked_outside = self._num_asked_outside
        twin._num_found_outside = self._num_found_outside
        twin.cache_salt = self.cache_salt
        twin.lora_name = self.lora_name
        twin._salt_mark = self._salt_mark
        twin._adapter_mark = self._adapter_mark
        twin.prompt_logprobs = self.prompt_logprobs
        twin._mm_items = self._mm_items
        twin._mm_ends = self._mm_ends
        twin.hasher = self.hasher
        twin._lookahead = self._lookahead
        twin._root = self._root
        twin._block_size = self._block_size
        chain = self._chain
        twin._chain = None if chain is None else chain.copy()
        twin._is_eager = self._is_eager
        twin._words = self._words[:]
        twin._uid = self._uid
        twin._held = self._held
        twin._answer = self._answer
        return twin

    def __copy__(self) -> Request:
        return self.copy()

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "Request: can be neither pickled nor copied deeply, as it is tied to its manager; use copy() with a copy "
            "of the manager, fork() for another request, or send its tokens and make it there"
        )

    def fork(self, request_id: Hashable) -> Request:
        """Return another request with the same tokens, keys and computed tokens, for `KVCacheManager.fork`.

        Blocks that have been hashed are not hashed again. Complexity: O(output tokens + blocks).

        Raises:
            InvalidArgumentError: the id is the empty string, None, or has no hash.
        """
        name = id_kept(request_id)
        child = self.copy()
        child._request_id = name
        _uids[0] += 1
        child._uid = _uids[0]
        # The copy refers to the parent's tables; the child has none until it is brought to a manager.
        child._held = None
        return child

    def shares_prefix(self, other: Request, count: i64) -> bool:
        """Return whether another request has the same first `count` tokens, and all that identifies them. O(count)."""
        if other.num_tokens < int(count) or self._root != other._root:
            return False
        if self._mm_items or other._mm_items:
            mine = [item for item in self._mm_items if item.offset < int(count)]
            if mine != [item for item in other._mm_items if item.offset < int(count)]:
                return False
        # A fork has its parent's prompt, which one comparison of bytes shows.
        i: i64 = min(self._num_prompt, count) if self._prompt == other._prompt else 0
        while i < count and self.token_at(i) == other.token_at(i):
            i += 1
        return i == count

    @property
    def request_id(self) -> Any:
        """Its name, as it was given; unique among running requests."""
        name = self._request_id
        return name if type(name) is str else id_given(name)

    @property
    def block_size(self) -> int | None:
        """Tokens per hashed block, or None."""
        return self._block_size if self._block_size > 0 else None

    @property
    def num_computed_tokens(self) -> int:
        """Tokens with computed KV data; the engine sets it after each step.

        Raises:
            InvalidArgumentError: the value is no integer, or has more than 63 bits.
        """
        return self._num_computed

    @num_computed_tokens.setter
    def num_computed_tokens(self, count: int) -> None:
        """Keep it as it is; a call that uses it checks it."""
        if not isinstance(count, int) or not -(2**62) <= count < 2**62:
            raise InvalidArgumentError(f"num_computed_tokens: must be an integer in a safe range, not {count!r}")
        self._num_computed = int(count)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return self._num_prompt + len(self._output)

    @property
    def junction(self) -> int:
        """Tokens that layers with full attention had cached at the last lookup, where that exceeds the hit; else 0.

        The prompt parts there from earlier ones. Where no layer has full attention, the last prompts tell. With
        recurrent layers, end a prefill step exactly there: otherwise no state is kept, and the next prompt that parts
        there finds nothing (``keep_wanted``). It lies inside a block only with ``prefix_match_unit``. O(1).
        """
        return self._junction

    @property
    def lease(self) -> int:
        """Tokens up to which no step needs a call of its manager; 0 if each does. Slots ahead count as tokens. O(1).

        Until ``num_computed_tokens`` plus the tokens of a step exceeds it, `allocate_slots` returns no block, changes
        no table and publishes nothing, whatever the tokens are: leave the call out, and set the count as after any
        step. Set by each call that gives slots; ended by a fork and by `free`. 0 with `overlap_steps`. law: LEASE-1.
        """
        return self._lease

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._num_prompt

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far."""
        return len(self._output)

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt, unpacked. O(n)."""
        ids = [int(self.token_at(i)) for i in range(self._num_prompt)]
        for item in self._mm_items:
            if item.identifier.startswith(WIDE):
                ids[item.offset] = int(item.identifier[len(WIDE) :])
        return ids

    @property
    def output_token_ids(self) -> list[int]:
        """The output so far. O(n)."""
        return [int(token) for token in self._output]

    @property
    def all_token_ids(self) -> list[int]:
        """Prompt and output. O(n)."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def block_hashes(self) -> list[bytes]:
        """Keys of the full blocks, each covering the whole prefix up to its end. O(n)."""
        full = self.num_full_blocks()
        self.hash_until(full)
        return [self.block_digest(i) for i in range(full)]

    def block_digest(self, index: i64) -> bytes:
        """Return the key of one full block in full length. O(1), once it has been hashed."""
        self.hash_until(index + 1)
        chain = self._chain
        if chain is None:
            raise InvalidArgumentError(f"request: {self.request_id!r} was made without a block_size and has no keys")
        return chain.digest(index, self._words)

    def token_at(self, position: i64) -> i32:
        if position < self._num_prompt:
            return read_i32_le(self._prompt, position * 4)
        return self._output[position - self._num_prompt]

    def sync(self, token_ids: Tokens) -> int:
        """Append those of the engine's own tokens that are not known yet; return how many. O(new tokens).

        An engine that keeps one list of prompt and output tokens needs no second one:
        ``request.sync(sequence.token_ids)`` before each step. Tokens that are known already are not read again.

        Args:
            token_ids: all tokens, the prompt first: what can be sliced and then taken by `append_output_token_ids`.

        Raises:
            InvalidArgumentError: fewer tokens than are known, or one that is wrong; nothing is appended.
        """
        known = self.num_tokens
        count = len(token_ids) - known
        if count < 0:
            raise InvalidArgumentError(
                f"token_ids: {self._request_id!r} has {known} known tokens, which are not taken back, not "
                f"{len(token_ids)}; give the prompt with the output"
            )
        if count > 0:
            self.append_output_token_ids(token_ids[known:])
        return count

    def append_output_token_ids(self, token_ids: SupportsIndex | Tokens) -> None:
        """Append accepted output tokens; blocks that become full are hashed when their keys are needed.

        Complexity: O(new tokens).

        Raises:
            InvalidArgumentError: a token is not within 0 .. 2**31 - 1, or the request would be too long; nothing is
                appended.
        """
        packed = pack_tokens("token_ids", [token_ids] if isinstance(token_ids, int) else token_ids)
        count: i64 = len(packed) // 4
        if self._num_prompt + len(self._output) + count > MAX_LENGTH:
            raise InvalidArgumentError(f"token_ids: a request has at most {MAX_LENGTH} tokens")
        self.append_packed(packed, 0, count)

    def append_packed(self, packed: bytes, start: i64, count: i64) -> None:
        """Append some of the tokens that `pack_tokens` has checked, or none if that fails. O(count)."""
        before = self._output
        output = before
        i = start
        while i < start + count:
            output = append(output, read_i32_le(packed, i * 4))
            i += 1
        try:
            self._output = output
            self._hash_early()
        except BaseException:  # a hasher's, say
            self._output = before
            raise

    def num_full_blocks(self) -> i64:
        """Return how many hashed blocks the known tokens fill and have a key; 0 without a block size. O(1)."""
        return self.num_keyed() // self._block_size if self._block_size > 0 else 0

    def num_keyed(self) -> i64:
        """Return the tokens that keys can be made of: those before the tokens that a key looks ahead at. O(1).

        law: PUB-4.
        """
        return max(self._num_prompt + i64(len(self._output)) - self._lookahead, 0)

    def _hash_early(self) -> None:
        """Make all keys now, if that must not wait."""
        if self._is_eager:
            self.hash_until(self.num_full_blocks())

    def hash_filled(self, num_tokens: i64) -> None:
        """Make the keys of the blocks that some tokens fill, as far as these are known. O(tokens hashed)."""
        size = self._block_size
        # Most steps fill no block, so that they are spared the division.
        if size > 0 and num_tokens - i64(len(self._words)) // 2 * size >= size:
            self.hash_until(num_tokens // size)

    def hash_until(self, count: i64) -> None:
        """Make the keys of the first `count` full blocks that have none yet; all of them, or none if that fails.

        Complexity: O(tokens hashed).
        """
        i: i64 = i64(len(self._words)) // 2
        chain = self._chain
        if i >= count or chain is None:
            return
        before = self._words
        stop = min(count, self.num_full_blocks())
        if i >= stop:
            return
        size = self._block_size
        in_prompt = min(self._num_prompt // size, stop)
        # Items give each block its own extra keys; without them the whole prompt is hashed in one call.
        in_one = i < in_prompt and not self._mm_items
        if self._lookahead > 0:
            in_one = False
        if in_one and i == 0 and stop > next_length(0):
            self.hash_until(next_length(0))  # by the last of these an earlier prompt is found that begins alike
            self.hash_until(stop)
            return
        if in_one:
            before = chain.recall(self._prompt, before, self._num_prompt // size)
            i = i64(len(before)) // 2
            if i >= stop:
                self._words = before
                return
        # The chain and the words change together at the end, so that a hasher that raises leaves both as they were.
        attempt = chain.attempt()
        words = extend(before, zeros64(2 * (stop - i)))
        if in_one:
            attempt.extend(self._prompt, i * size * 4, in_prompt - i, b"", words, 2 * i)
            attempt.remember(self._prompt, words, i, in_prompt)
            i = in_prompt
        data = b""
        while i < stop:
            data = self.token_bytes(i * size, (i + 1) * size)
            attempt.extend(data, 0, 1, self._extra_keys(i), words, 2 * i)
            i += 1
        self._hashed_at = -1
        self._hashed = data
        try:
            self._chain = attempt
            self._words = words
        except BaseException:
            self._chain = chain
            raise
        self._hashed_at = (i - 1) * size

    def token_bytes(self, start: i64, stop: i64) -> bytes:
        if stop <= self._num_prompt:
            return self._prompt[start * 4 : stop * 4]
        writer = BytesWriter()
        i = start
        while i < stop:
            write_i32_le(writer, self.token_at(i))
            i += 1
        return writer.getvalue()

    def block_bytes(self, start: i64, stop: i64) -> bytes:
        """Return `token_bytes`; of the block that was hashed last, which its event needs, in O(1)."""
        # An append that fails takes back the tokens and the key of its block, but not these bytes.
        is_keyed = stop == i64(len(self._words)) // 2 * self._block_size
        if is_keyed and start == self._hashed_at and 4 * (stop - start) == i64(len(self._hashed)):
            return self._hashed
        return self.token_bytes(start, stop)

    def _extra_keys(self, index: i64) -> bytes:
        """Encode the tokens that a block's key looks ahead at, and the multimodal items that overlap it and them.

        Items are encoded at their places relative to the block. Complexity: O(log items + those).
        """
        data = b""
        start = int(index * self._block_size)
        stop = start + int(self._block_size) + int(self._lookahead)
        if self._lookahead > 0:
            data = b"A" + self.token_bytes(start + self._block_size, stop)
        # Items before this one end before the block; a long prompt with many images would be read in quadratic time.
        at = bisect_right(self._mm_ends, start)
        while at < len(self._mm_items) and self._mm_items[at].offset < stop:
            item = self._mm_items[at]
            at += 1
            if item.offset + item.length > start:
                place = (item.offset - start).to_bytes(8, "little", signed=True) + item.length.to_bytes(8, "little")
                data += _tagged(b"M", item.identifier) + place
        return data

    def items_within(self, start: i64, stop: i64) -> tuple[tuple[str, int, int], ...]:
        """Return the multimodal items that overlap a range: identifier, offset from its start, length. O(items)."""
        if not self._mm_items:
            return ()
        first = int(start)
        return tuple(
            [
                (item.identifier, item.offset - first, item.length)
                for item in self._mm_items
                if item.offset < int(stop) and item.offset + item.length > first
            ]
        )

    def prefix_content(self, num_tokens: i64, ahead: i64) -> bytes:
        """Return an exact, injective encoding of whole blocks, the tokens ahead and all that identifies them. O(n)."""
        items = b"".join([self._extra_keys(i) + b"|" for i in range(num_tokens // self._block_size)])
        head = len(self._root).to_bytes(8, "little") + self._root + len(items).to_bytes(8, "little") + items
        return head + self.token_bytes(0, num_tokens + ahead)

    def keys(self, units: i64) -> BlockKeys:
        """Return the keys as a group with `units` hashed units per block sees them. O(1)."""
        return BlockKeys(self._words, units, self)

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, tokens={self.num_tokens}, computed={self.num_computed_tokens})"


def _checked_items(mm_items: Sequence[MultiModalItem], num_prompt: i64) -> list[MultiModalItem]:
    if not mm_items:
        return []
    size = int(num_prompt)
    items: list[MultiModalItem] = []
    for item in mm_items:
        given: Any = item  # its fields may be of any type
        if not isinstance(given.identifier, str) or not given.identifier:
            raise InvalidArgumentError(f"mm_items: an item needs a non-empty string as identifier, {item!r} has none")
        offset, length = whole(given.offset), whole(given.length)
        if offset is None or length is None or offset < 0 or length < 1 or offset + length > size:
            raise InvalidArgumentError(f"mm_items: {item!r} does not lie within the prompt of {size} tokens")
        items.append(MultiModalItem(exact_text(item.identifier), offset, length))
    return sorted(items, key=lambda item: (item.offset, item.identifier))


def count_of(name: str, count: int) -> i64:
    """Return a count that the door has made an exact integer, checked to be in a safe range."""
    # The short test is compiled into the hot calls; the error's text is made elsewhere.
    if count < 0 or count > MAX_LENGTH:
        return integer(name, count)
    return count


def item_count(name: str, given: object) -> i64:
    """Return one count of several, which the door has not read, checked to be an integer in a safe range."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_LENGTH:
        return given
    return integer(name, given)


def no_request(found: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"request: must be a Request, not {found!r}; make one by Request(id, token_ids)")


def units_per_block(request: Request, block_size: i64) -> i64:
    """Return how many hashed units of the request one block of `block_size` tokens spans.

    Raises:
        InvalidArgumentError: the request was hashed with a block size that does not divide it.
    """
    size = request._block_size
    if size > 0 and block_size % size == 0:
        return block_size // size
    raise InvalidArgumentError(
        f"request: {request.request_id!r} was made with block_size={request.block_size}, the manager's blocks hold "
        f"{block_size} tokens; leave block_size out, and it is hashed as the manager's blocks are"
    )
