"""Trials of the connector where hits end inside blocks: prompts that are sent again once the device has lost them.

PART-1    the block that a hit ends in is brought as it is, or as a longer part; a state as it is
PART-2    a prompt whose blocks have landed in the tiers hits as much there as it would on the device
CHAIN-6   of the connector: what a load has brought is what the request's tokens name
"""

from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

from blockwright_conformance.kv_cache.blockwright import kv_cache_config
from blockwright_spec.manager.state import Config
from blockwright_spec.offload.parts import Brought, Resent, law_part_has_what_is_read, law_prompt_comes_back
from blockwright_spec.reads import Full, Group, Mamba, Sliding

from ..numerics.engine.below import LateHandler
from .known_bug import Fault
from .offload_trials import Copies, worker_of
from .watch import rearm

Tokens = tuple[int, ...]

WORLDS = (
    ((Group(Full(), 4),), 1),
    ((Group(Full(), 4),), 2),
    ((Group(Full(), 4), Group(Sliding(5), 2)), 1),
    ((Group(Full(), 4), Group(Mamba(), 4)), 1),
    ((Group(Full(), 2), Group(Mamba(), 4)), 2),
)
NUM_BLOCKS, NUM_PLACES = 30, 200
LENGTHS = range(5, 10)


class Slots(Copies):
    """Moves blocks slot by slot: of what changes while it is being read, the slots that changed arrive torn."""

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        before: list[Any] = self.first[job_id]
        after: list[Any] = self.read(source)
        for block, was, now in zip(destination.block_ids, before, after, strict=True):
            slots = tuple(one if one == other else "torn" for one, other in zip(was, now, strict=True))
            self.contents[destination.medium()][block] = slots
        return True


class Engine:
    """A scheduler with a connector and a host tier; each slot holds the tokens up to its own, and its group."""

    def __init__(self, package: ModuleType, groups: tuple[Group, ...], unit: int, store_on: str) -> None:
        self.core: Any = package
        offload: Any = package.offload
        self.groups, self.unit = groups, unit
        config = kv_cache_config(Config(groups, NUM_BLOCKS, 32), package)
        self.manager = self.core.KVCacheManager(config, 32, prefix_match_unit=unit, track_evictions=store_on == "evict")
        empty = (None,) * max(group.block_size for group in groups)
        self.contents: dict[str, list[Any]] = {"GPU": [empty] * NUM_BLOCKS, "CPU": [empty] * NUM_PLACES}
        offload.OffloadingHandler.register(LateHandler)  # of a changed package it is another class
        self.handler: Any = Slots(self.contents, fails=False)
        chain = offload.OffloadChain([offload.LRUOffloadingManager(offload.CPUBackend(4, NUM_PLACES))])
        worker = worker_of(offload, self.handler)
        self.connector = offload.OffloadingConnector(self.manager, chain, worker, store_on=store_on)

    def request(self, name: str, tokens: Tokens) -> Any:
        return self.core.Request(name, list(tokens), self.unit)

    def step(self, request: Any, end: int, length: int = 0, hit: Any = None) -> None:
        begin = request.num_computed_tokens + length
        if self.manager.allocate_slots(request, end - begin, length, hit) is None:
            raise AssertionError("the pool has room")
        self.connector.start_step()
        gpu = self.contents["GPU"]
        for copies in self.manager.take_copies():
            for source, destination in copies:
                gpu[destination] = gpu[source]
        tables = zip(self.groups, self.manager.get_block_ids(request.request_id), strict=True)
        for at, (group, table) in enumerate(tables):
            is_state = isinstance(group.kind, Mamba)
            for place in range(end - 1 if is_state else begin, end):
                block, slot = table[place // group.block_size], place % group.block_size
                content, old = (at, tuple(request.all_token_ids[: place + 1])), enumerate(gpu[block])
                gpu[block] = tuple(content if is_state or slot == other else was for other, was in old)
        request.num_computed_tokens = end
        self.connector.finish_step([request])

    def serve(self, prompt: Tokens) -> Tokens:
        """Serve a prompt and an answer; return all that is computed then, and a token more.

        Prompts of an odd length end no step at the end of a block, and the answer jumps over some.
        """
        request, known = self.request("first", prompt), len(prompt)
        size = max(group.block_size for group in self.groups)
        ends = {*(range(size, known, size) if known % 2 == 0 else ()), known}
        ends |= {end // self.unit * self.unit for end in (known - 1, known)}
        for end in sorted(ends - {0}):
            self.step(request, end)
        for answer in ([70, 71], [72]):
            request.append_output_token_ids(answer)
            self.step(request, request.num_tokens)
        self.end(request)
        return (*request.all_token_ids, 73)

    def go_on(self, tokens: Tokens) -> Tokens:
        """Go on from what the device has, in one step; return the tokens up to the first behind its next block."""
        request = self.request("longer", tokens)
        hit, length = self.manager.get_computed_blocks(request)
        self.step(request, len(tokens), length, hit)
        self.end(request)
        size = max(group.block_size for group in self.groups)
        return tokens[: length // size * size + size + 1]

    def end(self, request: Any) -> None:
        self.manager.free(request)
        self.connector.request_finished(request)
        self.connector.start_step()  # with store_on="evict", before another step writes

    def settle(self) -> None:
        for _ in range(3):
            self.handler.wait(list(self.handler.waiting))
            self.connector.poll()

    def lose(self) -> None:
        self.settle()
        for number in range(80, 86):
            other = self.request(f"other {number}", (number,) * 32)
            self.step(other, 32)
            self.end(other)
            self.settle()
        self.manager.reset_prefix_cache()

    def back(self, tokens: Tokens) -> tuple[int, list[tuple[int, Any]]]:
        """Load what the tiers have of a prompt; return its length and, by group, the last block of it."""
        request = self.request("back", tokens)
        external = int(self.connector.get_num_new_matched_tokens(request, 0)[0])
        if not external:
            return 0, []
        self.manager.allocate_slots(request, 0, num_external_computed_tokens=external)
        self.connector.update_state_after_alloc(request, external)
        tables = self.manager.get_block_ids(request.request_id)
        self.connector.start_step()
        self.settle()
        last = [
            (at, self.contents["GPU"][table[(external - 1) // group.block_size]])
            for at, (group, table) in enumerate(zip(self.groups, tables, strict=True))
        ]
        self.end(request)
        return external, last


def brought(engine: Engine, at: int, row: Any, hit: Tokens) -> Brought:
    """Return what a block has: the longest tokens that it holds, if all slots that are read hold theirs."""
    group = engine.groups[at]
    is_state = isinstance(group.kind, Mamba)
    start = (len(hit) - 1) // group.block_size * group.block_size
    held = [slot for slot in row[: group.block_size] if isinstance(slot, tuple)]
    is_right = all(row[place - start] == (at, hit[: place + 1]) for place in range(start, len(hit)))
    named = held[-1][1] if held and (is_state or is_right) else ()
    return Brought(named, hit, group.block_size, is_state)


def faults_of(engine: Engine, prompt: Tokens) -> Iterator[Fault]:
    """Serve a prompt, lose it, and send it again, and as the beginning of other prompts.

    Where these part from the first behind its prompt, the device may have a part, and the tiers have the prompt.
    """
    turn, end = engine.serve(prompt), len(prompt) // engine.unit * engine.unit
    engine.manager.new_step_starts()
    sent = {prompt: len(prompt), turn: len(turn), turn[: len(prompt) + 2]: end}
    hits = [engine.manager.get_computed_blocks(engine.request("asked", each))[1] for each in sent]
    for (tokens, most), length in zip(sent.items(), hits, strict=True):
        yield from sent_again(engine, tokens, min(most, length))
    engine.lose()
    engine.serve(prompt)
    yield from sent_again(engine, engine.go_on((*turn, *range(90, 98))), 0)


def sent_again(engine: Engine, tokens: Tokens, on_device: int) -> Iterator[Fault]:
    """Lose what the device has, and load what the tiers have of a prompt."""
    engine.lose()
    external, last = engine.back(tokens)
    if not law_prompt_comes_back(Resent(on_device, external)):
        yield Fault("PART-2", f"{on_device} of {len(tokens)} tokens were hit, and {external} come back", len(tokens))
    for at, row in last:
        if not law_part_has_what_is_read(found := brought(engine, at, row, tokens[:external])):
            yield Fault("PART-1", f"group {at}: {found}", len(tokens))


def resent(package: ModuleType) -> Iterator[Fault]:
    """Store prompts as they are computed, or as the device loses them, and send them again (PART-1, PART-2)."""
    for world, store_on, length in product(WORLDS, ("publish", "evict"), LENGTHS):
        rearm()
        if found := list(faults_of(Engine(package, *world, store_on), tuple(range(length)))):
            yield found[0]
            return
