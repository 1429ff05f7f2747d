"""The checksum that is stored with a block's bytes, over its key, its length and its data.

It finds accidents: torn and lost writes, bits that flip, blocks that lie where others did. It does not protect against
an attacker who can write to the medium.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

DIGEST_SIZE: Final = 16
"""Bytes of every checksum."""


def _makers() -> dict[str, Callable[[], Any]]:
    """Return what makes a hasher, by the name of the checksum."""
    always = {"blake2b_128": lambda: hashlib.blake2b(digest_size=DIGEST_SIZE)}
    try:
        from xxhash import xxh3_128
    except ImportError:  # optional: many times as fast
        return always
    return {"xxh3_128": xxh3_128, **always}


_MAKERS: Final = _makers()

CHECKSUMS: Final = tuple(_MAKERS)
"""Names of those that can be computed here, the preferred one first. The name is recorded where checksums are."""


def checksum(name: str, key: bytes, parts: Sequence[memoryview]) -> bytes:
    """Return the checksum called `name` of a block, given as parts in order.

    How they are cut into parts does not matter. ``xxh3_128`` takes about 0.03 ns a byte, ``blake2b_128`` 0.8 ns.
    """
    hasher = _MAKERS[name]()
    # Both lengths first, so that no byte can move from the key to the data unseen.
    hasher.update(struct.pack("<QQ", len(key), sum(part.nbytes for part in parts)) + key)
    for part in parts:
        hasher.update(part)
    return hasher.digest()  # type: ignore[no-any-return]
