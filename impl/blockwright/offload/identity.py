"""Whose cache it is: all that two engines must share before one may read the other's blocks.

Equal block hashes name equal tokens, not equal bytes: another model, data type, layout or part of a tensor-parallel
group computes other keys and values from the same tokens. What leaves the process is therefore kept under the
identity's digest, so that an engine that differs in anything finds nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError

Scalar = str | bytes | bool | int | float
"""What an extra may be."""

_VERSION: Final = b"blockwright cache identity 1"


@dataclass(frozen=True, eq=False, repr=False)
class CacheIdentity:
    """Names everything besides the tokens that decides the bytes of a block. Equal exactly if encoded equally.

    >>> ours = CacheIdentity("llama", "layers, heads, tokens", "bfloat16", 16, b"seed", {"tp_rank": 0, "tp_world": 2})
    >>> ours == CacheIdentity("llama", "layers, heads, tokens", "bfloat16", 16, b"seed", {"tp_world": 2, "tp_rank": 1})
    False

    Attributes:
        model: name and revision of the model, with its adapters' if they are merged into it.
        layout: how a block's bytes are laid out: order of layers, heads and tokens, and their numbers.
        dtype: data type of the elements. Where tensors are at hand, a name that torch has must be one of theirs.
        block_size: tokens in an offloaded block.
        hash_seed: seed of the hasher of the blocks; a deployment may keep it secret, and so does `repr`.
        extras: all else that matters, by name, such as rank and size of a tensor-parallel group, or scales of quantized
            keys and values; its order does not matter.
    """

    model: str
    layout: str
    dtype: str
    block_size: int
    hash_seed: bytes
    extras: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse fields of other types or a block size below 1 (`InvalidArgumentError`); copy the extras."""
        for name, kind in (("model", str), ("layout", str), ("dtype", str), ("hash_seed", bytes)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidArgumentError(f"{name}: must be {kind.__name__}, not {_kind(getattr(self, name))}")
        integer("block_size", self.block_size, 1)
        if not isinstance(self.extras, Mapping):
            raise InvalidArgumentError(f"extras: must map names to values, not be {_kind(self.extras)}")
        for name, value in self.extras.items():
            if not isinstance(name, str) or not isinstance(value, str | bytes | bool | int | float):
                raise InvalidArgumentError(
                    f"extras: {name!r} must be a str and its value a str, bytes, bool, int or float, not {_kind(value)}"
                )
        # Sorted and read-only: the digest must not depend on an order, nor change once blocks are stored under it.
        object.__setattr__(self, "extras", MappingProxyType(dict(sorted(self.extras.items()))))

    def encode(self) -> bytes:
        """Return bytes that no other identity has: each field with its type and length. They hold the hash seed."""
        fields: list[Scalar] = [self.model, self.layout, self.dtype, self.block_size, self.hash_seed]
        for name, value in self.extras.items():
            fields += [name, value]
        return _VERSION + b"".join(map(_encoded, fields))

    def digest(self) -> bytes:
        """Return 32 bytes that represent the identity in stored data; the same in every process."""
        return hashlib.blake2b(self.encode(), digest_size=32).digest()

    def describe(self) -> dict[str, str]:
        """Return all fields as text to show or store: the hash seed as a digest."""
        shown = {"model": self.model, "layout": self.layout, "dtype": self.dtype, "block_size": str(self.block_size)}
        extras = {f"extras.{name}": repr(value) for name, value in self.extras.items()}
        return {**shown, "hash_seed": f"blake2b:{_seed_digest(self.hash_seed)}", **extras}

    def __reduce__(self) -> tuple[type[CacheIdentity], tuple[object, ...]]:
        return type(self), (self.model, self.layout, self.dtype, self.block_size, self.hash_seed, dict(self.extras))

    def __eq__(self, other: object) -> bool:
        """Compare encodings: an extra of 1 is neither 1.0 nor True."""
        return self.encode() == other.encode() if isinstance(other, CacheIdentity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        """Show the fields, the hash seed only as a digest."""
        return f"CacheIdentity({', '.join(f'{name}={value}' for name, value in self.describe().items())})"


def _encoded(value: Scalar) -> bytes:
    """Return type, length and content of one field."""
    # Before int, of which bool is a kind: True and 1 are different extras.
    if isinstance(value, bool):
        tag, content = b"?", b"\1" if value else b"\0"
    elif isinstance(value, str):
        tag, content = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        tag, content = b"b", value
    elif isinstance(value, int):
        tag, content = b"i", hex(value).encode()
    else:
        tag, content = b"f", value.hex().encode()
    return tag + struct.pack("<Q", len(content)) + content


def _seed_digest(seed: bytes) -> str:
    """Return what may be shown of a seed."""
    return hashlib.blake2b(seed, digest_size=8, person=b"shown hash seed").hexdigest()


def _kind(value: object) -> str:
    return type(value).__name__


def checked_identity(identity: object) -> CacheIdentity:
    """Return an argument that must be an identity; raise an `InvalidArgumentError` if it is none."""
    if not isinstance(identity, CacheIdentity):
        raise InvalidArgumentError(f"identity: must be a CacheIdentity, not {_kind(identity)}")
    return identity
