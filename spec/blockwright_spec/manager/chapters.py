"""Part one, chapter 2: what a chapter of book two may say more.

Book one is what every manager does, and names no option. An option is a record of its own chapter, a `Chapter`, with
its settings. A configuration lists those that it has, and at the places below book one asks each of them in turn. What
a chapter remembers is in `State.memory`, and what it notes of a request in `Running.notes`: only chapters read these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..reads import Prefix
from .page import Acts

if TYPE_CHECKING:
    from .outcomes import Fits, Refusal, Step
    from .state import Config, Content, Copy, Hit, Running, State, Table, Waiting


@dataclass(frozen=True, slots=True)
class Chapter:
    """An option that says nothing more: it returns what it is given."""

    def begin(self, state: State) -> State:
        """Return a new manager with what is remembered in it."""
        return state

    def hear(self, state: State, steps: Acts) -> State:
        """Note steps that a transition makes: blocks that are taken, held, published or forgotten."""
        return state

    def catch_up(self, state: State, slot: int, count: int) -> State:
        """Learn from the count that an engine gives with a call how far a request has come."""
        return state

    def order(self, state: State, queue: Table, taker: object, count: int) -> Table:
        """Return the free blocks in the order in which `count` of them are taken for somebody."""
        return queue

    def start(self, state: State, request: Waiting, start: Running, coming: int) -> Running:
        """Note what there is to note of a request that starts on its hit, with tokens that come from elsewhere."""
        return start

    def admit(self, state: State, slot: int, hit: Hit) -> State:
        """Learn from an admission."""
        return state

    def leave(self, config: Config, request: Running, gone: tuple[Table, ...]) -> Any:
        """Return what is said of the blocks at some entries, which a request lets go of."""

    def end(self, config: Config, request: Running, resumes: bool, count: int) -> Any:
        """Return what is said of the blocks of a request that ends with `count` tokens, or `resumes` later."""

    def release(self, state: State, batch: tuple[Table, ...], order: Table, said: Any) -> State:
        """Note blocks that were let go of and are still to be queued; of some nothing is said (None)."""
        return state

    def fork(self, request: Running) -> Running:
        """Return a request that was forked without what was noted of its parent alone."""
        return request

    def carry(self, state: State, start: Running, keys: tuple[tuple[int, Content], ...]) -> State:
        """Note that copies are found from now on instead of what a request writes over."""
        return state

    def reset(self, state: State) -> State:
        """Return a manager that forgets everything, with the free blocks in their last order."""
        return state

    def stride(self) -> int:
        """Return the tokens at whose multiples hits may end inside blocks; 0: they end where blocks do."""
        return 0

    def adopt(self, config: Config, hit: Hit, step: Step) -> tuple[Hit, Step]:
        """Return the part of a hit that a request adopts, and the step that goes on from there."""
        return hit, step

    def refuse(self, state: State, hit: Hit) -> Refusal | None:
        """Refuse a hit that is sound, but cannot be adopted now."""
        return None

    def plan(self, state: State, slot: int, start: Running, begin: int, step: Step, plan: Fits, missing: int) -> Fits:
        """Add to the plan of a step that fits, with `-missing` blocks to spare."""
        return plan

    def overwrite(self, state: State, blocks: Table, copies: tuple[Copy, ...], start: Running) -> State:
        """Let blocks be found no more as what a step writes over, of which there may be copies."""
        return state

    def publish(self, state: State, slot: int, count: int) -> State:
        """Publish more of the first `count` tokens of a request, which have run."""
        return state

    def publish_last(self, state: State, slot: int, count: int) -> State:
        """Publish more of the first `count` tokens of a request that lets go of its blocks."""
        return state

    def leaves(self, config: Config, request: Running) -> bool:
        """Return whether the last step of a request leaves something to publish once it has run."""
        return False

    def ahead(self) -> int:
        """Count the tokens behind a block that its key covers as well."""
        return 0

    def recalls(self, state: State, prefix: Prefix, end: int) -> bool:
        """Return whether a prompt that was admitted begins with the same tokens up to an end."""
        return False

    def learns(self) -> bool:
        """Return whether it matters where a prompt parts from what was cached."""
        return False


def caught_up(state: State, slot: int, count: int) -> State:
    """Return what is known once an engine has given the count of a request with a call."""
    for chapter in state.config.chapters:
        state = chapter.catch_up(state, slot, count)
    return state


def adopted(config: Config, hit: Hit, step: Step) -> tuple[Hit, Step]:
    """Return the part of a hit that a request adopts, and the step that goes on from there, as all chapters say."""
    for chapter in config.chapters:
        hit, step = chapter.adopt(config, hit, step)
    return hit, step


def order_of(state: State, taker: object, count: int) -> Table:
    """Return the free blocks in the order in which `count` of them are taken for a tenant, as all chapters say."""
    queue = state.queue
    for chapter in state.config.chapters:
        queue = chapter.order(state, queue, taker, count)
    return queue


def said_of(config: Config, request: Running, gone: tuple[Table, ...]) -> tuple[Any, ...]:
    """Return what each chapter says of blocks that a request lets go of."""
    return tuple(chapter.leave(config, request, gone) for chapter in config.chapters)
