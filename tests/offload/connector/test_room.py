"""Property: what the tiers hold is offered as far as the host can pass it through, and comes whole; what waits for room
in the tiers is not lost meanwhile, and holds no more of the device than it may, for no longer than transfers end.

How: prompts of every kind of layer through a real host and a real disk, on which the bytes of each block are compared
after the load; and small cases with a handler that does nothing until it is told to.
Not covered: hosts and tiers that fail (test_end_to_end.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.offload.connector.test_connector_calls import Rig

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.errors import InvalidArgumentError
from blockwright.offload import BlockHint, CacheIdentity, OffloadingConnector
from blockwright.offload import stores as stores_module

SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
FULL = FullAttentionSpec(4, **SIZES)  # type: ignore[arg-type]
WINDOW = SlidingWindowSpec(4, sliding_window=40, **SIZES)  # type: ignore[arg-type]
NARROW = SlidingWindowSpec(4, sliding_window=16, **SIZES)  # type: ignore[arg-type]
STATES = MambaSpec(4, ((1,),), ("float32",))
KINDS: dict[str, list[KVCacheSpec]] = {
    "full": [FULL],
    "full and a window": [FULL, WINDOW],
    "full and a narrow window": [FULL, NARROW],
    "full and two windows": [FULL, WINDOW, WINDOW],
    "full and states": [FULL, STATES],
}
LENGTH = 24  # blocks of a prompt
NUM = 6  # prompts


class Engine:
    """A manager, a device of which each block holds what its prompt, group and position name, and a connector."""

    def __init__(
        self, folder: Path, specs: list[KVCacheSpec], host: int, write: str = "back", most: int | None = None
    ) -> None:
        groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        self.manager = KVCacheManager(KVCacheConfig(600, groups), max_model_len=2000)
        self.device = torch.zeros(600, 4, 1)
        identity = CacheIdentity("tiny", layout="4 tokens", dtype="float32", block_size=4, hash_seed=b"seed")
        self.connector = OffloadingConnector.build(
            self.manager,
            [self.device],
            host_blocks=host,
            disk=folder / "blocks",
            disk_blocks=2000,
            write=write,
            identity=identity,
            max_host_blocks=most,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.connector.close()

    def request(self, name: str, prompt: int) -> Request:
        return Request(name, [prompt] * (4 * LENGTH + 1), block_size=4, hasher=self.connector.hasher)

    def named(self, request: Request, num_tokens: int) -> list[tuple[int, float]]:
        """Return the blocks of a request, and what each must hold."""
        prompt = request.all_token_ids[0]
        return [
            (block, 1.0 + prompt + 100 * group + 1000 * at)
            for group, table in enumerate(self.manager.get_block_ids(request.request_id))
            for at, block in enumerate(table[: num_tokens // 4])
            if block
        ]

    def serve(self, prompt: int) -> None:
        request = self.request(f"first {prompt}", prompt)
        for end in (4 * LENGTH, 4 * LENGTH + 1):
            self.manager.new_step_starts()
            assert self.manager.allocate_slots(request, end - request.num_computed_tokens) is not None
            self.connector.start_step()
            request.num_computed_tokens = end
            for block, content in self.named(request, end):
                self.device[block] = content
            self.connector.finish_step([request])
        self.manager.free(request)
        self.connector.request_finished(request)
        self.connector.drain()

    def again(self, prompt: int, may_fail: bool = False) -> int:
        """Load what is offered of a prompt, compare the contents, and return how many tokens that were."""
        request = self.request(f"again {prompt}", prompt)
        external, _ = self.connector.get_num_new_matched_tokens(request, 0)
        if external:
            assert self.manager.allocate_slots(request, 0, num_external_computed_tokens=external) is not None
            self.connector.update_state_after_alloc(request, external)
            self.connector.start_step()
            (result,) = self.connector.drain()
            if result.num_computed_tokens < external and may_fail:
                external = 0  # the manager has freed it
            else:
                assert result.num_computed_tokens == external
            for block, content in self.named(request, external) if external else ():
                if self.manager.block_pool.is_published(block):
                    assert self.device[block].flatten().tolist() == [content] * 4
            request.num_computed_tokens = external
            if external:
                self.manager.free(request)
        self.connector.request_finished(request)
        self.connector.drain()
        self.connector.check()
        assert self.manager.reset_prefix_cache()
        return external


@pytest.mark.parametrize("write", ["back", "through"])
@pytest.mark.parametrize("kinds", KINDS)
def test_what_is_offered_is_what_there_is_and_comes_whole(tmp_path: Path, kinds: str, write: str) -> None:
    """law: CHAIN-18. The host is full of blocks that the disk does not have yet."""
    with Engine(tmp_path, KINDS[kinds], 64, write) as engine:
        for prompt in range(NUM):
            engine.serve(prompt)
        assert engine.manager.reset_prefix_cache()
        assert [engine.again(prompt) for prompt in range(NUM)] == [4 * LENGTH] * NUM


@pytest.mark.parametrize("kinds", list(KINDS)[:-1])
def test_a_hit_that_the_host_cannot_pass_through_is_offered_in_part(tmp_path: Path, kinds: str) -> None:
    """With windows such a part is there if the tiers were given all of them, passing ones too."""
    longest = {"full": 20, "full and a window": 10, "full and a narrow window": 16, "full and two windows": 6}
    with Engine(tmp_path, KINDS[kinds], 20) as engine:
        engine.connector._stores._stores_passing = True
        for prompt in range(NUM):
            engine.serve(prompt)
        assert engine.manager.reset_prefix_cache()
        assert [engine.again(prompt) for prompt in range(NUM)] == [4 * longest[kinds]] * NUM


def waiting(**options: int) -> tuple[Rig, Request]:
    """A request of four blocks whose last two wait for room that the first ones have, which are being written."""
    rig = Rig(host=4)
    if "most_waiting" in options:
        rig.connector._stores._most_waiting = options["most_waiting"]
    rig.end(rig.compute("first", range(5)))
    rig.end(rig.compute("second", range(10, 19)))
    assert rig.connector.stats().waiting_blocks == 2
    return rig, Request("third", list(range(20, 36)), 2)


def test_what_waits_for_room_keeps_its_blocks() -> None:
    rig, third = waiting()
    assert rig.manager.allocate_slots(third, 16) is None  # it needs them; eight blocks
    rig.connector.check()
    rig.handler.end()
    rig.connector.poll()
    assert rig.connector.stats().waiting_blocks == 0
    rig.handler.end()
    assert rig.connector.drain() == []
    assert rig.connector.stats()[5:8] == (6, 0, 0)
    assert rig.manager.usage == 0.0


def test_no_more_is_held_than_the_engine_allows() -> None:
    rig, third = waiting(most_waiting=1)
    assert rig.connector._stores._num_waiting == 1
    rig.connector.check()
    rig, third = waiting(most_waiting=0)
    rig.handler.end()
    assert rig.manager.allocate_slots(third, 12) is None or rig.connector.stats().waiting_blocks
    rig.connector.check()
    with pytest.raises(InvalidArgumentError, match="most_waiting"):
        OffloadingConnector(rig.manager, rig.chain, rig.connector._worker, most_waiting=-1)


def test_nothing_is_held_once_nothing_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores_module, "LONGEST_WAIT", 0.0)
    rig, _ = waiting()
    rig.connector.poll()
    assert rig.connector._stores._num_waiting == 0
    assert rig.connector.stats().waiting_blocks == 2  # as long as the device has them
    rig.connector.check()
    rig.handler.end()
    rig.connector.poll()
    assert rig.connector.stats().waiting_blocks == 0


def test_to_forget_lets_go_of_what_waits() -> None:
    rig, _ = waiting()
    done = rig.connector.reset_prefix_cache()
    assert done.blocks_held == 4  # of the stores under way alone
    rig.connector.check()


@pytest.mark.parametrize("guard", [0.0, 0.5])
def test_guard_and_shares_are_every_tiers(tmp_path: Path, guard: float) -> None:
    manager = KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], FULL)]), max_model_len=100)
    identity = CacheIdentity("tiny", layout="4 tokens", dtype="float32", block_size=4, hash_seed=b"seed")
    connector = OffloadingConnector.build(
        manager,
        [torch.zeros(9, 4, 1)],
        host_blocks=4,
        disk=tmp_path / "blocks",
        disk_blocks=8,
        identity=identity,
        shares={"alice": 1},
        hint_guard=guard,
    )
    for tier, size in zip(connector._chain.tiers, (4, 8), strict=True):
        keys = [bytes([at]) for at in range(size + 1)]
        hints = [BlockHint("alice" if at < size // 4 else "bob", 9 * (at < size // 2), 1e9) for at in range(size)]
        assert tier.prepare_store_hinted(keys[:size], hints) is not None
        tier.complete_store(keys[:size])
        prepared = tier.prepare_store_hinted(keys[size:], [BlockHint("bob")])
        assert prepared is not None
        assert prepared.block_hashes_evicted == [keys[size // 4 if guard else size // 2]]
    connector.close()
