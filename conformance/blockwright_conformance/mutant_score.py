"""The committed scores of mutants: per source, and the digest of the source that was measured."""

from functools import cache
from hashlib import blake2b

from .variants import source_of


@cache
def digest_of(file: str) -> str:
    """Give the digest of a source."""
    return blake2b(source_of(file).encode(), digest_size=8).hexdigest()
