"""Which releases of vLLM the adapter serves: what it uses of each."""

from __future__ import annotations

from typing import Any


def require_supported(manager: Any) -> None:
    """Raise unless the installed vLLM is one that the adapter was written for."""
