"""A trial on one long life of a manager: what a call has returned never changes.

The explorer copies a manager before every action, which also parts what a manager keeps from what it has handed out.
Here nothing is copied: an engine walks at random (always the same way), in lock-step, and holds on to everything it is
given. OUT-1: hits, new blocks and a batch's buffers stay what they were when they were returned.
"""

from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any

from blockwright_conformance.checker.lockstep import act
from blockwright_conformance.kv_cache.actions import GrowEach
from blockwright_conformance.kv_cache.scopes import Scope, scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.reads import Full, Mamba, Sliding

from ..known_bugs.instrumented import adapter_on
from ..known_bugs.known_bug import Fault

SCOPES: tuple[Scope, ...] = (
    scope(Full(), 2, "walk", 9, 9, "chunks batch hold later trim", slots=3),
    scope(Sliding(3), 2, "walk", 9, 9, "chunks batch hold trim preempt", slots=3),
    scope(Mamba(), 2, "walk", 9, 9, "chunks batch hold", slots=3),
)
STEPS = 200
HELD = 40
"""Results that the engine holds on to, the last ones."""

GIVING = ("get_computed_blocks", "allocate_slots", "allocate_slots_batch")
BUFFERS = ("new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets")


def contents(result: Any) -> tuple[tuple[int, ...], ...]:
    """Give all that a result holds."""
    if result is None:
        return ()
    if isinstance(result, tuple):
        return contents(result[0])
    buffers = result.ids if hasattr(result, "ids") else [getattr(result, name) for name in BUFFERS]
    return tuple(tuple(buffer) for buffer in buffers)


class Remembering:
    """A manager whose results are remembered, with what they held when they were returned."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.given: list[tuple[Any, tuple[tuple[int, ...], ...]]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.manager, name)
        return self.remembering(value) if name in GIVING else value

    def remembering(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Make a call remember what it returns."""

        def called(*arguments: Any) -> Any:
            result = call(*arguments)
            self.given = [*self.given[-HELD:], (result, contents(result))]
            return result

        return called

    def changed(self) -> list[str]:
        """Name the results that are not what they were."""
        pairs = ((was, contents(result)) for result, was in self.given)
        return [f"{was} became {now}" for was, now in pairs if was != now]


def handed_out(package: ModuleType) -> Iterator[Fault]:
    """Give the first difference from the specification, or the first result that changed, on each walk."""
    for number, each in enumerate(SCOPES):
        random, world = Random(number), KVCacheWorld(each, adapter_on(package))
        state, adapter = world.initial(), world.model()
        given: Any = Remembering(adapter.manager)  # type: ignore[attr-defined]
        adapter.manager = given  # type: ignore[attr-defined]
        for step in range(STEPS):
            actions = list(world.enabled(state))
            batches = [action for action in actions if isinstance(action, GrowEach)]
            compared = act(
                world, adapter, state, random.choice(batches if batches and random.random() < 0.5 else actions)
            )
            state = compared.outcome.state
            if compared.faults:
                yield Fault("REF-0", "; ".join(compared.faults), step + 1)
                break
            if changed := given.changed():
                yield Fault("OUT-1", "; ".join(changed), step + 1)
                break
