"""The conformance kit of Blockwright: shows that a manager behaves as the specification demands.

`checker` visits every reachable transition of small scopes in lock-step, and runs long random histories of large ones;
`ManagerAdapter` is the interface that a manager must offer for it, and `command` is ``blockwright conform``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .capabilities import Capabilities as Capabilities
    from .kv_cache.adapter import Found as Found
    from .kv_cache.adapter import ManagerAdapter as ManagerAdapter
    from .kv_cache.adapter import Observation as Observation
    from .run import ConformanceError as ConformanceError
    from .run import run_conformance as run_conformance

__all__ = ["Capabilities", "ConformanceError", "Found", "ManagerAdapter", "Observation", "run_conformance"]
_MODULES = dict.fromkeys(__all__, "kv_cache.adapter") | {"Capabilities": "capabilities"}
_MODULES |= dict.fromkeys(("ConformanceError", "run_conformance"), "run")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
