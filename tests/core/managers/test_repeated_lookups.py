"""Property: a lookup that is repeated finds what a request with the same tokens that was never looked up finds.

How: random histories of admission, growth, release, preemption, eviction, forgetting and reset, in which requests that
wait are looked up after every call beside a new one; copies of the manager and the request go on apart. Each rule that
a repeated answer could break has a history of its own.
Not covered: the hit itself (the gates compare it with the specification); how fast it is (the benchmarks).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.core.support import chunked, full, mamba, sliding

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, KVCacheSpec, Request

MANAGERS: dict[str, tuple[tuple[KVCacheSpec, ...], dict[str, Any]]] = {
    "full": ((full(2),), {}),
    "pages of one": ((full(1),), {}),
    "two kinds": ((full(2), sliding(2, 4)), {}),
    "chunks": ((chunked(2, 4),), {}),
    "states alone": ((mamba(2),), {}),
    "a draft head": ((full(2),), {"use_eagle": True}),
    "parts of blocks": ((full(4),), {"prefix_match_unit": 2}),
    "parts of states": ((full(4), mamba(4)), {"prefix_match_unit": 2}),
    "tokens verified": ((full(2),), {"verify_tokens": True}),
    "candidates by hints": ((full(2),), {}),
}


def manager_of(name: str, num_blocks: int = 14) -> KVCacheManager:
    specs, options = MANAGERS[name]
    groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]
    manager = KVCacheManager(KVCacheConfig(num_blocks, groups), 64, raise_never_fits=False, **options)
    if name == "candidates by hints":
        manager.advance_time(0)
    return manager


CALLS = ("come", "come", "admit", "admit", "grow", "grow", "end", "preempt", "new", "forget", "copy")
Found = tuple[int, tuple[list[int], ...] | None, int]


def found(manager: KVCacheManager, request: Request, most: int | None = None) -> Found:
    hit, length = manager.get_computed_blocks(request, most)
    return length, hit.get_block_ids(allow_none=True), request.junction


def anew(request: Request) -> Request:
    """Return a request with the same tokens and salt that was never looked up."""
    return Request("anew", request.all_token_ids, cache_salt=request.cache_salt)


def alike(manager: KVCacheManager, request: Request, most: int | None = None) -> Found:
    """Look a request up twice, and return what was found, which a new one finds as well."""
    wanted = found(manager, anew(request), most)
    assert found(manager, request, most) == wanted
    assert found(manager, request, most) == wanted
    return wanted


@pytest.mark.parametrize("name", MANAGERS)
@pytest.mark.parametrize("seed", range(6))
def test_in_random_histories(name: str, seed: int) -> None:
    chosen = random.Random(f"{name} {seed}")
    manager, hits, repeated = manager_of(name), 0, 0
    waiting: list[Request] = []
    running: list[Request] = []
    for number in range(120):
        match chosen.choice(CALLS):
            case "come" if len(waiting) < 4:
                tokens = [chosen.choice((0, 0, 0, 1)) for _ in range(chosen.randint(1, 13))]
                waiting.append(Request(f"r{number}", tokens, cache_salt=chosen.choice((None, None, "salt"))))
            case "admit" if waiting:
                request = waiting.pop(chosen.randrange(len(waiting)))
                hit, length = chosen.choice((manager.get_computed_blocks, manager.touch))(request)
                if manager.allocate_slots(request, request.num_tokens - length, length, hit) is None:
                    waiting.append(request)
                else:
                    request.num_computed_tokens = request.num_tokens
                    running.append(request)
            case "grow" if running:
                request = chosen.choice(running)
                if request.num_computed_tokens == request.num_tokens < 60:
                    request.append_output_token_ids(chosen.choice((0, 1)))
                if manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is not None:
                    request.num_computed_tokens = request.num_tokens
            case "end" | "preempt" as how if running:
                request = running.pop(chosen.randrange(len(running)))
                manager.free(request, preempted=how == "preempt")
                request.num_computed_tokens = 0
                waiting += [request] if how == "preempt" else []
            case "new" if waiting and (request := chosen.choice(waiting)).num_tokens < 60:
                request.append_output_token_ids(chosen.choice((0, 1)))
            case "forget":
                match chosen.randrange(12):
                    case 0:
                        manager.reset_prefix_cache()
                    case 1:
                        manager.forget()
                    case 2 if manager.prefix_match_unit is None:
                        manager.forget(cache_salt="salt")
            case "copy" if not running and chosen.randrange(3) == 0:
                manager, waiting = manager.copy(), [request.copy() for request in waiting]
        for request in waiting:
            hits += alike(manager, request)[0] > 0
            alike(manager, request, chosen.randint(0, request.num_tokens))
            repeated += 1
    assert repeated > 60
    assert hits > 5, "histories without hits show nothing"


def test_a_copy_goes_on_apart() -> None:
    manager, waits = manager_of("full"), Request("waits", [0] * 6)
    assert alike(manager, waits)[0] == 0
    twin, twin_waits = manager.copy(), waits.copy()
    running = Request("runs", [0] * 6)
    twin.allocate_slots(running, 6)
    assert alike(twin, twin_waits)[0] == 4
    assert alike(manager, waits)[0] == 0
    assert found(manager, twin_waits)[0] == 0
    other = Request("other", [1] * 6)
    manager.allocate_slots(other, 6)
    assert alike(manager, waits)[0] == 0
    assert found(twin, waits)[0] == 4


def test_what_was_handed_out_is_as_it_was() -> None:
    manager, waits = manager_of("full"), Request("waits", [0] * 9)
    running = Request("runs", [0] * 9)
    manager.allocate_slots(running, 9)
    hit, length = manager.get_computed_blocks(waits)
    again, _ = manager.get_computed_blocks(waits)
    again.ids.clear()
    assert manager.get_computed_blocks(waits) == (hit, length)
    assert hit.get_block_ids() == ([1, 2, 3, 4],)
    assert manager.allocate_slots(waits, 1, length, hit) is not None
    for request in (running, waits):
        request.num_computed_tokens = 9
        manager.free(request)
    assert alike(manager, Request("later", [0] * 9))[0] == 8


def test_every_lookup_counts_as_a_use() -> None:
    manager = manager_of("full", num_blocks=5)
    for token in (0, 1):
        request = Request(f"r{token}", [token] * 4)
        manager.allocate_slots(request, 4)
        request.num_computed_tokens = 4
        manager.free(request)
    waits = Request("waits", [0] * 5)
    assert manager.block_pool.free_block_ids() == [2, 1, 4, 3]
    manager.touch(waits)
    assert manager.block_pool.free_block_ids() == [4, 3, 2, 1]
    manager.touch(Request("other", [1] * 5))
    manager.touch(waits)
    assert manager.block_pool.free_block_ids() == [4, 3, 2, 1]
