"""Part one, chapter 30: keeping: blocks that no wanted hit needs go first, except the last of them."""

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from ..hints import Leaving, Tip
from ..reads import Prefix
from .facts import holders, key, sharers
from .keys import longest, named
from .marks import memory_of, notes_of, put
from .retention import Marking, in_order, retention_of
from .state import Config, Content, Hit, Running, State, Table, Waiting
from .tails import last_end
from .wanted import forgets, leaving, leaving_at_end, wants_of


@dataclass(frozen=True, slots=True)
class Keeping(Marking):
    """Blocks that no wanted hit needs go first, except the last `spares` of them.

    With `parts` the number is learned: they say in how many parts of the pool, how slowly, and which part of a hit
    counts as all of it. With `every`, hits of each multiple of so many tokens are wanted too. Where there are hints or
    floors, none is spared.
    """

    spares: int = 0
    parts: tuple[int, int, int] | None = None
    every: int = 0

    def start(self, state: State, request: Waiting, start: Running, coming: int) -> Running:
        wants = wants_of(state, request, start.settled, coming)
        return replace(start, notes=replace(notes_of(start), wants=replace(wants, every=self.every)))

    def admit(self, state: State, slot: int, hit: Hit) -> State:
        """Learn how many passing blocks to spare (POLICY-6)."""
        request, known = state.requests[slot], memory_of(state)
        if self.parts is None or retention_of(state.config) or not isinstance(request, Waiting):
            return state
        (whole, slow, parts), old, tokens = self.parts, known.share, hit.length or 1
        more = min(hit.length, parts * served_by_passing(state, request.prefix, hit))
        lacks = lacks_passing(state, request)
        up, down = (whole - old) * more // tokens >> slow, old * (tokens - more) // tokens >> slow
        used = old + up - down if hit.length or not lacks else old
        share = used + (whole - used >> slow + 1) if lacks else used
        spared = tuple(block for block in state.queue if known.marks[block].spared)
        return sparing(replace(state, memory=replace(known, share=share)), spared)

    def leave(self, config: Config, request: Running, gone: tuple[Table, ...]) -> Leaving:
        return leaving(config, request.tables, gone, notes_of(request).wants)

    def end(self, config: Config, request: Running, resumes: bool, count: int) -> Leaving:
        return leaving_at_end(config, request, resumes, last_end(config, request, count))

    def release(self, state: State, batch: tuple[Table, ...], order: Table, said: Any) -> State:
        """Mark blocks that were let go of as passing or not; the last of them go as ordinary ones do (POLICY-4).

        The last request that held a block decides, not a copy or a connector. Only free blocks are tips.
        """
        free = {block for block in order if holders(state, block) == 0 and key(state, block) is not None}
        for block in order if said is not None else ():
            mark, is_found = memory_of(state).marks[block], key(state, block) is not None
            asks = self.parts is not None and not retention_of(state.config)
            asked = mark.asked or (asks and is_found and block in said.asked)
            if sharers(state, block) == 0:
                tip = tip_at(said, block) if block in free else Tip.NONE
                mark = replace(mark, passing=is_found and block in said.passing, tip=tip)
            state = put(state, {block: replace(mark, asked=asked)})
        marks = memory_of(state).marks
        fresh = tuple(block for block in order if block in free and marks[block].passing)
        return sparing(state, tuple(block for block in state.queue if marks[block].spared) + fresh)

    def carry(self, state: State, start: Running, keys: tuple[tuple[int, Content], ...]) -> State:
        """Note the copy of the state with which the prompt ends: it is a tip."""
        wants, marks = notes_of(start).wants, memory_of(state).marks
        ends = frozenset(wants.lengths) - {*wants.proven}
        tips = (block for block, content in keys if len(content[1][1]) in ends)
        return put(state, {block: replace(marks[block], tip=Tip.PROMPT) for block in tips})

    def reset(self, state: State) -> State:
        return state if retention_of(state.config) else replace(state, queue=in_order(state, None, len(state.queue)))

    def learns(self) -> bool:
        return True


def spares_of(state: State) -> int:
    """Return how many of the last passing blocks go as ordinary ones do now (POLICY-4, POLICY-6)."""
    option = keeping_of(state.config)
    if option is None or retention_of(state.config):
        return 0
    if option.parts is None:
        return option.spares
    whole = option.parts[0]
    return state.config.num_blocks * min(memory_of(state).share, whole // 4) // whole


def served_by_passing(state: State, prefix: Prefix, hit: Hit) -> int:
    """Return by how many tokens a hit that ends with a passing candidate is longer than without such candidates."""
    if not serve_passing(state, hit.tables):
        return 0
    config = state.config
    held = frozenset(content for block, content in state.keys if not is_passing_candidate(state, block))
    lengths = range(0, hit.length + 1, lcm(*(group.block_size for group in config.groups)))
    return hit.length - longest(config, enumerate(config.groups), held, prefix, config.eagle, lengths)


def lacks_passing(state: State, request: Waiting) -> bool:
    """Return whether a hit falls short of a junction that no earlier request has asked for."""
    config, junction = state.config, request.hit.junction
    at = next((at for at in range(len(config.groups)) if not forgets(config, at)), 0)
    size = config.groups[at].block_size
    content = named(config, at, request.prefix, junction // size * size)
    marks = memory_of(state).marks
    return junction > 0 and not any(marks[block].asked for block, other in state.keys if other == content)


def serve_passing(state: State, tables: tuple[Table, ...]) -> bool:
    """Return whether a hit ends with a passing candidate in some group."""
    return any(is_passing_candidate(state, table[-1]) for table in tables if table)


def is_passing_candidate(state: State, block: int) -> bool:
    """Return whether a block is free and passing."""
    return block in state.queue and memory_of(state).marks[block].passing


def sparing(state: State, blocks: Table) -> State:
    """Spare the last of some passing blocks, first to be let go of first, as many as are spared now."""
    count = spares_of(state)
    last = blocks[-count:] if count else ()
    return put(state, {block: replace(memory_of(state).marks[block], spared=block in last) for block in blocks})


def spare_fewer(state: State) -> State:
    """Spare no more blocks than are spared in a pool of this size."""
    marks = memory_of(state).marks
    return sparing(state, tuple(block for block in state.queue if marks[block].spared)) if marks else state


def tip_at(said: Leaving, block: int) -> Tip:
    """Return what of a request ended with a block that it lets go of."""
    if block in said.output:
        return Tip.OUTPUT
    return Tip.PROMPT if block in said.prompt else Tip.NONE


def keeping_of(config: Config) -> Keeping | None:
    """Return the option of a configuration, if it has it."""
    return next((each for each in config.chapters if isinstance(each, Keeping)), None)
