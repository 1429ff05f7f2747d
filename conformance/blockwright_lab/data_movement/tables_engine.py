"""An engine on the block manager: sequence groups that fork, grow, move to the host and end, with data that moves.

Each operation makes the manager's public calls, executes the copies and swaps that come back on torch tensors, and has
every sequence read back whole. With a reference, the specification makes the same steps, and whole states, refusals and
the manager's answers to questions are compared.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import ModuleType
from typing import Any

import blockwright
from blockwright.paging import SelfAttnBlockSpaceManager, SequenceStatus, SimpleSequence, SimpleSequenceGroup
from blockwright_conformance.block_tables.abstraction import PagedObservation
from blockwright_conformance.block_tables.actions import TableCall, TablesReply, touched
from blockwright_conformance.block_tables.blockwright import BlockwrightTables
from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.block_tables.world import TablesWorld
from blockwright_conformance.checker.lockstep import LawError, act
from blockwright_conformance.checker.world import Outcome
from blockwright_spec.block_tables import counts
from blockwright_spec.block_tables.outcomes import Choice
from blockwright_spec.block_tables.state import Device, Paged, PagedConfig, Pair
from blockwright_spec.manager.outcomes import When
from blockwright_spec.reads import Prefix

from ..known_bugs.worlds import tables_of
from .gate import World
from .tables_tensors import TokenCaches, code

LAWS_EVERY = 16
"""Operations between two checks of the laws of states."""

WHEN = {None: "OK", When.NOT_NOW: "LATER", When.NEVER: "NEVER"}
"""The name of what the manager answers for each of the specification's answers."""


class Member:
    """A sequence, its slot in the specification, and the numbers of its prefixes."""

    def __init__(self, seq: SimpleSequence, slot: int, codes: list[int]) -> None:
        self.seq, self.slot, self.codes = seq, slot, codes
        self.reported = 0
        """Most tokens that an append was told are computed."""
        self.placed = 0
        self.found = 0
        """Tokens that were cached when it came, and so were never computed."""


class ManagerTables(BlockwrightTables):
    """The tables of a block manager, to be shown in the specification's terms; `owners` are sequences by slot."""

    def __init__(self, config: PagedConfig, manager: SelfAttnBlockSpaceManager) -> None:
        super().__init__(config)
        self.manager, self.allocator = manager, manager.block_allocator
        self.owners: dict[int, int] = {}

    def observe(self, slots: int) -> PagedObservation:
        there = self.manager.block_tables
        self.tables = {slot: ((0, ()), there[owner]) for slot, owner in self.owners.items() if owner in there}
        return super().observe(slots)


@dataclass(frozen=True)
class Call:
    """A call of the manager that was made, and its actions; all of them are refused with the first."""

    actions: Sequence[TableCall]
    reply: TablesReply

    def meaning(self, state: Paged, choice: Choice | None = None) -> Outcome[Paged]:
        done = self.actions[0].meaning(state, choice)
        for action in self.actions[1:] if done.refusal is None else ():
            after = action.meaning(done.state, choice)
            done = Outcome(after.state, done.steps + after.steps)
        return done

    def perform(self, model: Any, state: Paged) -> TablesReply:
        return self.reply


class PagedEngine:
    """An engine; `reference`: whether the specification goes along; `package`: the implementation, or a copy of it."""

    def __init__(self, world: World, reference: bool = True, package: ModuleType = blockwright) -> None:
        self.world, self.reference = world, reference
        self.paging: Any = package.paging
        self.errors: Any = package.errors
        self.running: SequenceStatus = self.paging.SequenceStatus.RUNNING
        self.swapped: SequenceStatus = self.paging.SequenceStatus.SWAPPED
        self.manager: SelfAttnBlockSpaceManager = self.paging.SelfAttnBlockSpaceManager(
            world.size, world.num_gpu, world.num_cpu, world.watermark, world.sliding_window, world.caching
        )
        self.config = PagedConfig(world.size, world.num_gpu, world.num_cpu, world.caching, world.window)
        self.under_test = TablesWorld(PagedScope("tables", self.config, world.slots, ()))
        self.state: Paged = self.under_test.initial()
        self.shown = tables_of(package, ManagerTables)(self.config, self.manager)
        self.caches = TokenCaches(world.num_gpu, world.num_cpu, world.size)
        self.groups: list[tuple[SimpleSequenceGroup, list[Member]]] = []
        self.count, self.clock, self.operations = 0, 0, 0
        self.fired: Counter[str] = Counter()

    # ---- what there is

    @property
    def members(self) -> list[Member]:
        return [member for _, members in self.groups for member in members]

    @property
    def empty_slots(self) -> list[int]:
        used = {member.slot for member in self.members}
        return [slot for slot in range(self.world.slots) if slot not in used]

    # ---- operations

    def arrive(self, tokens: list[int], extra: int, width: int, ahead: int, chunk: int) -> None:
        slots = self.empty_slots[:width]
        make, extra_hash = self.paging.SimpleSequence, extra or None
        seqs: list[SimpleSequence] = [make(self.count + at, tokens, extra_hash=extra_hash) for at in range(len(slots))]
        group: SimpleSequenceGroup = self.paging.SimpleSequenceGroup(f"g{self.count}", seqs)
        self.count += len(seqs)
        prefix: Prefix = (extra if self.world.caching else 0, tuple(tokens))
        answer = self.manager.can_allocate(group, ahead)
        watermark = self.manager.watermark_blocks
        wanted = counts.can_allocate
        self.compare("can_allocate", lambda: WHEN[wanted(self.state, len(tokens), ahead, watermark)], answer.name)
        if answer is not self.paging.AllocStatus.OK:
            self.fired[answer.name] += 1
            return
        known = self.cached(seqs[0], prefix)
        actions = [
            TableCall("Allocate", (slots[0], prefix, Device.GPU)),
            *(TableCall("Fork", (slots[0], slot)) for slot in slots[1:]),
        ]
        self.shown.owners |= {slot: seq.seq_id for slot, seq in zip(slots, seqs, strict=True)}
        if self.call(lambda: self.manager.allocate(group), actions, self.world.window is None) is None:
            return
        codes: list[int] = []
        for token in tokens:
            codes.append(code(codes[-1] if codes else extra, token))
        members = [Member(seq, slot, codes[:]) for seq, slot in zip(seqs, slots, strict=True)]
        self.groups.append((group, members))
        for member in members:
            member.seq.status = self.running
            member.placed, member.found = len(tokens), known
        self.compute(len(self.groups) - 1, max(known, chunk))

    def cached(self, seq: SimpleSequence, prefix: Prefix) -> int:
        found = self.manager.get_num_cached_tokens(seq)
        self.manager.remove_seq_from_computed_blocks_tracker(seq)
        if self.world.caching:
            self.compare("get_num_cached_tokens", lambda: counts.cached_tokens(self.state, prefix), found)
        return found

    def grow(self, index: int, tokens: Callable[[], list[int]], ahead: int) -> None:
        """Append tokens to all sequences of a running group, as far as they fit by the manager's answer."""
        group, members = self.groups[index]
        for member in members:
            member.seq.token_ids += tokens()
        asks = tuple((member.slot, len(member.seq.token_ids) - member.placed) for member in members)
        fits = self.manager.can_append_slots(group, ahead)
        self.compare("can_append_slots", lambda: counts.can_append_slots(self.state, asks, ahead), fits)
        more = max(new for _, new in asks)
        for member in members:
            if not self.append(member, ahead, fits):
                break
        for member in members:  # what did not fit was never put out
            del member.seq.token_ids[member.placed :]
        self.compute(index, more)

    def append(self, member: Member, ahead: int, must: bool) -> bool:
        seq, placed = member.seq, member.placed
        reported = seq.num_computed_tokens if self.world.window is not None else None
        action = TableCall("AppendTokens", (member.slot, tuple(seq.token_ids[placed:]), ahead, reported, False))
        pairs = self.call(lambda: self.manager.append_slots(seq, ahead), [action], must)
        if pairs is None:
            return False
        self.caches.copy(pairs)
        for token in seq.token_ids[placed:]:
            member.codes.append(code(member.codes[-1], token))
        member.reported, member.placed = max(member.reported, reported or 0), len(seq.token_ids)
        if ahead:
            self.caches.draft(self.table(member), member.placed)
        return True

    def compute(self, index: int, count: int) -> None:
        group, members = self.groups[index]
        stops = [min(each.placed, each.seq.num_computed_tokens + count) for each in members]
        for member, stop in zip(members, stops, strict=True):
            start = max(member.seq.num_computed_tokens, member.found)
            if start < stop:
                tokens, codes = member.seq.token_ids[start:stop], member.codes[start:stop]
                self.caches.write(self.table(member), start, codes, tokens)
        actions = [TableCall("MarkTable", (member.slot, stop)) for member, stop in zip(members, stops, strict=True)]
        self.call(lambda: self.manager.mark_blocks_as_computed(group, count), actions, True)
        for member, stop in zip(members, stops, strict=True):
            member.seq.num_computed_tokens = stop
        if self.world.caching:
            common = self.manager.get_common_computed_block_ids([member.seq for member in members])
            self.compare("get_common_computed_block_ids", lambda: self.common(members), common)
        self.done()

    def fork(self, index: int, which: int) -> None:
        group, members = self.groups[index]
        parent = members[which % len(members)]
        child = Member(parent.seq.fork(self.count), self.empty_slots[0], parent.codes[:])
        child.reported, child.placed, child.found = parent.reported, parent.placed, parent.found
        self.count += 1
        self.shown.owners[child.slot] = child.seq.seq_id
        calls = [TableCall("Fork", (parent.slot, child.slot))]
        self.call(lambda: self.manager.fork(parent.seq, child.seq), calls, True)
        group.seqs.append(child.seq)
        members.append(child)
        self.done()

    def free(self, index: int, which: int) -> None:
        group, members = self.groups[index]
        member = members[which % len(members)]
        self.call(lambda: self.manager.free(member.seq), [TableCall("FreeTable", (member.slot,))], True)
        self.manager.remove_seq_from_computed_blocks_tracker(member.seq)
        members.remove(member)
        group.seqs.remove(member.seq)
        if not members:
            del self.groups[index]
        self.done()

    def swap_out(self, index: int) -> None:
        """Move a running group to the host, whether or not it fits by the manager's answer."""
        fits = self.manager.can_swap_out(self.groups[index][0])
        self.compare("can_swap_out", lambda: self.swappable(index, Device.CPU, 0) is None, fits)
        self.swap(index, Device.CPU, fits)

    def swap_in(self, index: int, ahead: int) -> None:
        """Move a swapped group back, whether or not it fits by the manager's answer."""
        answer = self.manager.can_swap_in(self.groups[index][0], ahead)
        self.compare("can_swap_in", lambda: WHEN[self.swappable(index, Device.GPU, ahead)], answer.name)
        self.swap(index, Device.GPU, answer is self.paging.AllocStatus.OK)

    def swappable(self, index: int, to: Device, ahead: int) -> When | None:
        asks = tuple((member.slot, 0) for member in self.groups[index][1])
        return counts.can_swap(self.state, asks, to, ahead, self.manager.watermark_blocks)

    def swap(self, index: int, to: Device, must: bool) -> None:
        group, members = self.groups[index]
        action = TableCall("Swap", (tuple(member.slot for member in members), to))
        move = self.manager.swap_out if to is Device.CPU else self.manager.swap_in
        pairs = self.call(lambda: move(group), [action], must)
        if pairs is None:
            return
        self.caches.swap(pairs, to is Device.CPU)
        for member in members:
            member.seq.status = self.swapped if to is Device.CPU else self.running
        self.done()

    def access(self, index: int) -> None:
        for member in self.groups[index][1]:
            self.clock = max(self.state.times) + 1 if self.reference else self.clock + 1
            action = TableCall("Access", (touched(self.state, member.slot), self.clock))
            seq, now = member.seq, float(self.clock)
            self.call(lambda seq=seq, now=now: self.manager.access_all_blocks_in_seq(seq, now), [action], True)  # type: ignore[misc]

    def common(self, members: list[Member]) -> list[int]:
        heads = []
        for member in members:
            table = self.state.tables[member.slot]
            assert table is not None
            known = counts.cached_tokens_of(self.state, table) // self.world.size
            heads.append(table.entries[:known])
        return [blocks[0] for blocks in takewhile(lambda blocks: len(set(blocks)) == 1, zip(*heads, strict=False))]

    def reset(self) -> None:
        actions = [TableCall("ResetCache", (device,)) for device in Device]
        idle = not self.groups or not self.world.caching
        if self.manager.reset_prefix_cache() != idle:
            raise LawError("REF-0", f"reset_prefix_cache: expected {idle}")
        if idle:
            self.follow(actions, TablesReply())

    # ---- what operations share

    def table(self, member: Member) -> list[int]:
        return self.manager.get_block_table(member.seq)

    def call(
        self, call: Callable[[], list[Pair] | None], actions: Sequence[TableCall], must: bool
    ) -> list[Pair] | None:
        """Make a call of the manager, in lock-step; return its pairs, or None where blocks were short."""
        name, order = actions[0].kind, self.shown.order() if self.reference else ()
        try:
            pairs, error = call() or [], None
        except self.errors.NoFreeBlocksError as short:
            pairs, error, name = [], short, "NO_FREE_BLOCKS"
            if must:
                raise LawError("PAGE-13", f"{actions}: {short}, though the manager had said that it fits") from None
        self.fired[name] += 1
        shift = self.world.num_gpu
        absolute = pairs
        if actions[0].kind == "Swap":
            out = actions[0].arguments[1] is Device.CPU
            absolute = [(one, two + shift) if out else (one + shift, two) for one, two in pairs]
        self.follow(actions, TablesReply(False, error, tuple(absolute), order))
        return None if error else pairs

    def follow(self, actions: Sequence[TableCall], reply: TablesReply) -> None:
        if not self.reference:
            return
        self.learn(actions)
        outcome, faults, law, *_ = act(self.under_test, self.shown, self.state, Call(actions, reply))
        if faults:
            raise LawError(law, f"{actions}: {'; '.join(faults)}")
        for broken in self.under_test.broken_by(outcome):
            raise LawError(broken.id, f"{actions}: {broken.statement}")
        self.state = outcome.state
        self.operations += 1
        self.manager.check()
        if self.operations % LAWS_EVERY == 0:
            self.judge()

    def learn(self, actions: Sequence[TableCall]) -> None:
        for action in actions:
            slot, *rest = action.arguments
            if action.kind == "Allocate":
                self.shown.digests.chain(rest[0])
            elif action.kind == "AppendTokens" and (table := self.state.tables[slot]) is not None:
                self.shown.digests.chain((table.prefix[0], table.prefix[1] + rest[0]))

    def compare(self, what: str, wanted: Callable[[], Any], found: Any) -> None:
        if self.reference and (want := wanted()) != found:
            raise LawError("REF-0", f"{what}: expected {want}, found {found}")

    def done(self) -> None:
        size, window = self.world.size, self.world.window
        for member in self.members:
            start = 0 if window is None else max(0, member.reported // size - window) * size
            stop = max(member.seq.num_computed_tokens, member.found)
            tokens, codes = member.seq.token_ids[:stop], member.codes[:stop]
            if not self.caches.reads_back(self.table(member), start, codes, tokens):
                raise LawError("PAGE-4", f"sequence {member.seq.seq_id} does not read back its tokens from {start}")

    def judge(self) -> None:
        for law in self.under_test.broken(self.state):
            raise LawError(law.id, law.statement)

    def finish(self) -> None:
        self.judge()
        while self.groups:
            self.free(0, 0)
        null = int(self.manager.block_allocator.has_null_block)
        free = self.manager.get_num_free_gpu_blocks() + null, self.manager.get_num_free_cpu_blocks()
        if free != (self.world.num_gpu, self.world.num_cpu):
            raise LawError("PAGE-1", f"everything has ended, and of both devices {free} blocks are free")
        self.manager.check()
