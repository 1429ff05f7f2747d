"""What a scope of the core asks of a manager, in the words of `adapters.capabilities`."""

from typing import Any

from blockwright_spec.reads import Mamba

from ..capabilities import Needs, needs_of_words
from .scopes import Scope, layer_name


def needs_of(scope: Scope) -> Needs:
    """Give the needs of a scope: kinds of layers, optional calls, and features of its configuration and its steps."""
    config = scope.config
    kinds = [layer_name(group.kind).partition(" ")[0] for group in config.groups]
    states = any(isinstance(group.kind, Mamba) and group.kind.drafts for group in config.groups)
    features: dict[str, Any] = {
        "caching": config.caching,
        "uncached": not config.caching,
        "eagle": config.eagle,
        "overlaps": config.overlaps,
        "settles": config.settles,
        "watermark": config.watermark,
        "events": config.tells,
        "groups": len(config.groups) > 1,
        "block sizes": len({group.block_size for group in config.groups}) > 1,
        "drafts": scope.drafts or states,
        "lookahead": any(scope.lookaheads),
        "encoder": scope.encoder,
        "extra keys": any(extra for extra, _ in scope.prompts),
    }
    return needs_of_words(kinds, scope.calls, features)


FEATURES = (
    "caching",
    "uncached",
    "eagle",
    "overlaps",
    "settles",
    "watermark",
    "events",
    "groups",
    "block sizes",
    "drafts",
    "lookahead",
    "encoder",
    "extra keys",
)
"""The words for features; those for calls are `scopes.CALLS`."""
