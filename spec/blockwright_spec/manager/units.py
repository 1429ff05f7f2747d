"""Part one, chapter 24: units: hits that end inside a block.

Where blocks are large, whole blocks make short hits: a prompt that is shorter than a block hits nothing, and each turn
computes up to a block again. With a *unit*, a number of tokens that divides every block, a hit may end at each one.

A block is published when it is full, as without units, and beside that only the parts of it that end at a *tail*, so
that the index stays small: at the prompt, at the prompt less one token, which the same prompt would hit, and at the
tokens that a request has computed when it lets go of its blocks. One block may be published as several lengths. Each
names a part that is written already, so the block goes on while they are found, and all of them go with it (KEY-1).
Prompts also part where no request could foresee it, as behind a system prompt that is no whole number of blocks. So
tails also stand 1, 2, 4, 8, ... units behind the start of each block, and behind the hit: the next prompt hits at least
half of what it shares of that block, the one after it half of the rest, with a few keys for each block (UNIT-6).

A request that hits a tail writes behind it, in the same block. It takes the block itself only if nothing holds it and
no more than this part is published, as when a next turn goes on. Otherwise it gets the part as a copy, as a fork does
(COPY-1). As copies run before the step, a tail is published once the step that writes it has run (UNIT-1). A copy takes
one block more until it has run. If no block is free for that and nobody holds the block, the request takes it all the
same, and what is published beyond the hit goes: so a hit inside a block takes no block that the request would not need
without it (LIVE-1). A load writes whole blocks, and may write before a copy has run. So it starts at the block, and of
the hit the request adopts the whole blocks (LOAD-2).

A recurrent layer has only the state where a step stopped. It publishes the ends of a prompt and its junction, if the
engine ends a step there. Layers that read everything beside it publish the other tails too: no hit ends there, but they
show a later prompt where it parts. That is its junction, where it leaves a state for those that follow. A newcomer gets
the state as a copy if others hold its block. Before the next step of its owner writes over it, it is copied to a block
of its own, and its key goes with it (UNIT-7). If no block is free for that, it is given up. Whoever hits it before that
copy has run gets it from where the copy gets it, so that the order of copies does not matter. A step that reads a state
holds it beside the one that it writes; where a pool has no room for that, nothing is hit (`has_room`), with units or
without. Where a step has run ahead of the known tokens, its states are not found inside blocks, nor are those that a
later step has begun from. Draft heads (EAGLE) know whole blocks only: no configuration with a unit has them.
"""

from dataclasses import dataclass, replace
from math import lcm

from ..reads import Mamba
from . import demand
from .chapters import Chapter
from .facts import certain, heads, holders, keys_of, sharers
from .keys import end_of, ends_in, is_longer
from .marks import notes_of
from .outcomes import Fits, Reason, Refusal, Step
from .page import Act
from .plans import first_written
from .publication import put_request
from .seam import publish_keys
from .state import Config, Content, Copy, Hit, Running, State, Table, Waiting
from .tails import due_tails, end_tails, last_end, publish_tails, tail_lengths, with_tails


@dataclass(frozen=True, slots=True)
class Units(Chapter):
    """Hits may end inside blocks, at the multiples of a `unit`, which divides every block."""

    unit: int = 0

    def stride(self) -> int:
        return self.unit

    def learns(self) -> bool:
        return True

    def start(self, state: State, request: Waiting, start: Running, coming: int) -> Running:
        told = state.config, len(start.prefix[1]), start.settled, request.hit.junction
        return with_tails(start, tail_lengths(*told), end_tails(*told))

    def adopt(self, config: Config, hit: Hit, step: Step) -> tuple[Hit, Step]:
        """Return the whole blocks of a hit before a load, and the step that loads the rest of it too (LOAD-2)."""
        sizes = tuple(group.block_size for group in config.groups)
        rest = hit.length % lcm(*sizes) if step.coming() else 0
        length, each = hit.length - rest, zip(heads(config, hit), sizes, strict=True)
        tables = tuple(table[: length // size] for table, size in each)
        if not rest or not isinstance(step, demand.Step):
            return hit, step
        return replace(hit, length=length, tables=tables), replace(step, external=step.external + rest)

    def refuse(self, state: State, hit: Hit) -> Refusal | None:
        # A block in no table with a state is being saved: it is copied from its source. A part of any other block to
        # which a copy is to come was found by a step that ran without the copy.
        parts = {
            table[-1]
            for (at, table), group in zip(enumerate(heads(state.config, hit)), state.config.groups, strict=True)
            if ends_in(state.config, at, hit.length)
            if not isinstance(group.kind, Mamba) or sharers(state, table[-1]) > 0
        }
        return Refusal(Reason.UNCOPIED) if any(target in parts for _, _, target in state.copies) else None

    def plan(self, state: State, slot: int, start: Running, begin: int, step: Step, plan: Fits, missing: int) -> Fits:
        """Copy first what is found and the step writes over, if as many blocks are free (UNIT-7).

        Of a newcomer, the entry gets the copy, and what is found stays where it is.
        """
        tables = tuple(enumerate(plan.tables))
        outgrown = tuple(outgrown_entry(state, slot, start, at, table, begin, step) for at, table in tables)
        over = tuple(table[entry] for (_, table), entry in zip(tables, outgrown, strict=True) if entry is not None)
        if missing + len(over) > 0 or any(target in over for _, _, target in state.copies):
            return replace(plan, outgrown=outgrown)
        by_group = tuple(count + (entry is not None) for count, entry in zip(plan.by_group, outgrown, strict=True))
        more = replace(plan, by_group=by_group, outgrown=outgrown, saves=True)
        if isinstance(state.requests[slot], Running):
            return more
        copied = tuple(one if one is not None else other for one, other in zip(plan.copied, outgrown, strict=True))
        return replace(more, copied=copied, outgrown=())

    def overwrite(self, state: State, blocks: Table, copies: tuple[Copy, ...], start: Running) -> State:
        """Let the keys of states that a step writes over go to their copies, or be dropped if there are none (UNIT-7).

        Parts of attention within the hit of a newcomer stay as they are.
        """
        if not blocks:
            return state
        targets = {source: target for _, source, target in copies if source in blocks}
        found = tuple(each for each in state.keys if each[0] in blocks)
        gone = tuple((block, content) for block, content in found if not is_before(state, content, start.settled))
        went = tuple((targets[block], content) for block, content in state.keys if block in targets)
        left = tuple(each for each in state.keys if each not in gone)
        forgets = tuple(Act("forget", block, content=content) for block, content in gone)
        state = publish_keys(replace(state, keys=left, steps=state.steps + forgets), went)
        for chapter in state.config.chapters:
            state = chapter.carry(state, start, went)
        return state

    def publish(self, state: State, slot: int, count: int) -> State:
        return publish_tails(state, slot, count)

    def publish_last(self, state: State, slot: int, count: int) -> State:
        """Publish the last part of what a request has computed, and what the same tokens would hit (UNIT-4)."""
        request = state.requests[slot]
        if not isinstance(request, Running):
            return state
        end = last_end(state.config, request, count)
        tails = tuple(each // self.unit * self.unit for each in (end, min(end, len(request.prefix[1]) - 1)))
        return publish_tails(put_request(state, slot, with_tails(request, tails, tails)), slot, end)

    def leaves(self, config: Config, request: Running) -> bool:
        return bool(due_tails(request, request.computed))


def is_before(state: State, content: Content, begin: int) -> bool:
    """Return whether a step from token `begin` on leaves a content as it is, though it writes to its block."""
    return not isinstance(state.config.groups[content[0]].kind, Mamba) and end_of(state.config, content) <= begin


def outgrown_entry(
    state: State, slot: int, start: Running, at: int, table: Table, begin: int, step: Step
) -> int | None:
    """Return the entry whose recurrent state a step writes over though it is found inside a block, or is to be now.

    If others hold the block, it stays with them. Of a newcomer, also the entry with attention of which more is found.
    """
    group, is_new = state.config.groups[at], not isinstance(state.requests[slot], Running)
    entry, is_state = first_written(state, group, table, start, begin, step), isinstance(group.kind, Mamba)
    if entry is None or not (is_new or is_state):
        return None
    if is_new:
        is_over = holders(state, table[entry]) == 0 and (is_state or is_longer(state, table[entry], begin))
        return entry if is_over else None
    if sharers(state, table[entry]) > 1:
        return None
    end = certain(start)
    is_due = slot in state.due and end in notes_of(start).end_tails and ends_in(state.config, at, end)
    is_found = any(end_of(state.config, content) % group.block_size for content in keys_of(state, table[entry]))
    return entry if is_found or (is_due and end // group.block_size == entry) else None
