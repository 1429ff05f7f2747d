"""Recurrent layers beside full attention, in each way that vLLM schedules them: every step reads the right states.

How: vLLM's real schedulers over random arrivals, aborts, preemptions and resets, with a worker that knows what every
slot of keys and values and every state holds (`stub`). After each step the manager's state is checked, and every key of
the pool must name a block that holds exactly the prefix of that key. The tokens must be those of the model. Faults put
into the adapter, one at a time, must be noticed.

Short by default. `BLOCKWRIGHT_HYBRID_STEPS=4000 BLOCKWRIGHT_HYBRID_SEEDS=1,2,3,4` is the long run.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

STEPS = int(os.environ.get("BLOCKWRIGHT_HYBRID_STEPS", "150"))
SEEDS = [int(seed) for seed in os.environ.get("BLOCKWRIGHT_HYBRID_SEEDS", "1").split(",")]

UNIT = {"unit": 4}
EAGLE = {"drafts": 3, "eagle": True}
Fault = Callable[[dict[str, Any]], dict[str, Any]]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tight": {"blocks": 36},
    "blocks of 4": {"state": 4, "full": 4, "blocks": 200},
    "attention in smaller blocks": {"state": 32, "states": 2},
    "attention in smaller blocks, eagle": {**EAGLE, "state": 32},
    "drafts": {"drafts": 3},
    "drafts, tight": {"drafts": 3, "blocks": 40},
    "eagle": EAGLE,
    "eagle, no group flagged": {**EAGLE, "flagged": False},
    "blocks of 4, drafts": {"state": 4, "full": 4, "drafts": 2, "blocks": 200},
    "blocks of 4, 3 drafts": {"state": 4, "full": 4, "drafts": 3, "blocks": 240},
    "blocks of 4, 6 drafts": {"state": 4, "full": 4, "drafts": 6, "blocks": 300},
    "fine hashes": UNIT,
    "fine hashes, tight": {**UNIT, "blocks": 36},
    "fine hashes, metrics": {**UNIT, "blocks": 36, "kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0},
    "fine hashes, drafts": {**UNIT, "drafts": 3},
    "fine hashes, eagle": {**UNIT, **EAGLE},
    "fine hashes, eagle, tight": {**UNIT, **EAGLE, "blocks": 44},
    "fine hashes, eagle, shared prefixes": {**UNIT, **EAGLE, "shared_prefix": True},
    "checkpoints": {"checkpoint": 1},
    "checkpoints, eagle": {**EAGLE, "checkpoint": 1},
    "checkpoints, drafts, tight": {"drafts": 3, "checkpoint": 1, "blocks": 44},
    "checkpoints, fine hashes": {**UNIT, "checkpoint": 1},
    "checkpoints, fine hashes, eagle": {**UNIT, **EAGLE, "checkpoint": 1},
    "checkpoints, fine hashes, eagle, tight": {**UNIT, **EAGLE, "checkpoint": 1, "blocks": 44},
    "interval 0": {"drafts": 3, "interval": 0},
    "interval 0, checkpoints, fine hashes, eagle": {**UNIT, **EAGLE, "checkpoint": 1, "interval": 0},
    "three states": {"states": 3, "drafts": 3},
    "large states": {"state": 32, "drafts": 3, "unit": 16},
    "chunks below a block": {"state": 32, "full": 32, "drafts": 3, "unit": 8, "max_num_batched_tokens": 24},
}
"""What differs from one recurrent and one full layer with blocks of 16 tokens in a pool of 120, without drafts."""


def served(folder: Path, case: dict[str, Any], depth: int, *, steps: int, seed: int) -> Any:
    """Run a case with so many steps in flight over Blockwright's manager; return the side of the scheduler."""
    from tests.engines import stub

    options = dict(case)
    layer = stub.state(options.pop("state", 16), options.pop("checkpoint", None))
    drafts = options.get("drafts", 0)
    kinds = stub.drafting([*[layer] * options.pop("states", 1), stub.full(options.pop("full", 16))], drafts)
    made = stub.scheduler(folder, True, kinds, options.pop("blocks", 120), is_async=depth > 0, **options)
    side = stub.Side(made, kinds, depth=depth, drafts=drafts)
    stub.walk([side], seed, steps, made.hash_block_size, longest=110, exact=True)
    return side


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("depth", [0, 1], ids=["sync", "in flight"])
@pytest.mark.parametrize("name", CASES)
def test_every_step_reads_the_right_states(name: str, depth: int, seed: int, models_folder: Path) -> None:
    side = served(models_folder, CASES[name], depth, steps=STEPS, seed=seed)
    print(f"{name}, {depth} in flight, seed {seed}: hits {side.hits} of {side.queries}, {side.preemptions} preemptions")
    assert side.hits
    assert side.audited


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_running_step_serves_hits_at_once(drafts: int, models_folder: Path) -> None:
    """Under EAGLE a hit at a state also needs attention's next block: the step that is being scheduled fills it."""
    from tests.engines import served as engine
    from tests.engines import stub

    kinds = stub.drafting([stub.state(64), stub.full(64)], drafts)
    hits = []
    for ours in (False, True):
        options: dict[str, Any] = {
            "interval": 0,
            "max_num_batched_tokens": 300 if drafts else 1200,
            "max_num_seqs": 4,
            "drafts": drafts,
        }
        made = stub.scheduler(models_folder, ours, kinds, 200, is_async=True, eagle=drafts > 0, **options)
        side = stub.Side(made, kinds, depth=1, drafts=drafts)
        for number, prompt in enumerate(engine.prompts(3, 5, 500)):
            made.add_request(stub.request(f"r{number}", prompt["prompt_token_ids"], made.hash_block_size, 2))
        while made.requests:
            side.step()
            side.check()
        hits.append(side.hits)
    assert hits[1] >= hits[0] > 0


@pytest.mark.parametrize("depth", [0, 1], ids=["sync", "in flight"])
@pytest.mark.parametrize("name", ["drafts, tight", "fine hashes, eagle, tight"])
def test_drafts_in_a_tight_pool_preempt_no_more_than_vllm(name: str, depth: int, models_folder: Path) -> None:
    """Admission counts the states of drafts that neighbours take as they begin to decode."""
    from tests.engines import stub

    preemptions = []
    for ours in (False, True):
        options = dict(CASES[name])
        kinds = stub.drafting([stub.state(16), stub.full(16)], options["drafts"])
        made = stub.scheduler(models_folder, ours, kinds, options.pop("blocks"), is_async=depth > 0, **options)
        side = stub.Side(made, kinds, depth=depth, drafts=options["drafts"])
        stub.walk([side], 811, 2 * STEPS, made.hash_block_size, longest=110, exact=True)
        preemptions.append(side.preemptions)
    assert 0 < preemptions[1] <= preemptions[0]


def samples_that_branch(made: Any, random: Random) -> Iterator[Any]:
    """Serve eight samples of each of six prompts, and of every fourth answer, twice over, four that go on from it."""
    from tests.engines import stub

    waiting = [(prompt, 0) for _ in range(6) for prompt in 8 * [[random.randrange(3, 90) for _ in range(400)]]]
    running: dict[str, tuple[Any, int]] = {}
    names = map("r{}".format, count())
    while waiting or running:
        for prompt, depth in waiting:
            request = stub.request(next(names), prompt, 16, random.randrange(20, 90))
            running[request.request_id] = request, depth
            made.add_request(request)
        yield
        waiting = []
        for name in [name for name, (request, _) in running.items() if request.is_finished()]:
            request, depth = running.pop(name)
            if depth < 2 and int(name[1:]) % 4 == 0:
                waiting += 4 * [([*request.all_token_ids, *[random.randrange(3, 90) for _ in range(6)]], depth + 1)]


def test_samples_that_branch_are_hit_no_less_than_under_vllm(models_folder: Path) -> None:
    """Samples that begin together take blocks together; and while they wait, the states of their prompt stay."""
    from tests.engines import stub

    of_side = []
    for ours in (False, True):
        preemptions, computed, hits = 0, 0, 0
        for seed in (3, 4):
            kinds: list[Any] = [stub.full(16), *[stub.state(16)] * 3]
            options: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 8, "max_model_len": 4096}
            side = stub.Side(stub.scheduler(models_folder, ours, kinds, 90, interval=0, **options), kinds)
            for _ in samples_that_branch(side.scheduler, Random(seed)):
                step = side.step()
                side.check()
                hits += sum(new.num_computed_tokens for new in step.scheduled_new_reqs)
                computed += step.total_num_scheduled_tokens
            preemptions += side.preemptions
        of_side.append((preemptions, computed, hits))
    theirs, own = of_side
    assert own[0] <= 0.6 * theirs[0]
    assert own[1] <= 0.8 * theirs[1]
    assert own[2] >= theirs[2]


@pytest.mark.parametrize("depth", [0, 1], ids=["sync", "in flight"])
def test_a_state_inside_a_step_is_kept(depth: int, models_folder: Path) -> None:
    """A prompt is computed in one step, as with vLLM's manager, and found up to its last whole block."""
    from tests.engines import stub

    found = []
    for ours in (False, True):
        kinds = [stub.state(16, 1), stub.full()]
        made = stub.scheduler(models_folder, ours, kinds, 40, is_async=depth > 0, interval=0)
        side, sizes = stub.Side(made, kinds, depth=depth), []
        for name in ("first", "second"):
            made.add_request(stub.request(name, list(range(3, 60)), 16, 2))
            while made.requests:
                sizes.append(side.step().total_num_scheduled_tokens)
                side.check()
        found.append((sizes[0], side.hits))
    assert found == [(57, 48), (57, 48)]


def test_a_state_that_is_to_be_copied_is_hit_a_step_later(models_folder: Path) -> None:
    """A copy of it to the newcomer would be made together with the copy that it needs."""
    from tests.engines import stub

    kinds: list[Any] = [stub.state(16), stub.full(16)]
    side = stub.Side(stub.scheduler(models_folder, True, kinds, 30, unit=4), kinds)
    for name, tokens in (("first", [*range(3, 14)]), ("second", [*range(3, 20)])):
        side.scheduler.add_request(stub.request(name, tokens, 4, 3))
        side.step()  # the first ends a step after 8 tokens; its next one writes over that state
    while side.scheduler.requests:
        side.step()
        side.check()
    assert side.hits == 8


@pytest.mark.parametrize("depth", [0, 1], ids=["sync", "in flight"])
@pytest.mark.parametrize("drafts", [{}, {"drafts": 3}, EAGLE], ids=["plain", "drafts", "eagle"])
def test_who_follows_events_knows_every_part(drafts: dict[str, Any], depth: int, models_folder: Path) -> None:
    """At each step the events name what the pool has keys of, and in the end a router finds all that a prompt hits."""
    from tests.engines import stub
    from vllm.distributed.kv_events import KVEventBatch

    from blockwright.observe import PrefixIndex
    from blockwright.observe.wire import decode, hash_of

    count = drafts.get("drafts", 0)
    kinds = stub.drafting([stub.state(16), stub.full(16)], count)
    made = stub.scheduler(models_folder, True, kinds, 120, is_async=depth > 0, unit=4, events=True, **drafts)
    manager, heard, seen, names = made.kv_cache_manager, PrefixIndex(), dict[str, Any](), dict[bytes, int]()
    ahead = getattr(made, "num_hash_lookahead_tokens", 0)

    def publish(batch: KVEventBatch) -> None:
        heard.apply(decode(msgspec.msgpack.encode(batch)))

    class Follower(stub.Side):
        def check(self) -> None:
            super().check()
            last = [seen[name] for name in list(seen)[-40:]]  # one that has just ended has learned its last tokens
            seen.update(made.requests)
            names.update(
                {key[:16]: hash_of(key) for each in (*last, *made.requests.values()) for key in each.block_hashes}
            )
            publish(KVEventBatch(ts=0.0, events=manager.take_events()))
            pool = manager.core.block_pool
            keyed = zip(pool.block_groups(), pool.block_keys(), pool.tail_keys(), strict=True)
            found = {(names[key], at) for at, key, more in keyed if key is not None for key in {key, *more}}
            assert {key[:2] for key in heard.known_keys()} == found

    made.kv_event_publisher.publish = publish
    side = Follower(made, kinds, depth=depth, drafts=count)
    stub.walk([side], 1, STEPS, made.hash_block_size, longest=110, exact=True)
    inside = 0
    for name, request in seen.items():
        tokens, salt = request.all_token_ids[:], request.cache_salt
        again = stub.request(f"again {name}", list(tokens), 4, 1, ahead, cache_salt=salt)
        hit = manager.get_computed_blocks(again)[1]
        inside += hit % 16 > 0
        assert heard.match(tokens[: hit + ahead], group_id=1, cache_salt=salt) == hit
    assert inside


def _trims_ahead(own: dict[str, Any]) -> dict[str, Any]:
    """Let entries die by counts that drafts may take back."""
    settle = own["settle"]
    return {"settle": lambda self, request, twin: settle(self, request, twin) and request.num_computed_tokens}


def _finds_at_once(own: dict[str, Any]) -> dict[str, Any]:
    """Let a request find the state that another leaves in the same step."""
    early = own["publish_for_readers"]

    def publish(self: Any) -> None:
        early(self)
        for request in self._due.values():
            self._core.cache_blocks(request._blockwright.request, request._blockwright.written)

    return {"_is_left_this_step": lambda self, request, length: False, "publish_for_readers": publish}


def _publishes_drafts(own: dict[str, Any]) -> dict[str, Any]:
    """Publish states before it is known which drafts hold."""
    return {"_num_left": lambda self, request, twin: min(twin.written, request.num_tokens)}


def _forgets_the_entries_of_drafts(own: dict[str, Any]) -> dict[str, Any]:
    """Let a running request have no new entries, as if a step with drafts needed none."""
    real = own["_continue"]
    return {"_continue": lambda self, *step: self.empty_kv_cache_blocks if real(self, *step) is not None else None}


def _keeps_what_is_not_left(own: dict[str, Any]) -> dict[str, Any]:
    """Keep a state at the last block end of a step, where the worker leaves one elsewhere."""

    def inside(self: Any, request: Any, start: int, stop: int) -> int:
        place = (stop - 1) // 16 * 16
        return place if start + 16 <= place and stop <= request.num_tokens else 0

    return {"inside": inside}


FAULTS: list[tuple[str, int, Fault]] = [
    ("blocks of 4, drafts", 1, _trims_ahead),
    ("plain", 0, _finds_at_once),
    ("blocks of 4, 6 drafts", 0, _publishes_drafts),
    ("drafts", 1, _forgets_the_entries_of_drafts),
    ("checkpoints, fine hashes", 0, _keeps_what_is_not_left),
]
"""A case in which a fault must be noticed, with steps in flight, and the methods of the adapter that it bends."""


@pytest.mark.parametrize(("name", "depth", "fault"), FAULTS)
def test_a_fault_is_noticed(
    name: str,
    depth: int,
    fault: Callable[[dict[str, Any]], dict[str, Any]],
    models_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.engines import stub

    from blockwright.engines.vllm.admission import Admission
    from blockwright.engines.vllm.manager import KVCacheManager
    from blockwright.engines.vllm.progress import Progress
    from blockwright.errors import BlockwrightError

    homes = {name: home for home in (KVCacheManager, Progress, Admission) for name in vars(home)}
    for method, bent in fault({name: getattr(home, name) for name, home in homes.items()}).items():
        monkeypatch.setattr(homes[method], method, bent)
    with pytest.raises((stub.WrongContentError, BlockwrightError)) as noticed:
        served(models_folder, CASES[name], depth, steps=600, seed=1)
    print(f"{fault.__name__}: {noticed.value}")
