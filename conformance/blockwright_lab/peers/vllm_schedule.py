"""Which calls vLLM's scheduler makes of those that a scope allows."""

from collections.abc import Callable
from typing import Any

from blockwright_conformance.checker.world import kind_of
from blockwright_conformance.kv_cache.arrivals import Admit
from blockwright_conformance.kv_cache.running import Grow
from blockwright_spec.manager.state import Running, State
from blockwright_spec.reads import Mamba, Prefix

from .loading import SyncLoad


def scheduled(state: State, action: Any, length_of: Callable[[Prefix], int]) -> bool:
    """Return whether the scheduler makes a call; `length_of` gives the length of the hit of a prefix.

    With recurrent layers whose states are cached it ends each chunk of a prompt where a block ends, and stops at the
    last such place before the end. A load ends whole, or with nothing where there was no hit; a request that is being
    loaded stays until then.
    """
    slot = getattr(action, "slot", None)
    request = None if slot is None else state.requests[slot]
    if isinstance(request, Running) and request.added.loading:
        ends = {request.added.loading} if request.written else {request.added.loading, 0}
        return kind_of(action) == "FinishLoad" and action.arguments[1] in ends
    sizes = [each.block_size for each in state.config.groups if isinstance(each.kind, Mamba)]
    if not sizes or not state.config.caching or not isinstance(action, Admit | Grow | SyncLoad):
        return True
    if isinstance(request, Running):
        prefix, begin = request.prefix, request.computed
    else:
        assert not isinstance(action, Grow)
        prefix = action.prefix
        begin = 0 if isinstance(action, Admit) and not action.asked else length_of(prefix)
        begin += action.external
    return all(is_split(size, begin, begin + action.new, len(prefix[1])) for size in sizes)


def is_split(size: int, begin: int, end: int, known: int) -> bool:
    """Return whether the scheduler makes a chunk of a request of so many known tokens, for a recurrent layer."""
    if begin >= known - 1:
        return True
    last = (known - 1) // size * size
    is_aligned = end % size == 0 or end >= known
    return is_aligned and not begin < last < end and (begin % size == 0 or end <= (begin // size + 1) * size)
