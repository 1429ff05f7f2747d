"""Events as today's routers read them: msgpack, in vLLM's or SGLang's words (extra ``events``: msgspec).

A payload is ``[timestamp, [event, ...], rank]``. An event is a map with its name under ``"type"``, or in the older form
an array that begins with its name. Blocks that follow one another in a chain share one ``BlockStored``, as engines send
a prefill. Hashes are the last 64 bits of the block's hash, as an unsigned integer. Decoding accepts all of these.

What a hit needs of the groups of layers (`events.CacheLayout`) is in the first ``BlockStored`` of a payload, in vLLM's
form, as ``cache_layout``. Consumers skip keys that they do not know.

A parent that is absent now is named all the same: a consumer sees that it does not know it. A salt is in vLLM's
``extra_keys`` of every block, and in SGLang's ``cache_salt`` as well. Dynamo reads only the latter, and would take
blocks of two tenants for one.

Text is UTF-8 on the wire. A salt, a name or an identifier may hold lone surrogates, which UTF-8 cannot carry but JSON
can: each is written as U+FDD0, which Unicode leaves to programs, and four hexadecimal digits. So is U+FDD0 itself, so
that two texts never look alike. Decoding gives the text back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from struct import pack
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from blockwright.arguments import guard as _guard
from blockwright.errors import InvalidArgumentError
from blockwright.events import (
    KINDS,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    CacheLayout,
    GroupLayout,
    KVCacheEvent,
    token_format,
)
from blockwright.kinds import KVCacheSpec

_MARK: Final = "\ufdd0"
_UNWRITABLE: Final = re.compile(f"[\ud800-\udfff{_MARK}]")
_WRITTEN: Final = re.compile(f"{_MARK}([0-9a-f]{{4}})")

_DEVICE = "GPU"
_from_bytes = int.from_bytes  # big-endian, unless it is told otherwise
_VLLM_MEDIA = {"GPU": "GPU", "CPU": "CPU"}
_SGLANG_MEDIA = {"GPU": "GPU", "CPU": "CPU_PINNED", "DISK": "DISK"}


class _ArrayStored(msgspec.Struct, tag="BlockStored", gc=False, array_like=True):
    """vLLM's older form: as an array, and what came later is not in it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class _VllmStored(_ArrayStored, tag="BlockStored", omit_defaults=True, gc=False, array_like=False):
    """vLLM 0.33; fields without a default are always written."""

    locality: str | None = None
    ownership: str | None = None
    lookahead_token_ids: list[tuple[int, ...]] | None = None
    cache_salt: str | None = None  # not vLLM's own; its classes skip what they do not know
    cache_layout: CacheLayout | None = None  # the same


class _ArrayRemoved(msgspec.Struct, tag="BlockRemoved", gc=False, array_like=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class _VllmRemoved(_ArrayRemoved, tag="BlockRemoved", omit_defaults=True, gc=False, array_like=False):
    locality: str | None = None
    ownership: str | None = None


class _SglangStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False):
    """SGLang 0.5.23."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _ArrayCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False, array_like=True):
    pass


class GroupKind(NamedTuple):
    """The description of a group of layers for routers.

    Attributes:
        kind: vLLM's name.
        sliding_window: positions that a token sees, at least 1; None for all.
    """

    kind: str
    sliding_window: int | None = None


def kinds_of(specs: Iterable[KVCacheSpec]) -> list[GroupKind]:
    """Return what vLLM's consumers call the groups of a manager: `manager.kv_cache_config`'s specs, in order.

    They have no name for a window with sinks: it is "unknown" to them, as a window alone would find hits that it lacks.
    """
    return [
        GroupKind("unknown")
        if getattr(spec, "sink_len", 0)
        else GroupKind(KINDS[type(spec).__name__], getattr(spec, "sliding_window", None))
        for spec in specs
    ]


def _wire_text(text: str) -> str:
    """Return text that UTF-8 can carry: itself, except for lone surrogates. No two texts have the same. O(text)."""
    return text if text.isascii() else _UNWRITABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def _text_of(written: str | None) -> str | None:
    """Undo `_wire_text`. O(text)."""
    if written is None or written.isascii():
        return written
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), written)


def hash_of(block_hash: BlockHash) -> int:
    """Return the integer that represents a hash on the wire: the last 64 bits of the digest.

    A tier's key is the digest with the number of the group after it. The number is left out, so that a block has the
    same integer on every medium.
    """
    return _from_bytes(block_hash[:32][-8:]) if isinstance(block_hash, bytes) else block_hash


# The same without a check of its argument, for each event.
_hash_of = hash_of


class _Kinds(dict[int, tuple[int | None, str | None, int | None]]):
    """The description of each group; empty where no kinds are given."""

    def __missing__(self, group: int) -> tuple[None, None, None]:
        if self:
            raise InvalidArgumentError(
                f"groups: {len(self)} kinds were given, and an event is of group {group}; give the kind of every group "
                "of the manager (kinds_of), or none"
            )
        return None, None, None


class Encoder:
    """Writes payloads.

    Example:
        >>> encode = Encoder("vllm", rank=0)
        >>> payload = encode([BlockStored(bytes(32), None, pack("<2i", 7, 8), 2)], 1.5)
        >>> msgspec.msgpack.decode(payload)[1][0]["token_ids"], decode(payload)[0].token_ids
        ([7, 8], (7, 8))
    """

    def __init__(
        self, form: str = "vllm", *, rank: int = 0, groups: Sequence[GroupKind] = (), as_arrays: bool = False
    ) -> None:
        """Choose the form.

        Args:
            form: ``"vllm"`` or ``"sglang"``. SGLang's has one group of layers and no adapter's name: a block that it
                cannot express (of another group, an adapter, a multimodal item, a hash that looks ahead) is left out
                rather than sent wrong.
            rank: the engine's data-parallel rank.
            groups: the kinds of layers, as `kinds_of` returns them; without, no group is named.
            as_arrays: vLLM's older form, which leaves out blocks with a hash that looks ahead.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if form not in ("vllm", "sglang"):
            raise InvalidArgumentError(f"form: must be 'vllm' or 'sglang', not {form!r}")
        if as_arrays and form == "sglang":
            raise InvalidArgumentError("as_arrays: SGLang's events are maps")
        self._rank = rank
        self._kinds = _Kinds({at: (at, *kind) for at, kind in enumerate(groups)})
        self._pack = msgspec.msgpack.Encoder().encode
        self._as_arrays = as_arrays
        self._cleared: object = _ArrayCleared() if as_arrays else _Cleared()
        self._stored: Callable[[list[BlockStored]], object] = self._vllm if form == "vllm" else self._sglang
        self._is_sglang = form == "sglang"

    def __call__(self, events: Iterable[KVCacheEvent], timestamp: float) -> bytes:
        """Return the payload of one batch. O(events).

        Raises:
            InvalidArgumentError: an event is of a group without a kind, although others have one, or has a field of a
                wrong type.
        """
        try:
            return self._encoded(events, timestamp)
        except InvalidArgumentError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
            raise InvalidArgumentError(
                f"events: cannot be encoded ({type(error).__name__}: {error}); give events as take_events returns them"
            ) from error

    def _encoded(self, events: Iterable[KVCacheEvent], timestamp: float) -> bytes:
        entries: list[object] = []
        chain: list[BlockStored] = []
        stored = self._stored
        last, layout = None, None
        for event in events:
            if type(event) is BlockStored:
                layout = layout or event[12]
                # Fields by place, which costs least: a prefill has thousands of blocks.
                if last is not None and event[1] == last[0] and _is_joined(last, event, self._is_sglang):
                    chain.append(event)
                else:
                    if last is not None:
                        entries.append(stored(chain))
                    chain = [event]
                last = event
            else:
                if last is not None:
                    entries.append(stored(chain))
                    last = None
                entries.append(self._removed(event) if isinstance(event, BlockRemoved) else self._cleared)
        if last is not None:
            entries.append(stored(chain))
        # Once in a payload is enough: a consumer that joins late hears it with the next store.
        first = next((each for each in entries if isinstance(each, _VllmStored)), None)
        if first is not None:
            first.cache_layout = layout
        return self._pack((timestamp, [each for each in entries if each is not None], self._rank))

    def _vllm(self, chain: list[BlockStored]) -> object:
        """Return a chain of blocks as one event: mostly of one block; nearly all the time of encoding is spent here."""
        own, parent, tokens, size, lora, group, salt, items, medium, number, _, ahead, _ = chain[0]
        # Mostly one block, as decoding fills them: without the lists that a prefill needs.
        if len(chain) == 1:
            hashes, has_items = [_from_bytes(own[:32][-8:]) if isinstance(own, bytes) else own], bool(items)
        else:
            hashes, tokens = [_hash_of(each[0]) for each in chain], b"".join([each[2] for each in chain])
            has_items = any(each[7] for each in chain)
        before = _from_bytes(parent[:32][-8:]) if isinstance(parent, bytes) else parent
        at, kind, window = self._kinds[group]
        extra = ownership = None
        if lora is not None or salt is not None or has_items:
            extra = [_extra_keys(each) for each in chain]
            lora = None if lora is None else _wire_text(lora)
            salt = None if salt is None else _wire_text(salt)
        if medium != _DEVICE:
            medium, ownership = _vllm_medium(medium)
        ids = token_format(len(tokens) // 4).unpack(tokens)
        behind = [each.lookahead_token_ids for each in chain] if ahead else None
        if self._as_arrays:
            return (
                None
                if ahead
                else _ArrayStored(hashes, before, ids, size, number, medium, lora, extra, at, kind, window)
            )
        return _VllmStored(
            hashes, before, ids, size, number, medium, lora, extra, at, kind, window, None, ownership, behind, salt
        )

    def _sglang(self, chain: list[BlockStored]) -> object:
        """Return a chain of blocks as one event; None where SGLang's form cannot distinguish them from others."""
        first = chain[0]
        if first.group_id or first.lora_name is not None or first.mm_items or first.lookahead:
            return None
        parent, tokens = first.parent_block_hash, b"".join([each.tokens for each in chain])
        return _SglangStored(
            [_hash_of(each.block_hash) for each in chain],
            None if parent is None else _hash_of(parent),
            token_format(len(tokens) // 4).unpack(tokens),
            first.block_size,
            first.lora_id,
            _SGLANG_MEDIA.get(first.medium, "EXTERNAL"),
            None if first.cache_salt is None else _wire_text(first.cache_salt),
        )

    def _removed(self, event: BlockRemoved) -> object:
        """Return a removal. For blocks that were never sent it does no harm."""
        if self._is_sglang:
            return _VllmRemoved([_hash_of(event.block_hash)], _SGLANG_MEDIA.get(event.medium, "EXTERNAL"))
        medium, ownership = _vllm_medium(event.medium)
        group = self._kinds[event.group_id][0]
        hashes = [_hash_of(event.block_hash)]
        if self._as_arrays:
            return _ArrayRemoved(hashes, medium, group)
        return _VllmRemoved(hashes, medium, group, None, ownership)


def _is_joined(last: BlockStored, event: BlockStored, is_sglang: bool) -> bool:
    """Return whether a block and its child share an event: both have tokens, and one size, group, medium, owner.

    In SGLang's form a block with an item is left out, and takes no other with it.
    """
    if is_sglang and (event.mm_items or last.mm_items):
        return False
    if len(event.lookahead) != len(last.lookahead):
        return False
    return bool(event[3:7] == last[3:7] and event[8:10] == last[8:10] and event.tokens and last.tokens)


def _vllm_medium(medium: str) -> tuple[str, str | None]:
    """Return vLLM's name of a medium, and our own name where several media have that one name."""
    known = _VLLM_MEDIA.get(medium)
    return (known, None) if known is not None else ("STORAGE", _wire_text(medium))


def _extra_keys(event: BlockStored) -> list[Any] | None:
    """Return a block's identity beyond its tokens, in vLLM's order; the salt with every block. law: EV-5."""
    keys: list[Any] = [] if event.lora_name is None else [_wire_text(event.lora_name)]
    keys += [(_wire_text(name), offset) for name, offset, _ in event.mm_items]
    if event.cache_salt is not None:
        keys.append(_wire_text(event.cache_salt))
    return keys or None


_Hash = int | bytes
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Group = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class _ReadArrayStored(msgspec.Struct, tag="BlockStored", array_like=True):
    """The older form as it is read; engines before vLLM 0.11 write fewer fields."""

    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[_Token | list[_Token]]  # pairs, as SGLang names the tokens of a draft model's keys
    block_size: _Size
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: _Group | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: _Size | None = None


class _ReadGroup(msgspec.Struct, array_like=True):
    kind: str
    block_size: _Size
    window: _Size | None
    sinks: Annotated[int, msgspec.Meta(ge=0)]
    margin: Annotated[int, msgspec.Meta(ge=0)]


class _ReadLayout(msgspec.Struct, array_like=True):
    groups: Annotated[list[_ReadGroup], msgspec.Meta(min_length=1)]
    unit: _Size


class _ReadStored(_ReadArrayStored, tag="BlockStored", array_like=False):
    ownership: str | None = None
    lookahead_token_ids: list[list[_Token]] | None = None
    cache_salt: str | None = None
    cache_layout: _ReadLayout | None = None


class _ReadArrayRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: _Group | None = None


class _ReadRemoved(_ReadArrayRemoved, tag="BlockRemoved", array_like=False):
    ownership: str | None = None


class _ReadCleared(msgspec.Struct, tag="AllBlocksCleared"):
    medium: str | None = None


class _ReadMaps(msgspec.Struct, array_like=True):
    timestamp: Any
    events: list[_ReadStored | _ReadRemoved | _ReadCleared]
    rank: Any = None


class _ReadEach(msgspec.Struct, array_like=True):
    timestamp: Any
    events: list[dict[str, Any] | list[Any]]
    rank: Any = None


_MAPS = msgspec.msgpack.Decoder(_ReadMaps)
_EACH = msgspec.msgpack.Decoder(_ReadEach)
_UNREADABLE: Final = (msgspec.MsgspecError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_KNOWN: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
# The media by all names that engines have for them.
_MEDIA: Final = {
    name: medium
    for medium, names in {
        "GPU": ("GPU", "HBM", "DEVICE"),
        "CPU": ("CPU", "CPU_PINNED", "CPU_TIER1", "HOST", "HOST_PINNED", "DRAM"),
        "DISK": ("DISK", "CPU_TIER2", "SSD", "NVME"),
        "STORAGE": ("STORAGE",),
        "EXTERNAL": ("EXTERNAL",),
    }.items()
    for name in names
}


class Events(list[KVCacheEvent]):
    """The events of a payload, block by block.

    Attributes:
        rank: of the engine, by which `PrefixIndex` keeps its blocks apart.
        num_unknown: events of types that are not known, and events on a medium of which no engine's name is known.
        kinds: what is said of single groups of layers: vLLM's name of the kind, and the window.
        layout: what is said of all of them.
    """

    def __init__(self, rank: object = None) -> None:
        """Begin with none."""
        super().__init__()
        self.rank = rank if isinstance(rank, int) else int(rank) if isinstance(rank, str) and rank.isdecimal() else 0
        self.num_unknown = 0
        self.kinds: dict[int, tuple[str, int | None]] = {}
        self.layout: CacheLayout | None = None


def decode(payload: bytes) -> Events:
    """Return the events of a payload, block by block; hashes are the integers of the wire. O(events). law: CALL-2.

    Accepts maps and arrays, with or without a rank, in the words of vLLM, SGLang and TensorRT-LLM; media are given
    vLLM's names. An event of a type that is not known is skipped and counted. A `BlockStored` with tokens that do not
    fill its blocks exactly gives no tokens, as their blocks are unknown. vLLM names a salt with the first block of a
    chain only: the blocks after it in the same event are given it too.

    Raises:
        InvalidArgumentError: it is in no such form, or a field has a value that no engine writes (for example a token
            beyond 31 bits).
    """
    try:
        try:
            batch: _ReadMaps | _ReadEach = _MAPS.decode(payload)
        # Other engines, or older forms: event by event, so that one of an unknown type costs no other.
        except msgspec.ValidationError:
            batch = _EACH.decode(payload)
        found = Events(batch.rank)
        for event in batch.events:
            _read(event, found)
    except (
        msgspec.MsgspecError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise InvalidArgumentError(f"payload: is no batch of events: {error}") from error
    return found


def _read(event: object, found: Events) -> None:
    """Add one event of the wire, a block each, whatever its form."""
    if isinstance(event, dict | list):
        name = event.get("type") if isinstance(event, dict) else event[0]
        if name in _KNOWN:
            kinds = _ReadStored | _ReadRemoved | _ReadCleared
            arrays = _ReadArrayStored | _ReadArrayRemoved | _ArrayCleared
            _read(msgspec.convert(event, kinds if isinstance(event, dict) else arrays, builtin_types=(bytes,)), found)
        elif isinstance(event, dict) and isinstance(event.get("data"), dict):
            found += _tensorrt(event, found)
        elif isinstance(name, str):
            found.num_unknown += 1
        else:
            raise ValueError("an event has no type")
    elif isinstance(event, _ReadCleared | _ArrayCleared):
        medium = getattr(event, "medium", None)
        found.append(AllBlocksCleared(None if medium is None else _MEDIA.get(medium.upper(), medium)))
    else:
        found += _decoded(event, found)


def _decoded(event: Any, batch: Events) -> list[KVCacheEvent]:
    """Return one event of the wire, a block each."""
    medium = _text_of(getattr(event, "ownership", None))
    if medium is None:
        named_medium = event.medium or _DEVICE
        medium = _MEDIA.get(named_medium.upper(), named_medium)
        batch.num_unknown += medium not in _MEDIA
    group, hashes = event.group_idx or 0, event.block_hashes
    if isinstance(event, _ReadArrayRemoved):
        return [BlockRemoved(block_hash, group, medium) for block_hash in hashes]
    if event.kv_cache_spec_kind is not None:
        batch.kinds[group] = (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)
    if (layout := getattr(event, "cache_layout", None)) is not None:
        groups = (
            GroupLayout(each.kind, each.block_size, each.window, each.sinks, each.margin) for each in layout.groups
        )
        batch.layout = CacheLayout(tuple(groups), layout.unit)
    tokens, size, number = event.token_ids, event.block_size, event.lora_id
    extra = event.extra_keys or [None] * len(hashes)
    lora = _text_of(event.lora_name if event.lora_name is not None else number if isinstance(number, str) else None)
    # An adapter may be named "": then its name is among the keys as well.
    if lora == "" and not any(keys and keys[0] == "" for keys in extra):
        lora = None  # as engines write that there is none
    number = number if isinstance(number, int) and lora is None else None
    behind: list[Sequence[int]] = getattr(event, "lookahead_token_ids", None) or [()] * len(hashes)
    if tokens and not isinstance(tokens[0], int):
        tokens, behind = _unpaired(tokens, size)
    packed = pack(f"<{len(tokens)}i", *tokens) if len(tokens) == size * len(hashes) else b""
    named = _text_of(getattr(event, "cache_salt", None))
    found: list[KVCacheEvent] = []
    parent = event.parent_block_hash
    for at, (block_hash, keys, ahead) in enumerate(zip(hashes, extra, behind, strict=True)):
        salt, items = (named, ()) if keys is None else _said(keys, lora, named)
        # vLLM names it with the first block of a chain alone.
        named = salt
        own = packed[4 * at * size : 4 * (at + 1) * size]
        later = pack(f"<{len(ahead)}i", *ahead) if own else b""
        found.append(BlockStored(block_hash, parent, own, size, lora, group, salt, items, medium, number, False, later))
        # Without tokens nothing says that the blocks follow one another.
        parent = block_hash if tokens else None
    return found


def _tensorrt(event: dict[str, Any], batch: Events) -> list[KVCacheEvent]:
    """Return an event of TensorRT-LLM, as its `get_kv_cache_events` returns it, a block each.

    Its levels of memory are one medium here: it removes a block from all of them at once, and names no level then.
    """
    data, kind = event["data"], event["data"].get("type")
    # Its events have a rank each, and the payload none.
    batch.rank = event.get("attention_dp_rank") or batch.rank
    if kind == "removed":
        return [BlockRemoved(each) for each in data["block_hashes"]]
    if kind != "stored":
        batch.num_unknown += kind not in ("created", "updated")
        return []
    found, parent = list[KVCacheEvent](), data["parent_hash"]
    for each in data["blocks"]:
        tokens = [token["token_id"] for token in each["tokens"]]
        own = pack(f"<{len(tokens)}i", *tokens)
        found.append(BlockStored(each["block_hash"], parent, own, len(tokens), lora_id=each.get("lora_id")))
        parent = each["block_hash"]
    return found


def _unpaired(pairs: list[list[int]], size: int) -> tuple[list[int], list[Sequence[int]]]:
    """Return the tokens of blocks that are named by pairs, a token and the next, and the token behind each block."""
    if any(before != after for (_, before), (after, _) in pairwise(pairs)):
        raise ValueError("token_ids: each pair begins with the token that the one before it ends with")
    return [token for token, _ in pairs], [pair[1:] for pair in pairs[size - 1 :: size]]


def _said(keys: list[Any], lora: str | None, salt: str | None) -> tuple[str | None, tuple[tuple[str, int, int], ...]]:
    """Return the salt and the items that the extra keys of a block name; `salt` if they name none."""
    items, texts = list[tuple[str, int, int]](), list[str | None]()
    for key in keys:
        if isinstance(key, str):
            texts.append(_text_of(key))
        elif isinstance(key, bytes):  # the digest of prompt embeddings
            items.append((key.hex(), 0, 0))
        elif isinstance(key, list):
            if len(key) == 2 and isinstance(key[1], str):  # as vLLM's hashes have it: tagged with what it is
                texts.append(_text_of(key[1]))
                continue
            name, offset = (key[1:] if len(key) == 3 and key[0] == "mm" else key)[:2] if len(key) > 1 else (None, None)
            if not isinstance(name, str) or not isinstance(offset, int):
                raise ValueError(f"extra_keys: an item is a name and an offset, not {key!r:.80}")
            items.append((_text_of(name) or "", offset, 0))
    if lora is not None and texts[:1] == [lora]:
        del texts[0]
    return (texts[0] if texts else salt), tuple(items)


__all__ = ["Encoder", "Events", "GroupKind", "decode", "hash_of", "kinds_of"]

_guard(globals(), __all__)
