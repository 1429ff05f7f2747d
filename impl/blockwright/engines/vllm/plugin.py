"""The switch: where vLLM's schedulers look for their manager, they find Blockwright's.

vLLM has no slot for a manager. Its schedulers find it under one name of one module, and that name is what is replaced:
for as long as a scheduler is made (``--scheduler-cls``), or for the whole process (``BLOCKWRIGHT_VLLM=1``).
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from blockwright._switch import is_on
from blockwright.engines.vllm import shown
from blockwright.engines.vllm.surface import installed, require_supported
from blockwright.errors import UnsupportedError

SWITCH = "BLOCKWRIGHT_VLLM"
_HOME = "vllm.v1.core.sched.scheduler"
_OWN = "vllm.v1.core.kv_cache_manager"
_NAME = "KVCacheManager"
_CORE = "vllm.v1.engine.core"
_METRICS = "vllm.v1.metrics.loggers"


def register() -> None:
    """Serve every scheduler of this process with Blockwright's manager, if the switch is on.

    vLLM calls it at start, by way of `blockwright_vllm`.

    Raises:
        UnsupportedError: another plug-in has replaced vLLM's manager, or this release of vLLM is not supported.
        ValueError: the switch is neither a word for on nor one for off.
    """
    if is_on(SWITCH):
        _replace()
        shown.export(importlib.import_module(_METRICS).PrometheusStatLogger)


@contextmanager
def serving() -> Iterator[None]:
    """Serve schedulers that are made meanwhile with Blockwright's manager.

    Raises:
        UnsupportedError: as `register`.
    """
    before = _replace()
    try:
        yield
    finally:
        setattr(importlib.import_module(_HOME), _NAME, before)


def _replace() -> Any:
    """Put our manager where vLLM's schedulers look; return what was there."""
    require_supported(*installed())
    from blockwright.engines.vllm.manager import KVCacheManager

    home, own = importlib.import_module(_HOME), importlib.import_module(_OWN)
    found = getattr(home, _NAME)
    if found is not getattr(own, _NAME) and found is not KVCacheManager:
        raise _both(found)
    setattr(home, _NAME, KVCacheManager)
    _watch(home.Scheduler, (KVCacheManager, getattr(own, _NAME)))
    return found


def _watch(scheduler: Any, known: tuple[type, ...]) -> None:
    """Let schedulers see, once they are made, whether they have our manager, and whether it can serve them."""
    # Then it is said, and again when they end. It is not told before: a plug-in that came later may have replaced it.
    made = scheduler.__init__
    if hasattr(made, "_asks"):
        return

    @functools.wraps(made)
    def asking(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        manager = self.kv_cache_manager
        if is_on(SWITCH) and type(manager) not in known:
            raise _both(type(manager))
        bind = getattr(manager, "bind", None)
        if bind is not None:
            bind(self)
            shown.tell_start(manager)

            core = sys.modules.get(_CORE)
            if core is not None and not hasattr(core.EngineCore.shutdown, "_asks"):  # a scheduler may also run alone
                core.EngineCore.shutdown = _telling(
                    core.EngineCore.shutdown, lambda engine: getattr(engine, "scheduler", None)
                )

    asking._asks = True  # type: ignore[attr-defined]
    scheduler.__init__, scheduler.shutdown = asking, _telling(scheduler.shutdown, lambda own: own)


def _telling(shutdown: Any, scheduler_of: Callable[[Any], Any]) -> Any:
    """Return a method that ends an engine or its scheduler, and first says so once."""
    # A server ends its engine's process before the scheduler's turn has come, unless it is given time for that.

    @functools.wraps(shutdown)
    def ending(self: Any, *args: Any, **options: Any) -> Any:
        manager: Any = getattr(scheduler_of(self), "kv_cache_manager", None)
        if hasattr(manager, "bind") and not hasattr(manager, "has_ended"):
            manager.has_ended = True
            shown.tell_end(manager)
        return shutdown(self, *args, **options)

    ending._asks = True  # type: ignore[attr-defined]
    return ending


def _both(other: Any) -> UnsupportedError:
    """Return the error about another plug-in's manager."""
    return UnsupportedError(
        f"vLLM's manager is replaced already, by {other.__module__}.{other.__qualname__}: two plug-ins cannot both "
        f"serve it. Unset {SWITCH}, or name the one you want in VLLM_PLUGINS"
    )
