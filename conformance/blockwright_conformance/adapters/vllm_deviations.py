"""Where vLLM's `KVCacheManager` is known to differ from the specification, and why: strict lists."""

from .capabilities import Deviation

NEW_DEVIATIONS: tuple[Deviation, ...] = ()
OLD_DEVIATIONS: tuple[Deviation, ...] = ()
