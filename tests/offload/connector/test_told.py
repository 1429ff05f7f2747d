"""Property: routers are told of each tier what the connector offers from it, and what is forgotten is found nowhere.

How: the engine of test_connector.py with a second tier, for every kind of layer and both times of storing, with
transfers that fail; requests with salts, items and adapters; at every step an index of all events is compared with the
tiers, block by block and request by request (EV-6), and with the engine's own lookups (EV-7); now and then a request or
a salt is forgotten (FORGET-1 to -4).
Not covered: the lock-step world of tiers alone (`blockwright_conformance.offload`), stores that engines share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.offload.connector.engine import Engine
from tests.offload.connector.test_connector import KINDS

from blockwright import KVCacheSpec, Request
from blockwright.observe import EventStream, PrefixIndex
from blockwright.offload.hits import GroupBlocks, external_hit, split_key


class Roomy:
    """Tiers that could bring everything in one load, whatever room the host has for it."""

    def __init__(self, tiers: Sequence[Any]) -> None:
        self.tiers = tiers

    def lookup(self, keys: Sequence[bytes]) -> int:
        return next(
            (at for at, key in enumerate(keys) if not any(tier.lookup([key]) for tier in self.tiers)), len(keys)
        )


class Router:
    """An index of all events of an engine, and another one that joins now by a snapshot."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.stream, self.index, self.next = engine, EventStream(), PrefixIndex(), 0
        self.num_hits = 0

    def listen(self) -> None:
        self.stream.record(self.engine.manager.take_events())
        self.stream.record(self.engine.connector.take_events())
        for batch in self.stream.since(self.next):
            self.index.apply(batch.events)
        self.next = self.stream.sequence

    def compare(self, requests: list[Request]) -> None:
        self.listen()
        late = PrefixIndex(self.stream.snapshot().events)
        assert late.known_keys() == self.index.known_keys()
        managers, per_block = self.engine.manager.managers, self.engine.per_block
        for tier in self.engine.chain.tiers:
            medium = tier.backend.medium  # type: ignore[attr-defined]
            offered = {key for key in tier.recency() if tier.lookup([key])}  # type: ignore[attr-defined]
            known = {(key, group) for key, group, where in self.index.known_keys() if where == medium}
            assert known == {split_key(key) for key in offered}
            for request in requests:
                for at, manager in enumerate(managers):
                    blocks = GroupBlocks(manager, at, request, per_block)
                    keys = [blocks.key(index) for index in range(blocks.count(request.num_tokens))]
                    identity = {"cache_salt": request.cache_salt, "lora_name": request.lora_name}
                    found = late.match(request.all_token_ids, group_id=at, medium=medium, **identity)  # type: ignore[arg-type]
                    whole = tier.lookup(keys) * blocks.tokens
                    ends = range(
                        whole, min(whole + blocks.tokens, request.num_tokens + 1), self.engine.unit or blocks.tokens
                    )
                    assert found == max(end for end in ends if end == whole or tier.lookup([blocks.key_to(end)]))
        for request in requests[-1:]:
            self.compare_hit(request, late)

    def compare_hit(self, request: Request, late: PrefixIndex) -> None:
        """Ask for the hit of all groups: of the device, and of all that one load could bring if the host held it."""
        manager, chain, unit = self.engine.manager, self.engine.chain, self.engine.unit
        owner: dict[str, Any] = {"cache_salt": request.cache_salt, "lora_name": request.lora_name}
        asked = Request("asked", list(request.all_token_ids), request.block_size, hasher=request.hasher, **owner)
        _, length = manager.get_computed_blocks(asked)
        loaded, _ = external_hit(Roomy(chain.tiers), manager.managers, asked, length, self.engine.per_block, unit=unit)
        media = ("GPU", *dict.fromkeys(tier.backend.medium for tier in chain.tiers))  # type: ignore[attr-defined]
        for index in (self.index, late):
            found = [index.match(request.all_token_ids, medium=each, leave=1, **owner) for each in ("GPU", media)]
            if not length and found[0]:  # a hit for which the pool has no room
                continue
            if any(each.keeps_all for each in manager.managers):
                assert found == [length, loaded]
            else:  # what was told of without what comes before it cannot be placed
                assert found[0] <= length
                assert found[1] <= loaded
            self.num_hits += loaded > length


def is_found(engine: Engine, request: Request) -> bool:
    """Whether any block of a request's tokens can be found, on the device or in a tier."""
    for at, manager in enumerate(engine.manager.managers):
        blocks = GroupBlocks(manager, at, request, engine.per_block)
        keys = [blocks.key(index) for index in range(blocks.count(request.num_tokens))]
        if any(tier.lookup([key]) for tier in engine.chain.tiers for key in keys):
            return True
    return engine.manager.get_computed_blocks(request)[1] > 0


def forget(engine: Engine, requests: list[Request]) -> None:
    """Forget a request, or all of a salt; nothing of it is found, and what others have is found as before."""
    one, connector = engine.random.choice(requests), engine.connector
    by_salt = one.cache_salt is not None and engine.random.random() < 0.5
    meant = [each for each in requests if each is one or (by_salt and each.cache_salt == one.cache_salt)]
    owned = {each.cache_salt for each in meant}
    others = [each for each in requests if each.cache_salt not in owned]
    before = [engine.manager.get_computed_blocks(each)[1] for each in others]
    connector.forget(cache_salt=one.cache_salt) if by_salt else connector.forget(one)
    assert not any(is_found(engine, each) for each in meant)
    assert [engine.manager.get_computed_blocks(each)[1] for each in others] == before
    connector.check()


@pytest.mark.parametrize("store_on", ["publish", "evict"])
@pytest.mark.parametrize("unit", [None, 1], ids=["whole blocks", "parts"])
@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_the_index_is_what_is_offered(specs: list[KVCacheSpec], unit: int | None, store_on: str) -> None:
    engine = Engine(specs, store_on, host_blocks=14, slow_blocks=30, rate=0.05, told=True, unit=unit)
    router, random = Router(engine), engine.random
    requests: list[Request] = []
    for number in range(60):
        if len(engine.waiting) < 3:
            stem = [random.randrange(3)] * 8
            tokens = (stem + [random.randrange(2) for _ in range(4)] + [7] * 12)[: random.choice([5, 9, 12, 17, 20])]
            owner = random.choice([{}, {}, {"cache_salt": "one"}, {"cache_salt": "two", "lora_name": "adapter"}])
            requests.append(engine.send(f"r{number}", tokens, **owner))
        engine.step()
        engine.connector.check()
        engine.manager.check()
        router.compare(requests[-6:])
        for request in [*engine.waiting, *engine.loading.values(), *engine.running]:
            if request.num_output_tokens > 6 or random.random() < 0.05:
                engine.end(request)
        if random.random() < 0.1 and unit is None:  # else all is forgotten, or nothing
            forget(engine, requests[-8:])
            router.compare(requests[-6:])
        if number in (25, 45):
            engine.connector.forget()
            assert not any(is_found(engine, each) for each in requests[-12:])
            engine.connector.check()
            router.compare(requests[-6:])
    engine.stop()
    router.compare(requests)
    assert engine.num_loaded > 0
    assert router.num_hits > 0
    assert engine.connector.reset_prefix_cache().blocks_held == 0
    router.listen()
    assert len(router.index) == 0
