"""A small engine that tells events: prompts with shared heads, evictions, salts, resets, and blocks of two tiers."""

from random import Random

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    Sha256Hasher,
    SlidingWindowSpec,
)
from blockwright.kinds import KVCacheSpec
from blockwright.observe import EventStream

SIZE = 4
HASHER = Sha256Hasher(b"seed")


def full(size: int = SIZE) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype="bfloat16")


def window(tokens: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype="bfloat16", sliding_window=tokens)


def recurrent() -> MambaSpec:
    return MambaSpec(block_size=SIZE, shapes=((1,),), dtypes=("bfloat16",))


class Engine:
    """Admits and frees random requests; `step` records what the manager tells."""

    def __init__(self, seed: int = 0, num_blocks: int = 40, specs: tuple[KVCacheSpec, ...] = ()) -> None:
        groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs or (full(),))]
        config = KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=groups)
        self.manager = KVCacheManager(config, max_model_len=256, enable_kv_cache_events=True)
        self.stream = EventStream(clock=lambda: 1.0)
        self.random, self.count = Random(seed), 0
        self.running: list[Request] = []

    def step(self) -> None:
        """Admit a request if it fits, else free one; reset now and then."""
        random, manager = self.random, self.manager
        self.count += 1
        head = [random.randrange(3)] * (SIZE * random.randrange(5))
        prompt = head + [random.randrange(9) for _ in range(random.randrange(1, 20))]
        salt, lora = random.choice([None, None, "tenant"]), random.choice([None, None, "adapter"])
        name = f"r{self.count}"
        request = Request(name, prompt, SIZE, cache_salt=salt, lora_name=lora, hasher=HASHER)
        hit, length = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, request.num_tokens - length, length, hit) is not None:
            request.num_computed_tokens = request.num_tokens
            self.running.append(request)
        while self.running and random.random() < 0.5:
            manager.free(self.running.pop(random.randrange(len(self.running))))
        if not self.running and random.random() < 0.1:
            manager.reset_prefix_cache()
        self.stream.record(manager.take_events())

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def findable(engine: Engine) -> set[tuple[bytes, int]]:
    """What a lookup finds: keys and groups, from the pool itself."""
    pool = engine.manager.block_pool
    pairs = zip(pool.block_keys(), pool.block_groups(), strict=True)
    return {(key, group) for key, group in pairs if key is not None and group is not None}
