"""Policies of what to keep, by name: those that `blockwright replay` compares and the gate `policies` judges.

A policy has one of two methods, or both. `choose` is that of `blockwright.EvictionOrder`: given the candidates, it
returns the one to evict; each module of `blockwright.orders` is such a policy. `ending` is called with each request
before it ends, and calls the manager (`retain`, `release_prefix`), so that the manager's laws hold whatever it does. To
use another policy, name its factory: ``--policy module:factory``, which is called without arguments.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from blockwright import EvictionPolicy, KVCacheManager, Request, orders
from blockwright.errors import InvalidArgumentError


class ReplayPolicy(Protocol):
    """A policy that is called for each request before it ends."""

    def ending(self, manager: KVCacheManager, request: Request, num_hit: int, now: float) -> None:
        """Give the hints for a request's blocks; `num_hit` of its tokens were cached, `now` is in seconds."""


Policy = ReplayPolicy | EvictionPolicy


class Lru:
    """Give no hint: the least recently used is evicted first."""

    def ending(self, manager: KVCacheManager, request: Request, num_hit: int, now: float) -> None:
        """Say nothing."""


class Adaptive(Lru):
    """Have the manager choose between the least recently and the least frequently used, by what hits more."""

    order = "adaptive"


class TailLru:
    """T-LRU: tokens that a next turn can compute again within a bound on its time are evicted first.

    A turn that comes back with `expected` new tokens stays below `bound` uncached ones if all tokens of this one except
    the last ``bound - expected`` are cached (Tail-Optimized Caching for LLM Inference, NeurIPS 2025).
    """

    def __init__(self, bound: int = 8192, expected: int = 1024) -> None:
        self.spared = bound - expected

    def ending(self, manager: KVCacheManager, request: Request, num_hit: int, now: float) -> None:
        """Release the whole blocks of the tail first."""
        start = max(0, request.num_tokens - self.spared)
        manager.release_prefix(request, start - start % (request.block_size or 1))


ORDERS: Final[dict[str, Callable[[], EvictionPolicy]]] = {
    each.name: importlib.import_module(f"{orders.__name__}.{each.name}").Order
    for each in pkgutil.iter_modules(orders.__path__)
}
"""The orders of eviction by the names of their modules in `blockwright.orders`."""

POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "lru": Lru,
    Adaptive.order: Adaptive,
    "t-lru": TailLru,
    **ORDERS,
}


def order_named(name: str) -> EvictionPolicy | None:
    """Return a new order: one of `ORDERS`, of ``module:factory``, or None for "lru", which is the manager's own.

    Raises:
        InvalidArgumentError: there is none of that name, or it cannot choose.
    """
    order = found_by("eviction_order", name, {"lru": lambda: None, **ORDERS})()
    if order is not None and not callable(getattr(order, "choose", None)):
        raise InvalidArgumentError(f"eviction_order: {name!r} must make an object with choose, not {order!r}")
    return order  # type: ignore[no-any-return]


def policy_named(name: str) -> Callable[[], Policy]:
    """Return the factory of a policy of `POLICIES`, or ``module:factory``; else raise an `InvalidArgumentError`."""
    return found_by("--policy", name, POLICIES)


def found_by(option: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return what an option names: one of those known, or ``module:factory`` of the caller's own.

    Raises:
        InvalidArgumentError: there is none of that name; the message names the option.
    """
    if name in known:
        return known[name]
    module, colon, factory = name.partition(":")
    if not (module and colon and factory):
        raise InvalidArgumentError(f"{option}: expected {', '.join(known)} or module:factory, not {name!r}")
    # As `python -m` does: a policy of one's own is mostly a file in the working directory.
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), factory, None)
    except Exception as error:
        raise InvalidArgumentError(f"{option}: {module!r}: {type(error).__name__} when imported: {error}") from error
    if not callable(found):
        raise InvalidArgumentError(f"{option}: {module!r} has no factory {factory!r}")
    return found  # type: ignore[no-any-return]


def chooser(policy: object) -> EvictionPolicy | str | None:
    """Return a policy that chooses victims for the manager, or what it names, or None for one that only gives hints.

    Raises:
        InvalidArgumentError: it can do neither.
    """
    if callable(getattr(policy, "choose", None)):
        return policy  # type: ignore[return-value]
    if isinstance(policy, Adaptive):
        return policy.order
    if not callable(getattr(policy, "ending", None)):
        raise InvalidArgumentError(
            f"--policy: must make something with a method choose(candidates) or ending(...), not {policy!r}"
        )
    return None
