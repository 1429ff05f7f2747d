"""``python -m benchmarks.keeping``: tokens hit with windows or recurrent states, beside vLLM's own manager.

Requests of a trace are served one after another, in several pools, by vLLM's manager at both settings of its retention
(`prefix_cache_retention_interval` 0, its default, and None, dense) and by this build with and without `keep_wanted`. A
request is looked up, computed in chunks, puts out its tokens one by one, and ends. Traces are generated from a seed;
``--trace`` adds a file of Mooncake's format, with a block for each of its ids. ``--workloads`` is of longer workloads
in small pools, with full attention alone and beside recurrent layers: by age, with `keep_wanted` where layers forget,
and by ``eviction_order="adaptive"``.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)

BLOCK = 16
SHARES: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Sizes of pools, as shares of the blocks that hits on the whole trace need (`needed`)."""


class Turn(NamedTuple):
    """A request: its prompt, and the tokens that it puts out."""

    prompt: list[int]
    output: list[int]


class Layout(NamedTuple):
    """Groups of layers beside one of full attention: so many windows of some tokens, or recurrent states."""

    groups: int
    window: int | None
    chunk: int = 256

    def __str__(self) -> str:
        """Name it as tables do."""
        if self.groups == 0:
            return "full attention"
        return f"1+{self.groups} {'states' if self.window is None else f'windows of {self.window}'}"


def fresh(random: Random, count: int) -> list[int]:
    """Return tokens that no other part of a trace has."""
    first = random.randrange(1 << 20)
    return [first + at * 7 % 1013 for at in range(count)]


def in_turn(random: Random) -> Iterator[Turn]:
    """Yield sessions that take turns, each of which sends its whole history again."""
    sessions = [fresh(random, 1400) for _ in range(8)]
    for _ in range(5):
        for at in range(len(sessions)):
            yield Turn(sessions[at], fresh(random, 24))
            sessions[at] = sessions[at] + fresh(random, 64)


def chat(random: Random) -> Iterator[Turn]:
    """Yield chats with growing histories; most next turns are of the latest chats."""
    chats: list[list[int]] = []
    for _ in range(160):
        if not chats or random.random() < 0.2:
            chats.append(fresh(random, 160))
        at = max(0, len(chats) - 1 - int(random.expovariate(0.25)))
        prompt, output = chats[at] + fresh(random, random.randint(16, 96)), fresh(random, random.randint(8, 48))
        yield Turn(prompt, output)
        chats[at] = prompt + output


def system_prompts(random: Random) -> Iterator[Turn]:
    """Yield short questions behind a few long system prompts."""
    prompts = [fresh(random, random.randint(300, 1200)) for _ in range(10)]
    for _ in range(220):
        at = min(int(random.expovariate(0.4)), len(prompts) - 1)
        yield Turn(prompts[at] + fresh(random, random.randint(20, 120)), fresh(random, 16))


def forks(random: Random) -> Iterator[Turn]:
    """Yield prompts that part from earlier ones anywhere."""
    known = [fresh(random, 900) for _ in range(4)]
    for _ in range(160):
        source = random.choice(known[-24:])
        prompt = source[: random.randint(len(source) // 4, len(source))] + fresh(random, random.randint(50, 300))
        yield Turn(prompt[:1600], fresh(random, 16))
        known.append(prompt[:1600])


def documents(random: Random) -> Iterator[Turn]:
    """Yield sessions that take turns, and between them long documents that are never sent again."""
    sessions = [fresh(random, 500) for _ in range(6)]
    for _ in range(14):
        for at in range(len(sessions)):
            yield Turn(sessions[at], fresh(random, 24))
            sessions[at] = sessions[at] + fresh(random, 48)
            if random.random() < 0.3:
                yield Turn(fresh(random, 2400), fresh(random, 16))


TRACES: dict[str, Callable[[Random], Iterator[Turn]]] = {
    "sessions in turn": in_turn,
    "chat": chat,
    "system prompts": system_prompts,
    "forks": forks,
    "one-off documents": documents,
}


def tenants(random: Random, count: int) -> Iterator[Turn]:
    """Yield bursts of questions behind the system prompts of forty tenants, of which some ask more often."""
    prompts = [fresh(random, random.randint(300, 1500)) for _ in range(40)]
    for _ in range(count // 7):
        at = int(40 * random.random() ** 2)
        for _ in range(7):
            yield Turn(prompts[at] + fresh(random, random.randint(10, 150)), fresh(random, 8))


def passages(random: Random, count: int) -> Iterator[Turn]:
    """Yield questions behind three retrieved passages, some of which are retrieved often."""
    system, known = fresh(random, 200), [fresh(random, random.randint(150, 500)) for _ in range(400)]
    for _ in range(count):
        found = [known[int(400 * random.random() ** 3)] for _ in range(3)]
        yield Turn([*system, *found[0], *found[1], *found[2], *fresh(random, 30)], fresh(random, 8))


def asked_again(random: Random, count: int) -> Iterator[Turn]:
    """Yield questions about long documents, of which a few are open at a time."""
    open_now = [fresh(random, random.randint(2000, 6000)) for _ in range(12)]
    for _ in range(count):
        at = random.randrange(12)
        yield Turn(open_now[at] + fresh(random, 40), fresh(random, 8))
        if random.random() < 0.3:
            open_now[at] = fresh(random, random.randint(2000, 6000))


def talks(random: Random, count: int) -> Iterator[Turn]:
    """Yield chats behind one system prompt; most next turns are of the latest."""
    chats, system = list[list[int]](), fresh(random, 300)
    for _ in range(count):
        if not chats or random.random() < 0.15:
            chats.append(system)
        at = max(0, len(chats) - 1 - int(random.expovariate(0.08)))
        prompt, output = chats[at] + fresh(random, random.randint(20, 150)), fresh(random, 24)
        yield Turn(prompt, output)
        chats[at] = prompt + output if len(prompt) < 3000 else system


def shifting(random: Random, count: int) -> Iterator[Turn]:
    """Yield one workload after another."""
    for make in (talks, passages, asked_again, tenants):
        yield from make(random, count // 4)


WORKLOADS = {each.__name__.replace("_", " "): each for each in (tenants, passages, asked_again, talks, shifting)}


def mooncake(path: Path, requests: int) -> Iterator[Turn]:
    """Yield the first requests of a trace file, 16 tokens for each 512 of theirs."""
    with path.open(encoding="utf-8") as lines:
        for _, line in zip(range(requests), lines, strict=False):
            row = json.loads(line)
            tokens = [token for each in row["hash_ids"] for token in [each] * BLOCK]
            yield Turn(tokens[: max(1, row["input_length"] * BLOCK // 512)], [1, 2])


def needed(turns: list[Turn], layout: Layout) -> int:
    """Return the blocks that hold every prefix of a trace once, and of each prompt the windows or states at its end."""
    prefixes = {hash(tuple(turn.prompt[:end])) for turn in turns for end in range(BLOCK, len(turn.prompt) + 1, BLOCK)}
    each = 1 if layout.window is None else -(-layout.window // BLOCK)
    return len(prefixes) + len(turns) * layout.groups * each


class Ours:
    """This build, with or without the rule, or with an order of eviction."""

    def __init__(self, keeps: bool, order: str | None = None) -> None:
        self.keeps, self.order, self.name = keeps, order, order or ("keep_wanted" if keeps else "by age")

    def manager(self, blocks: int, layout: Layout, longest: int) -> Any:
        sizes: Any = {"block_size": BLOCK, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
        window = layout.window
        more: Any = (
            MambaSpec(BLOCK, ((64,),), ("float32",))
            if window is None
            else SlidingWindowSpec(**sizes, sliding_window=window)
        )
        specs = [FullAttentionSpec(**sizes), *[more] * layout.groups]
        groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        keeps = self.keeps and layout.groups > 0
        return KVCacheManager(KVCacheConfig(blocks, groups), longest, keep_wanted=keeps, eviction_order=self.order)

    def request(self, name: str, turn: Turn) -> Any:
        return Request(name, turn.prompt, block_size=BLOCK)

    def look_up(self, manager: Any, request: Any) -> tuple[Any, int, int]:
        hit, length = manager.get_computed_blocks(request)
        return hit, length, request.junction

    def admitted(self, request: Any) -> None:
        """Need nothing more."""


class Vllm:
    """vLLM's manager at one setting of its retention."""

    def __init__(self, peer: Any, interval: int | None) -> None:
        self.peer, self.interval = peer, interval
        self.name = "vLLM, default (0)" if interval == 0 else "vLLM, dense (None)"
        self.interface = peer.interface

    def manager(self, blocks: int, layout: Layout, longest: int) -> Any:
        kinds = [
            self.peer.kind_of(None),
            *[self.state() if layout.window is None else self.peer.kind_of(layout.window)] * layout.groups,
        ]
        groups = [self.interface.KVCacheGroupSpec([f"layers.{at}"], kind) for at, kind in enumerate(kinds)]
        config = self.interface.KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=self.interval,
        )
        return self.peer.manager_class(
            config,
            max_model_len=longest,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            max_in_flight_tokens=layout.chunk,
            enable_caching=True,
        )

    def state(self) -> Any:
        """Return a recurrent layer that keeps states at the ends of blocks."""
        return self.interface.MambaSpec(
            block_size=BLOCK, shapes=((64,),), dtypes=("float32",), mamba_cache_mode="align"
        )

    def request(self, name: str, turn: Turn) -> Any:
        return self.peer.request(name, turn.prompt)

    def look_up(self, manager: Any, request: Any) -> tuple[Any, int, int]:
        hit, length, junction, *_ = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        return hit, length, junction

    def admitted(self, request: Any) -> None:
        self.peer.mark_running(request)


def served(side: Any, manager: Any, name: str, turn: Turn, layout: Layout) -> int | None:
    """Serve one request; return the tokens that it hit, None if the pool cannot hold it."""
    request = side.request(name, turn)
    if hasattr(manager, "new_step_starts"):
        manager.new_step_starts()
    hit, length, junction = side.look_up(manager, request)
    computed, tokens = 0, len(turn.prompt)
    stops = [tokens - tokens % BLOCK, (tokens - 1) // BLOCK * BLOCK, junction] if layout.window is None else []
    while computed < tokens:
        start = max(computed, length)
        end = min([stop for stop in stops if start < stop] + [tokens, start + layout.chunk])
        given = manager.allocate_slots(request, end - start, *((length, hit) if computed == 0 and length else ()))
        if given is None:
            manager.free(request)
            return None
        side.admitted(request)
        request.num_computed_tokens = computed = end
        if hasattr(manager, "new_step_starts"):
            manager.new_step_starts()
    for token in turn.output:
        request.append_output_token_ids(token)
        if manager.allocate_slots(request, 1) is None:
            break
        request.num_computed_tokens += 1
        if hasattr(manager, "new_step_starts"):
            manager.new_step_starts()
    manager.free(request)
    return int(length)


def hit_share(side: Any, turns: list[Turn], blocks: int, layout: Layout) -> float:
    """Return the percentage of prompt tokens hit; requests that never fit hit nothing."""
    manager = side.manager(blocks, layout, max(len(turn.prompt) + len(turn.output) for turn in turns) + layout.chunk)
    hits = sum(served(side, manager, f"r{at}", turn, layout) or 0 for at, turn in enumerate(turns))
    return 100 * hits / sum(len(turn.prompt) for turn in turns)


def layout_of(text: str) -> Layout:
    """Return a layout from its words: "5x128" is five windows of 128 tokens, "3xstates" three recurrent states."""
    groups, kind = text.split("x")
    return Layout(int(groups), None if kind == "states" else int(kind))


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keeping", description=__doc__.partition("\n")[0])
    parser.add_argument("--peer-path", metavar="DIR", type=Path, help="the peers, see python -m benchmarks.peers.fetch")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="a trace in Mooncake's format")
    parser.add_argument(
        "--requests", metavar="N", type=int, default=1000, help="of that, so many (default %(default)s)"
    )
    parser.add_argument(
        "--layout", nargs="+", type=layout_of, help="default: 5x128 3xstates; 0xstates has no other group"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these generated traces")
    parser.add_argument("--workloads", metavar="N", type=int, nargs="?", const=2000, help="instead: N requests of each")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> None:
    """Print a row for each trace, layout and pool, and how far this build is from each setting of vLLM."""
    args = parser_of().parse_args()
    sides: list[Any] = []
    if args.peer_path is not None:
        from benchmarks.peers.vllm import load

        peer = load(args.peer_path, BLOCK)
        sides = [Vllm(peer, 0), Vllm(peer, None)]
    shares, layouts = SHARES, args.layout or [Layout(5, 128), Layout(3, None)]
    makers: dict[str, Callable[[Random], Iterator[Turn]]] = {**TRACES}
    if args.workloads:
        sides = [*sides[:1], Ours(False), Ours(True), Ours(False, "adaptive")]
        shares, layouts = (0.01, 0.03, 0.1), args.layout or [Layout(0, None), Layout(3, None)]
        makers = {name: partial(make, count=args.workloads) for name, make in WORKLOADS.items()}
    else:
        sides += [Ours(False), Ours(True)]
    traces = {name: list(make(Random(args.seed))) for name, make in makers.items() if name in (args.only or makers)}
    if args.trace is not None:
        traces["Mooncake conversation"] = list(mooncake(args.trace, args.requests))
    print("| trace | layout | pool | " + " | ".join(side.name for side in sides) + " |")
    print("|---|---|---|" + "---|" * len(sides))
    rows: list[list[float]] = []
    for name, turns in traces.items():
        for layout in layouts:
            for share in shares:
                blocks = max(int(share * needed(turns, layout)), smallest(turns, layout))
                row = [hit_share(side, turns, blocks, layout) for side in sides]
                rows.append(row)
                shown = " | ".join(f"{value:.2f}" for value in row)
                print(f"| {name} | {layout} | {share:.0%}, {blocks} blocks | {shown} |", flush=True)
    for at, side in enumerate(sides[:-1]):
        more = [row[-1] - row[at] for row in rows]
        below, mean = sum(each < -0.5 for each in more), sum(more) / len(more)
        print(f"beside {side.name}: worst {min(more):+.2f} points, mean {mean:+.2f}; {below} of {len(more)} 0.5 below")


def smallest(turns: list[Turn], layout: Layout) -> int:
    """Return a pool in which the longest request can run."""
    longest = max(len(turn.prompt) + len(turn.output) for turn in turns) // BLOCK + 2
    each = 4 if layout.window is None else (layout.window + layout.chunk) // BLOCK + 2
    return longest + layout.groups * each + 2


if __name__ == "__main__":
    main()
