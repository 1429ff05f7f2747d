"""Streaming sessions (vLLM's resumable requests) among all other features: each slot holds what its request says.

How: vLLM's real schedulers over random arrivals, with the worker of `stub`. What is on is drawn at random as well:
kinds of layers, piece limits, small budgets, units, events, drafts, steps in flight, tight pools, loads that fail,
priorities. Turns are added while a session runs, waits or has ended, several at a time; others ask for what a session
has said. After each step the manager is checked, no more may be published than was scheduled, and each key must name a
block that holds exactly the prefix of that key. The tokens must be those of the model.

Short by default. `BLOCKWRIGHT_SESSION_STEPS=1500 BLOCKWRIGHT_SESSION_SEEDS=200` is the long run.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

STEPS = int(os.environ.get("BLOCKWRIGHT_SESSION_STEPS", "250"))
SEEDS = int(os.environ.get("BLOCKWRIGHT_SESSION_SEEDS", "24"))
FIRST = int(os.environ.get("BLOCKWRIGHT_SESSION_FIRST", "0"))

GROUPS = (
    "full",
    "sliding",
    "full sliding",
    "full five",
    "chunked",
    "full chunked",
    "state",
    "full state",
    "full states",
    "full large-state",
    "full checkpoint-state",
    "small small-state",
)


def drawn(seed: int) -> tuple[str, dict[str, Any]]:
    """Return groups of layers and options that vLLM takes together, for a number."""
    draw = random.Random(seed)
    groups = GROUPS[seed % len(GROUPS)]
    has_states, is_in_flight = "state" in groups, draw.random() < 0.5
    options: dict[str, Any] = {
        "is_async": is_in_flight,
        "drafts": draw.choice([0, 0, 3]),
        "unit": draw.choice([None, None, 2, 4]) if "small" in groups else draw.choice([None, None, 4, 8]),
        "interval": draw.choice([None, 0] if groups == "full" else [None, 0, 0, 32]),
        "events": draw.random() < 0.5,
        "scheduling": {
            "long_prefill_token_threshold": draw.choice([0, 11, 13, 40]),
            "max_num_batched_tokens": draw.choice([24, 64, 100]),
            "policy": draw.choice(["fcfs", "priority"]),
            "watermark": draw.choice([0.0, 0.0, 0.05]),
        },
    }
    if options["drafts"] and groups in ("full", "full sliding", "full state") and draw.random() < 0.4:
        options["eagle"] = True
    options["num_blocks"] = draw.choice([40, 90, 90] if not is_in_flight else [60, 200, 200])
    options["num_blocks"] *= {"small": 4, "states": 2, "five": 3}.get(groups.split()[-1].split("-")[0], 1)
    can_load = groups not in ("sliding", "chunked") and not options["drafts"] and options["unit"] is None
    if can_load and draw.random() < 0.4:
        is_later = groups != "full" or is_in_flight or draw.random() < 0.6
        options["loads"] = {"is_async": is_later, "leaves_last": has_states}
    return groups, options


def served(seed: int, folder: Path) -> Any:
    """Walk with what is drawn for a number over Blockwright's manager; return the side of the scheduler."""
    from tests.engines import stub

    groups, options = drawn(seed)
    drafts, depth = options["drafts"], int(options["is_async"])
    kinds = stub.drafting([kind for word in groups.split() for kind in stub.KINDS[word]()], drafts)
    made = stub.scheduler(folder, True, kinds, options.pop("num_blocks"), **options)
    side = stub.Side(made, kinds, depth=depth, drafts=drafts)
    stops = range(3, 9) if seed % 3 else ()
    print(seed, groups, options)
    stub.walk([side], seed, STEPS, made.hash_block_size, exact=True, sessions=0.4, stops=stops, resets=0.01)
    return side


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_session_among_everything_else(seed: int, models_folder: Path) -> None:
    side = served(seed, models_folder)
    print(f"hits {side.hits} of {side.queries}, {side.preemptions} preemptions, {side.audited} keys audited")
    assert side.hits


def _hears_of_no_turn(self: Any, request: Any, twin: Any, stop: int) -> bool:
    """Let a next turn go on as if it were told."""
    twin.heard = request.num_tokens
    return True


def _fills_by_what_the_twin_knows(real: Any) -> Any:
    """Say that a step reaches the end of its last block, whatever tokens were added."""

    def filled(self: Any, request: Any, twin: Any, stop: int, table: int) -> None:
        real(self, request, twin, -(-stop // self._unit) * self._unit if twin.num_prompt > 40 else stop, table)

    return filled


def _counts(field: str, real: Any) -> Any:
    """Count more than the core does."""

    def filled(self: Any, request: Any, twin: Any, stop: int, table: int) -> None:
        real(self, request, twin, stop, table + 16 * (field == "table"))
        twin.published += 16 * (field == "published" and stop > 60)

    return filled


@pytest.mark.parametrize(
    ("seed", "fault"),
    [(19, "turn"), (2, "more is filled than was scheduled"), (0, "table"), (0, "published"), (1, "published")],
)
def test_a_fault_is_noticed(seed: int, fault: str, models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engines import stub

    from blockwright.engines.vllm.manager import KVCacheManager
    from blockwright.engines.vllm.progress import Progress
    from blockwright.errors import BlockwrightError

    if fault in ("table", "published"):
        monkeypatch.setattr(Progress, "note_filled", _counts(fault, Progress.note_filled))
    elif fault == "turn":
        monkeypatch.setattr(KVCacheManager, "_goes_on", _hears_of_no_turn)
    else:
        monkeypatch.setattr(Progress, "note_filled", _fills_by_what_the_twin_knows(Progress.note_filled))
    with pytest.raises((stub.WrongContentError, BlockwrightError)):
        served(seed, models_folder)
