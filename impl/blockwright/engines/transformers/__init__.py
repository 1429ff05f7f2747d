"""Blockwright as the paged cache of an unmodified transformers: ``generate_batch`` and what else batches continuously.

transformers has no slot for another cache: it makes one by the name `PagedAttentionCache`, and `register` has that name
stand for Blockwright's. What cannot be served is refused by name when a batch starts. Importing this package imports
nothing of transformers.
"""

from __future__ import annotations

from typing import Any

from blockwright.errors import UnsupportedError

SERVED = "5.24"
"""The release of transformers that this was written for: its cache is no public interface, and changes often."""


def register() -> None:
    """Have all batches that start from here on use Blockwright's cache; managers that run keep theirs.

    Raises:
        UnsupportedError: transformers is of another release.
    """
    api = _api()
    from blockwright.engines.transformers.cache import BlockwrightCache

    api.PagedAttentionCache = BlockwrightCache


def unregister() -> None:
    """Have batches that start from here on use transformers' own cache again."""
    api = _api()
    from transformers.generation.continuous_batching.cache import PagedAttentionCache

    api.PagedAttentionCache = PagedAttentionCache


def _api() -> Any:
    import transformers

    if ".".join(transformers.__version__.split(".")[:2]) != SERVED:
        raise UnsupportedError(
            f"transformers {transformers.__version__} is not served; install transformers=={SERVED}.*"
        )
    from transformers.generation.continuous_batching import continuous_api

    return continuous_api


def not_served(what: str, remedy: str) -> UnsupportedError:
    """Return the error about an option or a model that is not served."""
    return UnsupportedError(f"blockwright in transformers: {what} is not served; {remedy}")
