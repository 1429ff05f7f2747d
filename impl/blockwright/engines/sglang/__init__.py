"""Blockwright as the cache of an unmodified SGLang: ``--radix-cache-backend blockwright``.

SGLang loads plug-ins of the group ``sglang.srt.plugins`` in each of its processes, and `register` is one. What cannot
be served is refused by name when the engine starts. Importing this package imports nothing of SGLang.
"""

from __future__ import annotations

from typing import Any

from blockwright.errors import UnsupportedError

NAME = "blockwright"
"""What ``--radix-cache-backend`` is given."""
_BEAMS = "sglang.srt.beam_search.coordinator.BeamCoordinator.validate_and_init"


def register() -> None:
    """Make the backend known to SGLang, and refuse requests with beam search where it serves. SGLang calls it."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if get_radix_cache_factory(NAME) is None:
        register_radix_cache_backend(NAME, build)
        HookRegistry.register(_BEAMS, _refuse_beams, HookType.AROUND)


def build(context: Any) -> Any:
    """Return the cache of a scheduler, from what SGLang gives to the factories of its caches.

    Raises:
        UnsupportedError: an option, or a model, that is not served: names it, and the remedy.
    """
    from blockwright.engines.sglang.served import refuse

    refuse(context)
    from blockwright.engines.sglang.cache import BlockwrightCache

    return BlockwrightCache(context.params)


def _refuse_beams(validate: Any, coordinator: Any, *arguments: Any, **more: Any) -> Any:
    """Answer a request with beam search by an error, before SGLang lets it in: its rows belong to no request."""
    if hasattr(coordinator.tree_cache, "manager"):
        return f"Beam search is not supported with --radix-cache-backend {NAME}."
    return validate(coordinator, *arguments, **more)


def not_served(what: str, remedy: str) -> UnsupportedError:
    """Return the error about an option or a model that is not served."""
    return UnsupportedError(f"--radix-cache-backend {NAME}: {what} is not served; {remedy}")
