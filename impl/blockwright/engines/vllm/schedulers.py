"""vLLM's schedulers over Blockwright's manager, for ``--scheduler-cls``."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

from blockwright.engines.vllm.plugin import serving


class _Served:
    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what vLLM's takes.

        Raises:
            UnsupportedError: what this vLLM asks of its manager is not served; names it and the remedy.
        """
        with serving():
            super().__init__(*args, **options)


class Scheduler(_Served, VllmScheduler):
    """vLLM's `Scheduler`, unchanged, with Blockwright's manager."""


class AsyncScheduler(_Served, VllmAsyncScheduler):
    """vLLM's `AsyncScheduler`, unchanged, with Blockwright's manager."""
