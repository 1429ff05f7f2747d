"""Part one, chapter 27: the last prompts, which show where a prompt parts from them if no layer's blocks do."""

from dataclasses import dataclass, replace

from ..reads import Prefix, cut
from .chapters import Chapter
from .keys import aligned, is_published, keyed, named
from .marks import memory_of
from .state import Hit, Running, State, Waiting


@dataclass(frozen=True, slots=True)
class LastPrompts(Chapter):
    """So many of the `last_prompts` that were admitted are remembered (UNIT-9)."""

    last_prompts: int = 0

    def admit(self, state: State, slot: int, hit: Hit) -> State:
        """Remember a prompt, as far as it has keys, as the last one.

        One that begins another says no more than that, so that only the longer is remembered.
        """
        config, step, request = state.config, aligned(state.config), state.requests[slot]
        prompts = memory_of(state).prompts
        if not isinstance(request, Running | Waiting) or keyed(config, request.prefix) < step:
            return state
        _, told = named(config, 0, request.prefix, keyed(config, request.prefix) // step * step)
        if any(cut(other, len(told[1])) == told for other in prompts):
            return state
        others = tuple(other for other in prompts if cut(told, len(other[1])) != other)
        return replace(state, memory=replace(memory_of(state), prompts=(*others, told)[-self.last_prompts :]))

    def recalls(self, state: State, prefix: Prefix, end: int) -> bool:
        prompts = memory_of(state).prompts
        return is_published(state.config, {named(state.config, 0, each, end) for each in prompts}, 0, prefix, end)

    def reset(self, state: State) -> State:
        return forget_prompts(state)


def forget_prompts(state: State) -> State:
    """Forget the last prompts."""
    return replace(state, memory=replace(state.memory, prompts=())) if state.memory else state


@dataclass(frozen=True, slots=True)
class LookAhead(Chapter):
    """A key covers `key_lookahead` tokens behind its block as well, for a draft head that reads them (PUB-4)."""

    key_lookahead: int = 0

    def ahead(self) -> int:
        return self.key_lookahead
