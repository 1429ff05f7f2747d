"""The answer to a sweep: which of the ways is enough, and which is not, in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from blockwright.replay.pools import PERCENTILES, PoolResult, TimedResult

_P95: Final = PERCENTILES.index(95)
VALUES: Final[dict[str, Callable[[TimedResult], float]]] = {
    "ttft": lambda timed: timed.first_token[_P95],
    "latency": lambda timed: timed.latency[_P95] if timed.latency else float("inf"),
}
NAMES: Final = {"ttft": "P95 TTFT", "latency": "P95 latency"}
# What is bought, the dearest first.
_AXES: Final[dict[str, Callable[[PoolResult], int]]] = {
    "engines": lambda pool: pool.engines,
    "blocks": lambda pool: pool.blocks,
    "host": lambda pool: pool.offload.host_blocks if pool.offload else 0,
    "disk": lambda pool: pool.offload.disk_blocks if pool.offload else 0,
    "store": lambda pool: pool.offload.store_blocks if pool.offload else 0,
}


def answer(pools: Sequence[PoolResult], limits: Mapping[str, float], sizes: Mapping[tuple[str, int], str]) -> str:
    """Return which way keeps the limits with the fewest engines, blocks and tiers, and the next smaller one, which not.

    `sizes` are the names of sizes, as the user gave them.
    """
    bound = " and ".join(f"{NAMES[name]} below {limit:g} s" for name, limit in limits.items())
    best = min(pools, key=lambda pool: (not _keeps(pool, limits), *(axis(pool) for axis in _AXES.values())))
    if not _keeps(best, limits):
        near = min(pools, key=lambda pool: max(value / limits[name] for name, value in _reached(pool, limits).items()))
        reached = " and ".join(f"{NAMES[name]} {value:,.2f} s" for name, value in _reached(near, limits).items())
        refused = f", {near.refused:,} refused" if near.refused else ""
        return f"None of these keeps {bound}; nearest is {_words(near, pools, sizes)}: {reached}{refused}."
    said = f"{_words(best, pools, sizes)} keep{'s' if best.engines == 1 else ''} {bound}"
    for name, axis in _AXES.items():
        others = [each for each in _AXES if each != name]
        less = [
            axis(pool)
            for pool in pools
            if axis(pool) < axis(best)
            # One engine needs no router, so that its row stands for all of them.
            and (pool.router == best.router or pool.engines == 1)
            and pool.policy == best.policy
            and all(_AXES[each](pool) == _AXES[each](best) for each in others)
        ]
        if less and name == "engines":
            return f"{said}; {max(less)} {'does' if max(less) == 1 else 'do'} not."
        if less:
            return f"{said}; with {_size(name, max(less), sizes)} {'it does' if best.engines == 1 else 'they do'} not."
    return f"{said}; nothing smaller was tried."


def _reached(pool: PoolResult, limits: Mapping[str, float]) -> dict[str, float]:
    return {name: VALUES[name](pool.timed) if pool.timed else float("inf") for name in limits}


def _keeps(pool: PoolResult, limits: Mapping[str, float]) -> bool:
    return not pool.refused and all(value < limits[name] for name, value in _reached(pool, limits).items())


def _size(name: str, value: int, sizes: Mapping[tuple[str, int], str]) -> str:
    if name != "blocks" and not value:
        return f"no {name}"
    return sizes.get((name, value), f"{value:,} blocks") + ("" if name == "blocks" else f" of {name}")


def _words(pool: PoolResult, pools: Sequence[PoolResult], sizes: Mapping[tuple[str, int], str]) -> str:
    return f"{pool.engines} engine{'s' * (pool.engines > 1)}{differences(pool, pools, sizes)}"


def differences(pool: PoolResult, pools: Sequence[PoolResult], sizes: Mapping[tuple[str, int], str]) -> str:
    """Return in words what is different about a way among others, but for the number of its engines."""
    differs = [name for name, axis in _AXES.items() if name != "engines" and len({axis(each) for each in pools}) > 1]
    parts = [_size(name, _AXES[name](pool), sizes) for name in differs]
    apart = f" ({pool.prefill} for prompts alone)" if pool.prefill else ""
    with_ = f" with {' and '.join(parts)}" if parts else ""
    has_some = any(_AXES[name](pool) for name in differs)
    each = " each" if has_some and pool.engines > 1 else ""
    router = f" behind '{pool.router}'" if pool.engines > 1 and len({each.router for each in pools}) > 1 else ""
    policy = f" ({pool.policy})" if len({each.policy for each in pools}) > 1 else ""
    return f"{apart}{with_}{each}{router}{policy}"
