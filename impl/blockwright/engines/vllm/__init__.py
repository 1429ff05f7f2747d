"""Blockwright under an unmodified vLLM.

Two ways in, and each says what it cannot serve when the engine starts:

- `BLOCKWRIGHT_VLLM=1` in the environment: the plug-in (`blockwright.engines.vllm.plugin`) puts `KVCacheManager` of this
  package where vLLM's schedulers look for theirs.
- ``--scheduler-cls blockwright.engines.vllm.Scheduler`` (or ``AsyncScheduler``): vLLM's schedulers, with our manager.

Importing this package imports nothing of vLLM; its schedulers and the manager are found on demand.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {"AsyncScheduler": "schedulers", "KVCacheManager": "manager", "Scheduler": "schedulers"}


def __getattr__(name: str) -> Any:
    """Import what stands on vLLM when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
