"""The actions of a connector from outside of tables: hold blocks, take free ones, and release them, wrongly too."""

from collections.abc import Iterator
from typing import NamedTuple, Self

from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.in_time import outside
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import NULL, State, held_tables, key

from .adapter import ManagerAdapter, Served
from .outcome import ManagerOutcome
from .parts import Reply, settled
from .scopes import Scope


def may_hold(scope: Scope, state: State) -> bool:
    return "outside" in scope.calls and len(state.outside) < scope.outside


class Hold(NamedTuple):
    """Hold blocks once more."""

    blocks: tuple[int, ...]

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        """Yield a hold of each block that is held or has content; wrong: of one without either."""
        if may_hold(scope, state):
            held = {block for table in held_tables(state) for block in table if block != NULL}
            found = {block for block in state.queue if key(state, block) is not None}
            yield from (cls((block,)) for block in sorted(held | found))
            bare = [block for block in state.queue if block not in found]
            if "misuse" in scope.calls:
                yield cls((NULL,))
                yield from (cls((*sorted(held)[:1], block)) for block in bare[:1])

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.hold(state, self.blocks))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.pin(self.blocks)


class Take(NamedTuple):
    """Take a free block."""

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if may_hold(scope, state):
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.take(state, 1, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        taken = adapter.take(1)
        return Reply(refused=True) if taken is None else Reply(served=(Served((taken,)),))


class LetGo(NamedTuple):
    """Let go of blocks, in this order."""

    blocks: tuple[int, ...]

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        """Yield the end of each hold, and of all in either order; wrong calls release foreign holds, or too many."""
        if "outside" not in scope.calls:
            return
        every = state.outside
        yield from dict.fromkeys(
            cls(blocks) for blocks in (*((block,) for block in every), every, every[::-1]) if blocks
        )
        if "misuse" in scope.calls:
            yield from (cls((*every, block)) for block in sorted({*every}))
            others = {block for table in held_tables(state) for block in table} - {NULL, *every}
            yield from (cls((block,)) for block in (*sorted(others), *state.queue[:1]))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.let_go(state, self.blocks))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.unpin(self.blocks)
