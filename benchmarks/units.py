"""``python -m benchmarks.units``: tokens hit with large blocks, where hits end with blocks and where inside them.

Requests of generated traces, of chats and of agents, are served one after another in a pool that holds them all: each
is looked up, computed in one step, puts out its tokens one by one, and ends. Each row is of one size of blocks, beside
blocks of 16 tokens. vLLM has no row: with one group of layers it refuses `prefix_match_unit` below the block.
"""

import argparse
from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.keeping import Turn
from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request

UNIT = 16
SIZES = (64, 256, 1024)


def fresh(random: Random, least: int, most: int) -> list[int]:
    """Return so many tokens that nothing else has."""
    return [random.randrange(1, 50_000) for _ in range(random.randrange(least, most))]


def chats(random: Random) -> list[Turn]:
    """Return chats of six turns behind four system prompts, in any order."""
    systems = [fresh(random, 150, 1800) for _ in range(4)]
    return in_any_order(random, [(random.choice(systems), 6) for _ in range(60)], (20, 400), (20, 300))


def agents(random: Random) -> list[Turn]:
    """Return runs of an agent: one system prompt with its tools, twelve tasks, each tried five times in a few steps."""
    tools = fresh(random, 1200, 2600)
    tasks = [tools + fresh(random, 80, 700) for _ in range(12)]
    return in_any_order(
        random, [(task, random.randrange(3, 8)) for task in tasks for _ in range(5)], (50, 900), (20, 200)
    )


def in_any_order(
    random: Random, starts: list[tuple[list[int], int]], said: tuple[int, int], answered: tuple[int, int]
) -> list[Turn]:
    """Return the turns of sessions: each sends its history, what was said now behind it, and gets an answer."""
    sessions, turns = [[history[:], left] for history, left in starts], []
    while sessions:
        session: Any = random.choice(sessions)
        session[0] += fresh(random, *said)
        turns.append(Turn(session[0][:], fresh(random, *answered)))
        session[0] += turns[-1].output
        session[1] -= 1
        if session[1] == 0:
            sessions.remove(session)
    return turns


TRACES: dict[str, Callable[[Random], list[Turn]]] = {"chats": chats, "agents": agents}


def hits(turns: list[Turn], size: int, unit: int | None, tokens: int) -> tuple[int, int, int]:
    """Return the tokens hit, the copies made, and the parts that are published at last."""
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype="float32")
    config = KVCacheConfig(tokens // size + 1, [KVCacheGroupSpec(["layers.0"], spec)])
    manager = KVCacheManager(config, 1 << 17, prefix_match_unit=unit)
    hit = copies = 0
    for at, turn in enumerate(turns):
        request = Request(f"r{at}", turn.prompt)
        manager.new_step_starts()
        blocks, length = manager.get_computed_blocks(request)
        manager.allocate_slots(request, len(turn.prompt) - length, length, blocks)
        hit += length
        request.num_computed_tokens = len(turn.prompt)
        for token in turn.output[:-1]:
            copies += sum(map(len, manager.take_copies()))
            manager.new_step_starts()
            request.append_output_token_ids(token)
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        request.append_output_token_ids(turn.output[-1])
        manager.free(request)
    return hit, copies, sum(map(len, manager.block_pool.tail_keys()))


def main() -> None:
    """Print a row for each trace and size of blocks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.units", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--tokens", type=int, default=1 << 22, help="of the pool (default %(default)s)")
    args = parser.parse_args()
    print("| trace, seed | tokens per block | unit = block | unit 16 | copies | parts per block |")
    print("|---|---|---|---|---|---|")
    for name, make in TRACES.items():
        for seed in args.seed:
            turns = make(Random(seed))
            least, _, _ = hits(turns, UNIT, None, args.tokens)
            filled = sum(len(turn.prompt) + len(turn.output) for turn in turns)
            for size in SIZES:
                whole, (inside, copies, parts) = (
                    hits(turns, size, None, args.tokens)[0],
                    hits(turns, size, UNIT, args.tokens),
                )
                shares = f"{whole / least:.2%} | {inside / least:.2%}"
                rate = parts * size / (filled - inside)
                print(f"| {name}, {seed} | {size} | {shares} | {copies} | {rate:.1f} |", flush=True)


if __name__ == "__main__":
    main()
