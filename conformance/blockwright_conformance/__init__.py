"""The conformance kit of Blockwright: shows that a manager does what the specification says.

`explore` visits every reachable transition of small scopes in lock-step, `machine` and `walk` run long random histories
of large ones, `proofs` settles the arithmetic for all integers; `adapter` is what a manager must offer to be put
through them, and `command` is ``blockwright conform``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import ConformanceError as ConformanceError
    from .run import run_conformance as run_conformance

__all__ = ["ConformanceError", "run_conformance"]


def __getattr__(name: str) -> Any:
    """Import what tests of other managers call when they ask for it."""
    if name in __all__:
        from . import run as third_party

        return getattr(third_party, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
