"""Two models share one device's memory: each has a manager of its own, and their pools breathe within one budget.

Each model's blocks lie in virtual memory for the most that it may ever have (here `mmap`; an accelerator's driver has
calls for it), and only the pages of its pool are backed. A model that finds no room takes what is free of the budget,
or lets the other give back what it does not use: `resize` evicts what is cached there, and what runs there stays until
it ends. The sum of both never exceeds the budget, and no block loses what was written to it; both are checked.

    python examples/two_models.py
"""

import mmap
import random
from dataclasses import dataclass, field

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("this needs torch: pip install torch") from None

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request

BLOCK = 16
LEAST = 24  # blocks that a model keeps in any case: the null block, and those of the longest request


@dataclass
class Model:
    """One model: its manager, the memory of its blocks, and its running requests with what is left to generate."""

    name: str
    block_bytes: int
    most: int
    running: dict[str, tuple[Request, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = FullAttentionSpec(BLOCK, 1, self.block_bytes // BLOCK // 4, "bfloat16")
        config = KVCacheConfig(LEAST, [KVCacheGroupSpec(["layers.0"], spec)])
        self.manager = KVCacheManager(config, max_model_len=512, max_num_blocks=self.most)
        # Private, as of shared memory MADV_DONTNEED gives nothing back.
        self.memory = mmap.mmap(-1, self.most * self.block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.blocks = torch.frombuffer(self.memory, dtype=torch.int64).view(self.most, -1)
        self.mapped = LEAST

    def resize(self, num_blocks: int) -> None:
        """Let the pool end elsewhere; the budget has the memory for it."""
        self.manager.resize(num_blocks)
        self.mapped = max(self.mapped, num_blocks)
        self.give_back()

    def give_back(self) -> None:
        """Return the memory beyond the end of the pool to the device, once nothing is held there."""
        now = self.manager.resizing
        if not now.held and self.mapped > now.num_blocks:
            first = -(-now.num_blocks * self.block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            last = self.mapped * self.block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                self.memory.madvise(mmap.MADV_DONTNEED, first, last - first)
            self.mapped = now.num_blocks


class Budget:
    """The bytes that all models have together."""

    def __init__(self, total: int, models: list[Model]) -> None:
        self.total, self.models = total, models

    @property
    def free(self) -> int:
        """Bytes that no model has."""
        return self.total - sum(model.mapped * model.block_bytes for model in self.models)

    def make_room(self, taker: Model, blocks: int) -> bool:
        """Let a pool grow by some blocks, if need be by what the others do not hold; False if that does not suffice."""
        for giver in self.models:
            missing = blocks * taker.block_bytes - self.free
            if giver is not taker and missing > 0:
                size = giver.manager.resizing.num_blocks
                idle = int((1 - giver.manager.usage) * (size - 1))
                giver.resize(max(LEAST, size - min(idle, -(-missing // giver.block_bytes))))
        size = taker.manager.resizing.num_blocks
        grows = min(blocks, self.free // taker.block_bytes, taker.most - max(size, taker.mapped))
        if grows > 0:
            taker.resize(max(size, taker.mapped) + grows)
        return grows > 0


def step(model: Model, budget: Budget, waiting: list[tuple[Request, int]], rng: random.Random) -> int:
    """Admit what waits and run each request by a token; write every new block, and read the blocks of whoever ends."""
    manager, wrong = model.manager, 0
    while waiting and len(model.running) < 24:
        request, left = waiting[0]
        hit, count = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, request.num_tokens - count, count, hit) is None:
            if not budget.make_room(model, -(-request.num_tokens // BLOCK)):
                break
            continue
        waiting.pop(0)
        model.running[request.request_id] = (request, left)
        write(model, request, count // BLOCK)
        request.num_computed_tokens = request.num_tokens
    for name, (request, left) in list(model.running.items()):
        if left == 0:
            wrong += read(model, request)
            manager.free(request)
            del model.running[name]
            continue
        request.append_output_token_ids(rng.randrange(1000))  # in place of a model
        if manager.allocate_slots(request, 1) is None and (
            not budget.make_room(model, 8) or manager.allocate_slots(request, 1) is None
        ):
            manager.preempt(request)
            del model.running[name]
            waiting.append((Request(name, list(request.all_token_ids), BLOCK), left))
            continue
        write(model, request, (request.num_tokens - 1) // BLOCK)
        request.num_computed_tokens += 1
        model.running[name] = (request, left - 1)
    model.give_back()
    return wrong


def mark(request: Request, entry: int) -> int:
    """Return what a block must hold: a digest of all tokens up to its end."""
    return hash(tuple(request.all_token_ids[: (entry + 1) * BLOCK]))


def write(model: Model, request: Request, first: int) -> None:
    """Write a request's blocks from an entry on."""
    (ids,) = model.manager.get_block_ids(request.request_id)
    for entry in range(first, len(ids)):
        model.blocks[ids[entry]] = mark(request, entry)


def read(model: Model, request: Request) -> int:
    """Count a request's blocks that do not hold what was written to them."""
    (ids,) = model.manager.get_block_ids(request.request_id)
    return sum(bool((model.blocks[block] != mark(request, entry)).any()) for entry, block in enumerate(ids))


def main() -> None:
    """Serve a load that moves from one model to the other and back."""
    rng = random.Random(0)
    models = [Model("small", 4096, 400), Model("large", 16384, 120)]
    budget = Budget(2 << 20, models)
    waiting: dict[str, list[tuple[Request, int]]] = {model.name: [] for model in models}
    most = wrong = served = 0
    for tick in range(1200):
        for at, model in enumerate(models):
            busy = (tick // 300) % 2 == at
            if rng.random() < (0.25 if busy else 0.03):
                prompt = [rng.randrange(4)] * 64 + [rng.randrange(1000) for _ in range(rng.randrange(1, 120))]
                served += 1
                request = Request(f"{model.name}-{served}", prompt, BLOCK)
                waiting[model.name].append((request, rng.randrange(10, 120)))
            wrong += step(model, budget, waiting[model.name], rng)
            most = max(most, budget.total - budget.free)
            if budget.free < 0:
                raise SystemExit(f"{-budget.free:,} bytes beyond the budget")
        if tick % 100 == 99:
            sizes = ", ".join(f"{model.name} {model.mapped * model.block_bytes >> 10:5,} KiB" for model in models)
            print(f"step {tick + 1:5,}: {sizes}, {budget.free >> 10:5,} KiB free")
    print(f"{served} requests, at most {most >> 10:,} of {budget.total >> 10:,} KiB, {wrong} wrong blocks")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
