"""Which tier: hits, bytes moved and what a crash loses, by policy, of one workload through real tiers.

Conversations go on, mostly those of lately, each with all that was said in it before; the device holds few of them. The
engine is this process: it computes a block by writing what its tokens name, so that a load is compared. After the last
request the process is taken to have ended: bytes that were handed to the system stay, and a new engine asks for the
last prompts again. All numbers are counts, so that they are the same on every machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measure import require
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright.offload import CacheIdentity, OffloadingConnector

SIZE, BLOCKS, HOST, DISK = 4, 120, 160, 2_000
CONVERSATIONS, TURNS = 24, 12
SPEC = FullAttentionSpec(SIZE, num_kv_heads=1, head_size=64, dtype="float32")
IDENTITY = CacheIdentity("tiny", layout="4 tokens", dtype="float32", block_size=SIZE, hash_seed=b"seed")


class Policy(NamedTuple):
    """A way to keep blocks: how it is built beside the device alone."""

    name: str
    options: dict[str, Any] | None
    has_disk: bool = False


POLICIES = (
    Policy("the device alone", None),
    Policy('host, `store_on="publish"`', {}),
    Policy('host, `store_on="evict"`', {"store_on": "evict"}),
    Policy('host and disk, `write="through"`', {"write": "through"}, has_disk=True),
    Policy('host and disk, `write="back"`', {"write": "back"}, has_disk=True),
    Policy('host and disk, `"back"`, `"evict"`', {"write": "back", "store_on": "evict"}, has_disk=True),
)


class Engine:
    """A device, its manager and, unless the device is alone, a connector."""

    def __init__(self, policy: Policy, folder: Path) -> None:
        """Build the tiers of a policy."""
        config = KVCacheConfig(BLOCKS, [KVCacheGroupSpec(["layers.0"], SPEC)])
        evicts = (policy.options or {}).get("store_on") == "evict"
        self.manager = KVCacheManager(config, max_model_len=2_000, track_evictions=evicts)
        self.device = torch.zeros(BLOCKS, 2, SIZE, 64)
        disk: dict[str, Any] = {"disk": folder, "disk_blocks": DISK, "identity": IDENTITY}
        self.connector: OffloadingConnector | None = None
        if policy.options is not None:
            tensors = [self.device]
            self.connector = OffloadingConnector.build(
                self.manager, tensors, host_blocks=HOST, **(disk if policy.has_disk else {}), **policy.options
            )
        self.hasher = self.connector.hasher if self.connector else None
        self.made = 0

    def request(self, tokens: list[int]) -> Request:
        """Return a request for some tokens."""
        self.made += 1
        more: dict[str, Any] = {"hasher": self.hasher} if self.hasher else {}
        return Request(str(self.made), tokens, block_size=SIZE, **more)

    def content(self, request: Request, at: int) -> float:
        """Return the content of a request's block."""
        return float(hash(tuple(request.all_token_ids[: (at + 1) * SIZE])) % 1_000_003)

    def serve(self, tokens: list[int]) -> tuple[int, int]:
        """Serve a request; return the tokens that the device had, and those that were loaded."""
        request, manager, connector = self.request(tokens), self.manager, self.connector
        hit, length = manager.get_computed_blocks(request)
        loaded = connector.get_num_new_matched_tokens(request, length)[0] if connector else 0
        if connector and loaded:
            require(manager.allocate_slots(request, 0, length, hit, num_external_computed_tokens=loaded) is not None)
            connector.update_state_after_alloc(request, loaded)
            connector.start_step()
            loaded = sum(each.num_tokens for each in connector.drain())
            request.num_computed_tokens = length + loaded
            new = manager.allocate_slots(request, len(tokens) - length - loaded)
        else:
            new = manager.allocate_slots(request, len(tokens) - length, length, hit)
        require(new is not None)
        if connector:
            connector.start_step()
        table = manager.get_block_ids(request.request_id)[0]
        for at, block in enumerate(table[: len(tokens) // SIZE]):
            if (at + 1) * SIZE <= length + loaded:
                require(bool((self.device[block] == self.content(request, at)).all()))
            else:
                self.device[block] = self.content(request, at)
        request.num_computed_tokens = len(tokens)
        if connector:
            connector.finish_step([request])
        manager.free(request)
        if connector:
            connector.request_finished(request)
            connector.drain()
        return length, loaded


def conversations() -> Iterator[list[int]]:
    """Yield the prompts of all turns: mostly of conversations that went on lately."""
    draw = random.Random(0)
    said: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
    lately = list(range(CONVERSATIONS))
    for _ in range(TURNS * CONVERSATIONS):
        number = draw.choice(lately[-8:]) if draw.random() < 0.7 else draw.randrange(CONVERSATIONS)
        lately.append(number)
        if len(said[number]) > 200:
            said[number] = []  # another one begins
        said[number] += [draw.randrange(1 << 20) for _ in range(draw.randrange(8, 40))]
        yield list(said[number])


def row(policy: Policy, folder: Path) -> str:
    """Return a policy's row of the table."""
    engine = Engine(policy, folder / "blocks")
    asked = on_device = loaded = 0
    last: list[list[int]] = []
    for tokens in conversations():
        here, came = engine.serve(tokens)
        asked, on_device, loaded = asked + len(tokens), on_device + here, loaded + came
        last = [*last, tokens][-CONVERSATIONS:]
    connector = engine.connector
    if connector is None:
        return f"| {policy.name} | {on_device / asked:.1%} | | | |"
    if policy.has_disk:
        shutil.copytree(folder / "blocks", folder / "left")  # what the system has when the process ends
    stats = connector.transfer_stats()
    moved = {pair: f"{(each.transfers.bytes if each.transfers else 0) / 2**20:.1f}" for pair, each in stats.items()}
    stored, up = moved.get(("GPU", "CPU"), ""), moved.get(("CPU", "GPU"), "")
    down = " / ".join(moved.get(pair, "0.0") for pair in (("CPU", "DISK"), ("DISK", "CPU"))) if policy.has_disk else ""
    before = found_by(engine, last)
    connector.drain()
    connector.close()
    lost = 1.0
    if policy.has_disk:
        again = Engine(policy, folder / "left")
        require(again.connector is not None)
        lost = 1 - found_by(again, last) / max(1, before)
        again.connector.close()  # type: ignore[union-attr]
    hits = f"{(on_device + loaded) / asked:.1%}"
    return f"| {policy.name} | {hits} | {stored} / {up} | {down} | {lost:.0%} |"


def found_by(engine: Engine, prompts: list[list[int]]) -> int:
    """Return how many tokens of some prompts the tiers offer."""
    found = 0
    require(engine.connector is not None)
    for tokens in prompts:
        request = engine.request(tokens)
        found += engine.connector.get_num_new_matched_tokens(request, 0)[0]  # type: ignore[union-attr]
        engine.connector.request_finished(request)  # type: ignore[union-attr]
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take none."""


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    print("| policy | tokens that hit | MiB device to host / back | MiB host to disk / back | a crash loses |")
    print("|---|---|---|---|---|")
    for policy in POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            print(row(policy, Path(folder)), flush=True)
    return 0
