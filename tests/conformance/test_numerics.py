"""Property: whatever the manager does, a small engine computes what a dense recomputation of each request says.

How: one schedule for each feature must use it and agree with the recomputation; some drawn schedules of every world;
wrong managers (known bugs that corrupt data) and wrong bytes must be caught, under a law of the numerics.
Not covered: lower precisions and the operators alone (`test_engine_model.py`, tests/device), block tables against the
specification (the gate `worker`), other schedules than these (the gate `numerics`).
"""

from types import ModuleType

import pytest

pytest.importorskip("torch")

import torch

import blockwright
from blockwright_conformance.gates import Profile, gates
from blockwright_lab.known_bugs.bugs import BY_ID
from blockwright_lab.known_bugs.variants import variant
from blockwright_lab.numerics import gate as numerics_gate
from blockwright_lab.numerics.engine.engine import Engine, run
from blockwright_lab.numerics.engine.errors import NUMERICS_LAWS, NumericsError, listed
from blockwright_lab.numerics.engine.examples import Examples, shrunk
from blockwright_lab.numerics.engine.schedule import EngineConfig, Job, Schedule, script, shown
from blockwright_lab.numerics.engine.worlds import WORLDS, random_schedule
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sinks, Sliding

FOUR = (Group(Full(), 4), Group(Sliding(6), 4), Group(Chunked(8), 4), Group(Mamba(2), 4))
THREE = FOUR[:3]
HEAD = Group(Full(), 4)

JOBS = tuple(
    Job(shared=8 * (at % 3), own=3 + at, output=5 + at % 3, arrival=at, family=at % 2, variation=at % 4)
    for at in range(6)
)
FORKS = tuple(
    Job(shared=8 * (at % 3), own=3 + at, output=5, arrival=at, family=at % 2, forks=(1, 3) if at % 2 else ())
    for at in range(5)
)
AGAIN = tuple(Job(shared=16, own=3, output=3, arrival=6 * at, family=at % 3) for at in range(6))
ADAPTERS = tuple(Job(shared=12, own=3, output=4, arrival=2 * at, adapter=at % 3, seed=at) for at in range(6))
ENCODERS = tuple(Job(own=5 + at, output=7, encoder=3 + at % 4) for at in range(5))


def config(**features: object) -> EngineConfig:
    return EngineConfig(**({"spare_blocks": 0} | features))  # type: ignore[arg-type]


CASES: dict[str, tuple[Schedule, tuple[str, ...]]] = {
    "chunked prefill": (Schedule(FOUR, config=config(max_num_batched_tokens=7), jobs=JOBS), ("chunked prompts",)),
    "hits": (
        Schedule(FOUR, config=config(spare_blocks=60, align_chunks=True), jobs=AGAIN),
        ("hit, full", "hit, sliding", "hit, chunked", "hit, recurrent"),
    ),
    "windows": (Schedule(FOUR, config=config(), jobs=JOBS), ("nulled, sliding", "nulled, chunked")),
    "recompute": (Schedule(FOUR, config=config(), jobs=JOBS), ("preempted", "evictions")),
    "swap": (Schedule(FOUR, config=config(preemption="swap"), jobs=JOBS), ("swapped out", "swapped in")),
    "lost swap": (Schedule(FOUR, config=config(preemption="swap", lose_load_every=1), jobs=JOBS), ("load lost",)),
    "no caching": (Schedule(FOUR, config=config(enable_caching=False, preemption="swap"), jobs=JOBS), ("swapped in",)),
    "guesses": (
        Schedule(FOUR, config=config(drafts=2), jobs=JOBS),
        ("accepted, guesser", "rejected, guesser", "accepted, recurrent"),
    ),
    "undeclared guesses": (
        Schedule(THREE, config=config(drafts=2, declare_drafts=False), jobs=JOBS),
        ("accepted, guesser", "rejected, guesser"),
    ),
    "draft head": (
        Schedule(FOUR[:2], HEAD, config(drafts=2, guesser="eagle", spare_blocks=9), JOBS + AGAIN),
        ("accepted, draft head", "rejected, draft head", "hit, full"),
    ),
    "forks": (
        Schedule(FOUR, config=config(max_num_seqs=6, spare_blocks=12), jobs=FORKS),
        ("forks", "copied, full", "copied, sliding", "copied, chunked", "copied, recurrent"),
    ),
    "stored when published": (
        Schedule(THREE, config=config(offload="publish", offload_blocks=200), jobs=AGAIN),
        ("offload stores", "offload loads"),
    ),
    "stored when evicted": (
        Schedule(FOUR, config=config(offload="evict", align_chunks=True), jobs=AGAIN),
        ("offload stores", "offload loads"),
    ),
    "lost loads": (
        Schedule(THREE, config=config(offload="publish", offload_blocks=200, lose_load_every=1), jobs=AGAIN),
        ("offload load lost",),
    ),
    "steps in flight": (
        Schedule(FOUR, config=config(overlap_steps=True), jobs=FORKS),
        ("computed in vain", "preempted in flight", "forks"),
    ),
    "steps in flight with guesses": (
        Schedule(THREE, config=config(overlap_steps=True, drafts=2, publish_on_settlement=True), jobs=JOBS),
        ("accepted, guesser", "rejected, guesser"),
    ),
    "steps in flight with a draft head": (
        Schedule(FOUR[:2], HEAD, config(overlap_steps=True, drafts=2, guesser="eagle"), JOBS),
        ("rejected, draft head",),
    ),
    "steps in flight with offload": (
        Schedule(THREE, config=config(overlap_steps=True, offload="evict"), jobs=AGAIN),
        ("offload loads",),
    ),
    "encoder": (
        Schedule(
            (Group(Full(), 4), Group(Cross(), 4), Group(Mamba(), 4)),
            config=config(enable_caching=False, preemption="swap"),
            jobs=ENCODERS,
        ),
        ("swapped in",),
    ),
    "other ways of asking": (
        Schedule(
            FOUR,
            config=config(
                delay_publication=True,
                trim_early=True,
                plan_first=True,
                full_sequence_must_fit=True,
                watermark=0.1,
                reserved_blocks=1,
            ),
            jobs=FORKS,
        ),
        ("forks",),
    ),
    "adapters, salts, samples": (
        Schedule(FOUR, config=config(spare_blocks=60, align_chunks=True), jobs=(*ADAPTERS, Job(shared=12, salt="s"))),
        ("hit, full",),
    ),
    "other block sizes": (
        Schedule(
            (Group(Full(), 4), Group(Sliding(6), 2), Group(Chunked(8), 8), Group(Mamba(2), 4)),
            config=config(drafts=2, align_chunks=True, spare_blocks=60),
            jobs=AGAIN,
        ),
        ("hit, sliding", "hit, recurrent"),
    ),
    "grown blocks": (
        Schedule((Group(Full(), 4), Group(Full(), 2)), config=config(), jobs=JOBS, grow_blocks=True),
        ("preempted",),
    ),
    "reset": (
        Schedule(FOUR[:1], config=config(spare_blocks=30), jobs=(Job(own=9), Job(own=9, arrival=12)), resets=(10,)),
        ("resets",),
    ),
    "inputs of a GPU": (
        Schedule(FOUR, config=config(staged=True, padded=True, drafts=2, preemption="swap"), jobs=FORKS),
        ("with staged", "with padded", "copied, full"),
    ),
    "lower precision": (
        Schedule(FOUR, config=config(), jobs=JOBS, dtype="float32", cache_dtype="float8_e4m3fn"),
        ("preempted",),
    ),
    "a load of more blocks than the pool has, of which a window reads few": (
        Schedule(
            (Group(Sliding(3), 4),),
            config=config(preemption="swap", max_num_batched_tokens=7, enable_caching=False, spare_blocks=1),
            jobs=tuple(Job(own=24, output=6, variation=at) for at in range(3)),
        ),
        ("swapped in",),
    ),
    "aborts": (
        Schedule(
            FOUR, config=config(preemption="swap"), jobs=tuple(Job(own=16, output=8, abort=at) for at in range(9))
        ),
        ("aborted while running", "aborted while waiting"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_feature_is_used_and_changes_nothing(name: str) -> None:
    schedule, features = CASES[name]
    fired = run(schedule)
    assert [feature for feature in features if not fired[feature]] == []
    assert fired["logits compared"] > 0


@pytest.mark.parametrize("name", WORLDS)
def test_drawn_schedules(name: str) -> None:
    for seed in range(4):
        run(random_schedule(WORLDS[name], f"test {seed}"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    """Not run in CI."""
    run(CASES[name][0], device="cuda")


def test_a_hit_costs_no_computation() -> None:
    """Otherwise agreement would say little."""
    alone = run(Schedule(FOUR[:1], config=config(spare_blocks=20), jobs=AGAIN[:1]))["logits compared"]
    twice = (AGAIN[0], AGAIN[3])
    assert run(Schedule(FOUR[:1], config=config(spare_blocks=20), jobs=twice))["logits compared"] == 2 * alone - 16


# ------------------------------------------------------------------ what must be caught

CORRUPTING = {
    "B04a": "a touched block stays in the free queue",
    "B14": "a block taken from the queue keeps its identity",
}


def faulty(number: str) -> ModuleType:
    return variant(*BY_ID[number].changes)


@pytest.mark.slow
@pytest.mark.parametrize("number", CORRUPTING)
def test_a_manager_that_corrupts_data_is_caught(number: str) -> None:
    package = faulty(number)
    runs = Examples(package)
    for name in ("full attention", "offload"):
        if any(runs.fails(random_schedule(WORLDS[name], f"0 {seed}")) for seed in range(30)):
            break
    assert runs.failed[-1][1].law in NUMERICS_LAWS


def test_an_unchanged_copy_is_not_caught() -> None:
    assert run(CASES["forks"][0], variant()) == run(CASES["forks"][0])


def test_poison_is_caught() -> None:
    engine = Engine(Schedule(FOUR, jobs=(Job(own=9, output=3),)))
    engine.step()
    block = engine.manager.get_block_ids("r0")[0][1]
    engine.worker.storage.fill([block], float("nan"))
    with pytest.raises(NumericsError) as caught:
        engine.step()
    assert caught.value.law == "NUMERICS-2"
    assert "not finite" in caught.value.detail


def test_wrong_contents_are_caught() -> None:
    engine = Engine(Schedule(FOUR[:1], jobs=(Job(own=9, output=3),)))
    engine.step()
    cache = engine.worker.storage.kv("layers.0")
    assert isinstance(cache, torch.Tensor)
    cache[engine.manager.get_block_ids("r0")[0][1]] *= 1.001
    with pytest.raises(NumericsError) as caught:
        engine.run()
    assert (caught.value.law, caught.value.step) == ("NUMERICS-1", 1)


def test_a_leak_is_caught() -> None:
    engine = Engine(Schedule(FOUR[:1]))
    engine.manager.block_pool.get_new_blocks(1)
    with pytest.raises((NumericsError, blockwright.errors.InvariantError)):
        engine.run()


def test_an_engine_that_gets_nowhere_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwright.KVCacheManager, "plan", lambda *_, **__: None, raising=False)
    with pytest.raises(NumericsError, match="has not come to its end"):
        run(Schedule(FOUR[:1], config=config(plan_first=True)))


# ------------------------------------------------------------------ schedules


@pytest.mark.parametrize("name", WORLDS)
def test_a_schedule_is_printed_as_python(name: str) -> None:
    for seed in range(20):
        schedule = random_schedule(WORLDS[name], seed)
        assert eval(shown(schedule), globals() | {"Sinks": Sinks}) == schedule
        compile(script(schedule), "script", "exec")


def test_a_failing_schedule_is_shrunk() -> None:
    big = random_schedule(WORLDS["all kinds"], "big")
    jobs = (*big.jobs, Job(shared=16, own=5, salt="salt", forks=(0,)))

    def fails(schedule: Schedule) -> bool:
        return any(job.salt for job in schedule.jobs) and any(group.kind == Full() for group in schedule.layers)

    small = shrunk(Schedule(big.layers, config=big.config, jobs=jobs), fails, seconds=60.0)
    assert small.layers == (Group(Full(), small.layers[0].block_size),)
    assert small.jobs == (Job(salt="salt", output=1),)


def test_numbers_are_listed_as_ranges() -> None:
    assert listed([0, 1, 2, 5, 7, 8]) == "0..2, 5, 7..8"


# ------------------------------------------------------------------ the gate


def test_the_gate_is_one_of_the_kit() -> None:
    assert gates()["numerics"].module == "blockwright_lab.numerics.gate"


def test_the_gate_runs_and_says_what_fired() -> None:
    torch.set_num_threads(1)
    done: list[int] = []

    def progress(count: int = 1, note: str = "") -> None:
        done.append(count)

    rows = numerics_gate.run(Profile("quick", jobs=1, scope="windows"), progress)
    assert [(row.kind, row.scope, row.violations) for row in rows] == [("numerics", "windows", 0)]
    assert rows[0].states >= 2
    assert rows[0].fired["logits compared"] > 0
    assert sum(done) == numerics_gate.size(Profile("quick", jobs=1, scope="windows"))


def test_other_managers_have_no_engine() -> None:
    profile = Profile("quick", implementation="other:Manager")
    assert (numerics_gate.run(profile, lambda count=1, note="": None), numerics_gate.size(profile)) == ([], 0)
