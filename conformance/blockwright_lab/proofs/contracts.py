"""Contracts: CrossHair follows every path through functions of the implementation; only "Confirmed" counts.

The conditions are those of `contract_conditions`. They run in a process of their own, on the uncompiled source, since a
compiled function shows CrossHair nothing. Anything but "Confirmed over all paths" fails: a counterexample, an error, or
paths that were not followed to the end.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

CONFIRMED: Final = "Confirmed"
SECONDS: Final = 300.0
"""For one contract; each takes seconds."""


class Contract(NamedTuple):
    """A condition: its name, the functions that it is about, and whether it is short enough for every run."""

    name: str
    about: frozenset[str]
    is_short: bool = False


def about(module: str, *names: str) -> frozenset[str]:
    return frozenset(f"blockwright.{module}:{name}" for name in names)


WALK: Final = about("core.window", "Probe.last_run", "common_hit")

CONTRACTS: Final = (
    Contract("full_holds_its_peak", about("core.window", "WindowRule.peak")),
    Contract("sliding_holds_its_peak", about("core.window", "SlidingRule.peak")),
    Contract("chunked_holds_its_peak", about("core.window", "ChunkedRule.peak")),
    Contract("mamba_holds_its_peak", about("core.window", "MambaRule.peak")),
    Contract("full_requests_hold_the_most", about("core.plans", "most_blocks")),
    Contract("sliding_requests_hold_the_most", about("core.plans", "most_blocks")),
    Contract("chunked_requests_hold_the_most", about("core.plans", "most_blocks")),
    Contract("mamba_requests_hold_the_most", about("core.plans", "most_blocks")),
    Contract("hits_suit_all_groups", WALK | about("core.window", "WindowRule.longest", "SlidingRule.longest"), True),
    Contract("full_hits_are_longest", WALK | about("core.window", "WindowRule.longest")),
    Contract("sliding_hits_are_longest", WALK | about("core.window", "SlidingRule.longest")),
    Contract("chunked_hits_are_longest", about("core.window", "ChunkedRule.longest", "common_hit")),
    Contract("mamba_hits_are_longest", WALK | about("core.window", "MambaRule.longest")),
    Contract("blocks_grow_as_far_as_they_may", about("device.pages", "Family.growth")),
)
"""Every contract."""


class Answer(NamedTuple):
    """What came of one contract: ``Confirmed``, or what was said instead."""

    name: str
    said: str
    seconds: float


def is_there() -> bool:
    """Tell whether CrossHair is installed, without importing it."""
    return importlib.util.find_spec("crosshair") is not None


class Checking:
    """Contracts that are being followed, in a process of their own."""

    def __init__(self, contracts: Sequence[Contract]) -> None:
        command = [sys.executable, "-m", __name__, *(each.name for each in contracts)]
        environment = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.waiting = [each.name for each in contracts]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def answers(self) -> Iterator[Answer]:
        """Return the answers as they come; those that do not come say so."""
        assert self.process.stdout is not None
        with self.process:
            for line in self.process.stdout:
                answer = Answer(*json.loads(line))
                self.waiting.remove(answer.name)
                yield answer
        for name in self.waiting:
            yield Answer(name, f"no answer: the process ended with {self.process.returncode}", 0.0)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def followed(function: Any) -> str:
    """Follow all paths through one condition; say ``Confirmed``, or what is wrong."""
    from crosshair.core_and_libs import analyze_function, run_checkables
    from crosshair.options import AnalysisKind, AnalysisOptionSet

    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.PEP316], report_all=True, per_condition_timeout=SECONDS, per_path_timeout=SECONDS
    )
    messages = run_checkables(analyze_function(function, options))
    if len(messages) == 1 and messages[0].state.name == "CONFIRMED":
        return CONFIRMED
    return "; ".join(f"{each.state.name}: {each.message}" for each in messages) or "nothing was checked"


def main(names: Sequence[str]) -> None:
    """Follow conditions by their names, and print each answer as it comes."""
    from . import contract_conditions

    for name in names:
        started = time.perf_counter()
        said = followed(getattr(contract_conditions, name))
        print(json.dumps(Answer(name, said, time.perf_counter() - started)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
