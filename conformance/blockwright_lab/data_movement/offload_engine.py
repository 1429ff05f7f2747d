"""An engine on a chain of three tiers: it computes, stores and loads requests, and moves their bytes as it is told.

After each operation the chain is compared with the specification, and every block that can be read, on every medium,
with the bytes that its key names.
"""

from functools import partial
from random import Random
from typing import ClassVar

from blockwright_conformance.checker.lockstep import act
from blockwright_conformance.gates import GateResult
from blockwright_conformance.offload.chain import (
    Cancel,
    ChainAction,
    ChainWorld,
    Compute,
    Land,
    Load,
    Store,
    Take,
    Touch,
)
from blockwright_conformance.offload.scopes import ChainScope
from blockwright_conformance.rows import ran
from blockwright_spec.offload.chain_effects import parts_of
from blockwright_spec.offload.chain_state import Chain, Kind, Transfer, chain_lookup, pins, reads, writes
from blockwright_spec.offload.tier_state import Key, Phase

from .engine import BrokenError, Engine, run_machine, walked
from .offload_scopes import NUM_BYTES, OFFLOAD_HISTORIES, Medium, OffloadWorld, bytes_of

ROOT = b"block "
"""What every key begins with; each of the other bytes is a block of the prefix that the key names."""


class OffloadEngine(Engine):
    """A device, a chain below it, and the media of its tiers."""

    moves: ClassVar[dict[str, int]] = {
        "compute": 4, "store": 6, "load": 6, "take": 5, "cancel": 1, "touch": 1, "lose": 1, "land": 14, "move": 6,
    }  # fmt: skip

    def __init__(self, world: OffloadWorld, media: list[Medium] | None = None) -> None:
        super().__init__()
        config = world.config
        self.world, self.span = world, config.span
        self.under_test = ChainWorld(ChainScope("bytes", config, (), (), eager=False))
        self.state: Chain = self.under_test.initial()
        self.adapter = self.under_test.model()
        made = zip(world.media, config.capacities, strict=True)
        self.media: list[Medium] = media or [medium(capacity, config.span) for medium, capacity in made]
        self.device = [bytearray(NUM_BYTES) for _ in range(config.num_device)]
        self.early: dict[int | None, bool] = {}
        """The transfers whose bytes were moved before they were said to have landed, and how that went."""

    # --- requests

    def request(self, pick: int) -> tuple[Key, ...]:
        """Give the keys of a request: a path from the root of a tree, one key for each block of its prefix."""
        random, path, keys = Random(pick), b"", []
        for _ in range(1 + random.randrange(self.world.longest)):
            path += bytes([random.randrange(self.world.branches)])
            keys.append(ROOT + path)
        return tuple(keys)

    def group(self, at: int) -> tuple[int, ...]:
        """Give the blocks of the device of a group."""
        return tuple(range(at * self.span, (at + 1) * self.span))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Give the groups of blocks of the device that may hold a block of a tier."""
        return [self.group(at) for at in range(len(self.device) // self.span)]

    def on_device(self) -> dict[Key, tuple[int, ...]]:
        """Give the keys whose content a group of the device holds, with one such group."""
        first = {each: self.state.device[each[0]] for each in self.groups}
        return {
            part[0]: each
            for each, part in first.items()
            if part is not None and tuple(self.state.device[at] for at in each) == parts_of(self.state, part[0])
        }

    def groups_without(self, kinds: tuple[Kind, ...]) -> list[tuple[int, ...]]:
        """Give the groups of the device that no transfer under way of some kinds uses."""
        used = {block for each in self.state.transfers if each.kind in kinds for block in each.device}
        return [each for each in self.groups if not used & set(each)]

    # --- operations

    def can(self, name: str) -> bool:
        """Tell whether a move can be made now."""
        return name not in ("land", "move") or bool(self.started())

    def compute(self, pick: int) -> None:
        """Compute what of a request is not on the device, into blocks that nobody uses."""
        random = Random(pick)
        for key in self.request(pick):
            free = self.groups_without((Kind.STORE, Kind.LOAD))
            if key not in self.on_device() and free:
                for part, block in enumerate(random.choice(free)):
                    self.perform(Compute(block, key, part))
                    self.device[block][:] = bytes_of(key, part)

    def store(self, pick: int) -> None:
        """Store some of what is on the device, known to tier 0 or not."""
        loading = {block for each in self.state.transfers if each.kind is Kind.LOAD for block in each.device}
        found = [each for each in self.on_device().items() if not loading & set(each[1])]
        Random(pick).shuffle(found)
        if chosen := found[: 1 + pick % 3]:
            self.perform(
                Store(tuple(key for key, _ in chosen), tuple(block for _, blocks in chosen for block in blocks))
            )

    def load(self, pick: int) -> None:
        """Load what can be loaded of a prefix that some tier knows, over blocks that no other load writes."""
        known = sorted({entry.key for tier in self.state.tiers for entry in tier.entries})
        groups = self.groups_without((Kind.LOAD,))
        if not known or not groups:
            return
        Random(pick).shuffle(groups)
        key = known[pick % len(known)]
        keys = tuple(key[:end] for end in range(len(ROOT) + 1, len(key) + 1))
        keys = keys if chain_lookup(self.state, keys) else (key,)
        found = keys[: max(1, min(chain_lookup(self.state, keys), len(groups)))]
        self.perform(Load(found, tuple(block for each in groups[: len(found)] for block in each)))

    def take(self) -> None:
        """Take the transfers that may start; from then on what they write holds nothing."""
        before = self.state.transfers
        self.perform(Take())
        for old, each in zip(before, self.state.transfers, strict=True):
            if each.started and not old.started:
                for tier, at in writes(self.state, each):
                    if tier is None:
                        self.device[at][:] = b"\xee" * NUM_BYTES
                    else:
                        self.media[tier].overwrite(at)

    def started(self) -> list[int]:
        """Give the numbers of the transfers that were handed out."""
        return [at for at, each in enumerate(self.state.transfers) if each.started]

    def move(self, pick: int) -> None:
        """Move the bytes of a transfer, and say nothing of it yet."""
        started = self.started()
        at = started[pick % len(started)]
        if self.adapter.jobs[at] not in self.early:
            self.early[self.adapter.jobs[at]] = self.moved(self.state.transfers[at])

    def land(self, pick: int, luck: int = 1) -> None:
        """Move the bytes of a transfer, unless they were, and say how that went; now and then, that it failed."""
        started = self.started()
        at = started[pick % len(started)]
        early = self.early.pop(self.adapter.jobs[at], None)
        success = self.moved(self.state.transfers[at]) if early is None else early
        self.perform(Land(at, success and luck % 7 != 0))

    def moved(self, each: Transfer) -> bool:
        """Move the bytes of a transfer; tell whether all were there."""
        sources, targets = list(reads(self.state, each)), list(writes(self.state, each))
        for number, key in enumerate(each.keys):
            tier, place = sources[number if each.source is not None else number * self.span]
            blocks = [at for _, at in sources[number * self.span : (number + 1) * self.span]]
            parts = [bytes(self.device[at]) for at in blocks] if tier is None else self.media[tier].read(place, key)
            if parts is None:
                self.fired["chain: lost block noticed"] += 1
                return False
            tier, place = targets[number if each.target is not None else number * self.span]
            if tier is not None:
                self.media[tier].write(place, key, parts)
                continue
            for (_, at), part in zip(targets[number * self.span : (number + 1) * self.span], parts, strict=True):
                self.device[at][:] = part
        return True

    def cancel(self, pick: int) -> None:
        """Drop a transfer that was not handed out, or try to drop one that was."""
        if self.state.transfers:
            self.perform(Cancel(pick % len(self.state.transfers)))

    def touch(self, pick: int) -> None:
        """Count a request's blocks as just used."""
        self.perform(Touch(self.request(pick)))

    def lose(self, pick: int) -> None:
        """Let a block of the last tier be lost."""
        entries = [each for each in self.state.tiers[-1].entries if each.phase is Phase.READY]
        if entries:
            self.media[-1].lose(entries[pick % len(entries)].place)

    # --- checks

    def perform(self, action: ChainAction) -> None:
        """Perform an action on both sides, and check everything."""
        keys = [each for tier in self.state.tiers for each in (entry.key for entry in tier.entries)]
        asked = action.keys if isinstance(action, Store | Load | Touch) else ()
        self.under_test.keys = list(dict.fromkeys((*keys, *asked)))
        outcome, faults, law, *_ = act(self.under_test, self.adapter, self.state, action)
        if faults:
            raise BrokenError(law, f"{action}: {'; '.join(faults)}")
        self.fired.update(self.under_test.happened(self.state, action, outcome))
        for broken in self.under_test.broken_by(outcome):
            raise BrokenError(broken.id, broken.statement)
        self.state = outcome.state
        self.judge(action)

    def judge(self, action: ChainAction) -> None:
        """Check the laws of states, and the bytes of what can be read if some have landed."""
        for broken in self.under_test.broken(self.state):
            raise BrokenError(broken.id, broken.statement)
        if isinstance(action, Land):
            self.adapter.chain.check()
            self.read_back()

    def read_back(self) -> None:
        """Compare the bytes of every block that can be read, on every medium and on the device, with its key's."""
        for at, (tier, medium) in enumerate(zip(self.state.tiers, self.media, strict=True)):
            for entry in tier.entries:
                parts = medium.read(entry.place, entry.key) if entry.phase is Phase.READY else None
                wanted = [bytes_of(entry.key, part) for part in range(self.span)]
                self.demand(parts is None or parts == wanted, "TIER-1", f"wrong bytes of {entry.key!r} in tier {at}")
        for block, part in enumerate(self.state.device):
            whole = part is None or self.device[block] == bytes_of(*part)
            self.demand(whole, "CHAIN-6", f"wrong bytes of {part} in block {block} of the device")

    def demand(self, holds: bool, law: str, detail: str) -> None:
        """Insist on something."""
        if not holds:
            raise BrokenError(law, detail)

    def finish(self) -> None:
        """Land everything there is, and see that nothing is held."""
        while self.state.transfers:
            self.take()
            self.land(0)
        self.demand(not any(pins(self.state, block) for block in range(len(self.device))), "CHAIN-3", "pins are left")
        self.demand(not self.adapter.chain.pins(), "CHAIN-3", "the chain holds pins with nothing under way")


LENGTHS = {"quick": (1, 20, 80, 1), "pr": (10, 40, 800, 2), "nightly": (1000, 100, 5000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


def chain_walk(world: OffloadWorld, seed: int, steps: int) -> OffloadEngine:
    """Take a random walk, land all transfers, and return the engine.

    Raises:
        BrokenError: the walk met a violation.
    """
    walked(engine := OffloadEngine(world), seed, steps)
    return engine


def histories(name: str, profile: str) -> GateResult:
    """Run the machine and the walks of a world, and return their row."""
    world, (examples, steps, length, walks) = OFFLOAD_HISTORIES[name], LENGTHS[profile]
    machine = partial(run_machine, lambda: OffloadEngine(world), examples, steps, profile != "nightly")
    rest = ((lambda seed=seed: chain_walk(world, seed, length).fired) for seed in range(walks))
    return ran("offload machine", name, (machine, *rest))
