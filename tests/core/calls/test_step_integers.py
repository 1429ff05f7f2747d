"""Property: no number, however odd, given to a plan, a step in flight or a load crashes or corrupts: it is served, or
refused by a typed error that names it.

How: as in test_integers.py, for the integer parameters of `plan`, `start_step`, `settle_step`, `finish_load`, of
drafts, loads, encoders and reserves, and for what a model declares of drafts.

Not covered: integers of other calls (test_integers.py), errors of the calls themselves (test_time.py, test_loads.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.calls.test_integers import INSIDE, NOT_INTEGERS, OUTSIDE
from tests.core.support import cross, full, mamba, manager_dump, manager_of, manager_over, request_dump

from blockwright import KVCacheManager, MambaSpec, Request
from blockwright.errors import BlockwrightError, NeverFitsError


class World:
    """Managers with a step in flight, with a load, and with an encoder, each in the middle of its life."""

    def __init__(self) -> None:
        self.steps = manager_over([full(), mamba(4, 2)], 40, 60, overlap_steps=True)
        self.steps.start_step()
        self.steps.settle_step(1)
        self.steps.start_step()
        self.flying = Request("flying", list(range(5)), 4)
        assert self.steps.allocate_slots(self.flying, 7, num_draft_tokens=2) is not None
        self.plain = manager_of(full(), 17, 60)
        self.running, self.new = Request("running", list(range(9)), 4), Request("new", list(range(20, 30)), 4)
        assert self.plain.allocate_slots(self.running, 9) is not None
        self.running.num_computed_tokens = 9
        self.running.append_output_token_ids([1])
        self.loading = Request("loading", list(range(50, 60)), 4)
        assert self.plain.allocate_slots(self.loading, 0, num_external_computed_tokens=8) is not None
        self.encoder = manager_over([full(), cross()], 17, 60, caching=False)

    def dump(self) -> object:
        requests = [request_dump(each) for each in (self.flying, self.running, self.new, self.loading)]
        return [manager_dump(each) for each in self.managers()], requests

    def managers(self) -> list[KVCacheManager]:
        return [self.steps, self.plain, self.encoder]


def settled(world: World, value: Any) -> None:
    world.steps.settle_step(2, {"flying": value})


NAMED = [
    "num_new_tokens", "num_new_computed_tokens", "num_lookahead_tokens", "num_draft_tokens",
    "num_external_computed_tokens", "num_encoder_tokens", "reserved_blocks",
]  # fmt: skip


def asked(world: World, call: str, name: str, value: Any) -> object:
    """Plan or allocate for the new request with one odd argument."""
    arguments: dict[str, Any] = {"num_new_tokens": 0 if name == "num_external_computed_tokens" else 10, name: value}
    manager = world.encoder if name == "num_encoder_tokens" else world.plain
    return getattr(manager, call)(world.new, **arguments)


CASES: dict[str, tuple[Any, str]] = {
    **{f"plan.{name}": (lambda w, v, n=name: asked(w, "plan", n, v), name) for name in NAMED},
    **{f"slots.{name}": (lambda w, v, n=name: asked(w, "allocate_slots", n, v), name) for name in NAMED},
    "batch.drafts": (lambda w, v: w.plain.allocate_slots_batch([w.running, w.new], 10, 0, v), "num_draft_tokens"),
    "batch.drafts each": (lambda w, v: w.plain.allocate_slots_batch([w.new], 10, 0, [v]), "num_draft_tokens"),
    "settle.step": (lambda w, v: w.steps.settle_step(v), "step"),
    "settle.rejected": (settled, "num_rejected_tokens"),
    "finish_load": (lambda w, v: w.plain.finish_load(w.loading, v), "num_loaded_tokens"),
    "mamba.drafts": (lambda w, v: MambaSpec(4, ((1,),), ("fp8",), v), "num_speculative_blocks"),
}
EMPTY: list[object] = [(), {}, b"1", [1]]  # one number for each of several requests, or of none
every_case = pytest.mark.parametrize("name", CASES)


def attempt(name: str, value: object) -> BaseException | None:
    """Make the call in a fresh world; return what it raised, after seeing that it left everything as it was."""
    world = World()
    before = world.dump()
    try:
        CASES[name][0](world, value)
    except Exception as error:
        assert world.dump() == before
        return error
    finally:
        for manager in world.managers():
            manager.check()
    return None


def is_refusal(name: str, error: BaseException | None) -> bool:
    return isinstance(error, NeverFitsError) or (isinstance(error, BlockwrightError) and CASES[name][1] in str(error))


@every_case
def test_integers_in_range(name: str) -> None:
    for value in INSIDE:
        error = attempt(name, value)
        idle = value == 0 and "num_new_tokens" in str(error)  # no tokens to compute and none to load
        assert error is None or idle or is_refusal(name, error), f"{value!r} gave {error!r}"


@every_case
def test_integers_out_of_range(name: str) -> None:
    for value in OUTSIDE:
        error = attempt(name, value)
        assert is_refusal(name, error), f"{value!r} gave {error!r}"


@every_case
def test_no_integers(name: str) -> None:
    for value in (*NOT_INTEGERS, 2.0, float("nan"), float("inf")):
        if name.startswith("batch") and value in EMPTY:
            continue
        error = attempt(name, value)
        assert isinstance(error, BlockwrightError), f"{value!r} gave {error!r}"


@pytest.mark.parametrize("value", [None, "x", [], 1j, object()])
def test_watermarks_are_numbers(value: Any) -> None:
    with pytest.raises(BlockwrightError):
        manager_of(full(), watermark=value)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5])
def test_watermarks_are_shares(value: float) -> None:
    assert manager_of(full(), watermark=value).usage == 0.0


def test_rejections_are_a_mapping_of_names() -> None:
    for odd in ([1], "flying", 5, {5: 0}, {None: 1}, {"flying": 1, 5: 1}, {5: 1, "x": 1}, [("flying",)], [(1, 2, 3)]):
        world = World()
        before = world.dump()
        with pytest.raises(BlockwrightError):
            world.steps.settle_step(2, odd)  # type: ignore[arg-type]
        assert world.dump() == before
    world.steps.settle_step(2, {})
    assert world.steps.num_settled("flying") == 7
