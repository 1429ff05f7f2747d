"""Count prompt tokens that hit under vLLM's real scheduler, with its own manager and with Blockwright's.

Run inside an environment with vLLM (``make bench-engines-hits``). Chats with growing histories behind a few shared
system prompts arrive at random, drawn alike for both schedulers, with vLLM's default retention. The worker computes
nothing, and raises if a step would read what is not the prefix of its request.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engines import stub

LAYOUTS: dict[str, tuple[list[Any], tuple[int, int, int]]] = {
    "1 full + 5 sliding of 128": ([stub.full(), *[stub.sliding(128)] * 5], (4000, 1200, 600)),
    "3 sliding of 128": ([stub.sliding(128)] * 3, (2000, 300, 150)),
    "1 full + 3 recurrent": ([stub.full(), *[stub.state()] * 3], (4000, 600, 300)),
    "3 recurrent": ([stub.state()] * 3, (2000, 150, 60)),
}
"""Groups of layers, and blocks of a pool with room, of a medium and of a tight one."""


def served(side: Any, seed: int, steps: int, hashed: int = 16) -> None:
    """Serve chats whose turns arrive at random; a turn's prompt is all of its chat, its outputs included."""
    draw = random.Random(seed)
    systems = [[draw.randrange(3, 400) for _ in range(draw.randrange(150, 400))] for _ in range(4)]
    chats: list[list[int]] = []
    waiting: dict[str, int] = {}
    for number in range(steps):
        for name in [name for name in waiting if name in side.finished]:
            chats[waiting.pop(name)] += side.tokens[name]
        idle = [at for at, chat in enumerate(chats) if at not in waiting.values() and len(chat) < 1400]
        # Drawn whether or not it is used, so that both sides draw the same as long as they can.
        is_due, is_new, which = draw.random() < 0.12, draw.random() < 0.25, draw.random()
        said = [draw.randrange(3, 400) for _ in range(draw.randrange(16, 120))]
        system, most = draw.choice(systems), draw.randrange(8, 40)
        if not is_due or len(waiting) >= 8:
            continue_only(side)
            continue
        if is_new or not idle:
            chats.append(list(system))
            at = len(chats) - 1
        else:
            at = idle[-1 - int(which**2 * len(idle))]
        chats[at] += said
        waiting[f"r{number}"] = at
        side.scheduler.add_request(stub.request(f"r{number}", list(chats[at]), hashed, most))
        continue_only(side)


def continue_only(side: Any) -> None:
    if side.scheduler.requests or side.queue:
        side.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unit", type=int, help="tokens at whose multiples hits may end (default: whole blocks)")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    print("| layers | pool | vLLM: hits | preemptions | Blockwright: hits | preemptions |\n|---|---|---|---|---|---|")
    for name, (kinds, pools) in LAYOUTS.items():
        for pool, blocks in zip(("room", "medium", "tight"), pools, strict=True):
            cells: list[str] = []
            for ours in (False, True):
                options = {"max_num_batched_tokens": 256, "interval": 0, "unit": args.unit}
                made = stub.scheduler(args.models, ours, kinds, blocks, **options)
                side = stub.Side(made, kinds)
                served(side, args.seed, args.steps, made.hash_block_size)
                cells += [f"{100 * side.hits / max(1, side.queries):.2f} % of {side.queries:,}", f"{side.preemptions}"]
            print(f"| {name} | {pool}, {blocks} blocks | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
