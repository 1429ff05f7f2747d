"""The time of a router's lookup over many engines: one `FleetIndex`, and beside it an index of each of them.

    python -m benchmarks.fleet_index [--engines N] [--blocks N]

`--blocks` is the number of blocks of 16 tokens that all engines hold together. The table has the processor time for a
block of a prompt of 256 blocks that all engines have, and of one that one has: the best of forty runs each. The exit
code is 1 if the one index takes over 2 us.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time

from blockwright.events import BlockStored
from blockwright.observe import FleetIndex, PrefixIndex

SIZE, LENGTH, MOST = 16, 256, 2e-6


def chain(first: int, count: int) -> list[BlockStored]:
    """Return the events of a prompt whose tokens begin with a number; the hash says which prefix it is."""
    name = struct.pack("<q", first) + bytes(20)
    hashes = [None, *(name + struct.pack("<i", at) for at in range(count))]
    tokens = [struct.pack(f"<{SIZE}i", *range(first + SIZE * at, first + SIZE * (at + 1))) for at in range(count)]
    pairs = zip(hashes[1:], hashes, tokens, strict=False)
    return [BlockStored(each, parent, own, SIZE) for each, parent, own in pairs]  # type: ignore[arg-type]


def best(ask: object, *arguments: object) -> float:
    times = []
    for _ in range(40):
        begin = time.process_time()
        for _ in range(2):
            ask(*arguments)  # type: ignore[operator]
        times.append((time.process_time() - begin) / 2 / LENGTH)
    return min(times)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    args = parser.parse_args()
    of_all, of_one = 1 << 20, 1 << 21
    fleet, each, own = FleetIndex(), [PrefixIndex() for _ in range(args.engines)], args.blocks // args.engines - LENGTH
    before = resident()
    for engine in range(args.engines):
        for number in range(own // LENGTH):
            fleet.apply(engine, chain((1 << 22) + (engine * own + number * LENGTH) * SIZE, LENGTH))
        fleet.apply(engine, chain(of_all, LENGTH))
    fleet.apply(0, chain(of_one, LENGTH))
    held = resident() - before
    for engine, index in enumerate(each):
        index.apply(chain(of_all, LENGTH))
        if engine == 0:
            index.apply(chain(of_one, LENGTH))
    worst = 0.0
    print(f"{args.engines} engines, {args.blocks:,} blocks, {held / args.blocks:.0f} bytes a block")
    for name, first in (("that all have", of_all), ("that one has", of_one)):
        prompt = list(range(first, first + LENGTH * SIZE))
        found = fleet.match(prompt)
        if list(found.values()) != [index.match(prompt) for index in each]:
            print("the answers differ", file=sys.stderr)
            return 1
        one = best(fleet.match, prompt)
        apart = best(lambda asked: [index.match(asked) for index in each], prompt)
        print(
            f"a prompt {name}: {one * 1e6:.2f} us a block; an index of each (of this prompt alone): {apart * 1e6:.2f}"
        )
        worst = max(worst, one)
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
