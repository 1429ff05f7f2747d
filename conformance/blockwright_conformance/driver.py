"""A random engine over full attention and recurrent layers with external hits: a million steps in a few minutes.

    python -m blockwright_conformance.driver --steps 1000000 --seed 0

It knows nothing of the specification: it calls the manager's public names as a scheduler does, with small pools, shared
prefixes, chunked prefill, drafts, preemption, and loads that come whole, in part or not at all, or whose request is
freed meanwhile. What must hold is checked after each call: a plan predicts what the call then does, and a refused call
changes nothing; and, now and then, the self-check. Each run of a few hundred steps ends with everything served that
fits alone, and with all blocks free.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from math import gcd, lcm
from random import Random
from typing import Any, NamedTuple

from blockwright import (
    Fits,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Never,
    NotNow,
    Request,
    build_info,
)
from blockwright._terminal import Advance, print_table, progress

LENGTH = 400
"""Steps of a run, before what is left is served."""
CHECK_EVERY = 64
"""Steps between two self-checks."""
MAX_LEN = 96
BLOCK_SIZES = ((4, 4), (4, 8), (8, 4), (2, 6), (6, 4), (1, 16), (16, 16))
"""Tokens per block of full attention, and of the recurrent layers."""
WEIGHTS = {"arrive": 4, "admit": 6, "compute": 20, "settle": 4, "preempt": 1, "reset": 0.5}


class DriverError(AssertionError):
    """Something that must hold does not; the message says what, and how to see it again."""


class Setup(NamedTuple):
    """A manager's configuration.

    Attributes:
        full, mamba: block sizes of the two groups.
        drafts: draft tokens that the recurrent layers can take back.
        num_blocks: blocks of the pool, the null block included.
        watermark: share of them that a new request leaves free.
    """

    full: int
    mamba: int
    drafts: int
    num_blocks: int
    watermark: float


class Load(NamedTuple):
    """Tokens on their way: `num_tokens` of them after `hit`; the request may have been freed meanwhile."""

    request: Request
    hit: int
    num_tokens: int
    is_freed: bool


def make_manager(setup: Setup) -> Any:
    """Return the manager to drive."""
    full = FullAttentionSpec(setup.full, num_kv_heads=1, head_size=1, dtype="int8")
    mamba = MambaSpec(setup.mamba, ((1,),), ("int8",), num_speculative_blocks=setup.drafts)
    groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
    return KVCacheManager(KVCacheConfig(setup.num_blocks, groups), MAX_LEN, watermark=setup.watermark)


class Run:
    """One engine with a manager of its own; all choices follow from the seed."""

    def __init__(self, seed: int, make: Callable[[Setup], Any] = make_manager) -> None:
        random = self.random = Random(seed)
        full, mamba = random.choice(BLOCK_SIZES)
        fewest = MAX_LEN // (2 * full) + 4
        blocks = random.randint(fewest, 4 * fewest)
        self.setup = Setup(full, mamba, random.choice([0, 0, 2]), blocks, random.choice([0.0, 0.0, 0.1]))
        self.manager, self.empty = make(self.setup), make(self.setup)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loads: dict[str, Load] = {}
        self.goals: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.num_steps = self.number = 0

    def require(self, holds: object, what: str) -> None:
        """Raise unless it holds."""
        if not holds:
            raise DriverError(f"{what}; {self.setup}")

    # ------------------------------------------------------------------ calls, and what must hold after them

    def snapshot(self) -> object:
        """Return all that can be seen of the manager."""
        manager, pool = self.manager, self.manager.block_pool
        tables = [
            (name, manager.get_block_ids(name), manager.get_draft_block_ids(name), manager.num_published(name))
            for name in manager.request_ids()
        ]
        return tables, pool.ref_counts(), pool.block_keys(), pool.free_block_ids()

    def ask(self, request: Request, new: int, is_new: bool = False, **more: Any) -> bool:
        """Plan, and do it; return whether it was done."""
        manager, pool = self.manager, self.manager.block_pool
        plan, free = manager.plan(request, new, **more), pool.num_free
        if isinstance(plan, Fits):
            commits = self.random.random() < 0.3
            given = manager.commit(plan) if commits else manager.allocate_slots(request, new, **more)
            self.require(given is not None, f"refused, although {plan}")
            new_ids = sum(1 for ids in given.get_block_ids() for block in ids if block)
            left = free - plan.num_blocks
            self.require(pool.num_free == left if is_new else pool.num_free >= left, f"took another number than {plan}")
            self.require(is_new or new_ids == plan.num_blocks, f"gave {new_ids} blocks, after {plan}")
            return True
        before = self.snapshot()
        # The whole of it was found to fit, so waiting must help.
        self.require(isinstance(plan, NotNow) and plan.num_missing_blocks > 0, f"{plan}, of a request that fits alone")
        self.require(manager.plan(request, new, **more).num_missing_blocks == plan.num_missing_blocks, "plans differ")
        self.require(manager.allocate_slots(request, new, **more) is None, f"given, although {plan}")
        self.require(self.snapshot() == before, "a refused call changed something")
        return False

    def observe(self) -> None:
        """Check the manager from inside and outside."""
        self.manager.check()
        pool = self.manager.block_pool
        held = sum(1 for count in pool.ref_counts()[1:] if count)
        self.require(held + pool.num_free == pool.num_blocks - 1, f"{held} blocks held, {pool.num_free} free")
        holders = sorted(request.request_id for request in self.holders())
        self.require(sorted(self.manager.request_ids()) == holders, "other requests run than were admitted")

    def holders(self) -> list[Request]:
        """Return the requests that hold blocks: those that run, and those that load."""
        return self.running + [load.request for load in self.loads.values() if not load.is_freed]

    # ------------------------------------------------------------------ steps of the engine

    def arrive(self) -> None:
        """Let a request arrive, with one of few beginnings; one that would never fit is turned away."""
        random, self.number = self.random, self.number + 1
        family = random.randrange(2)
        tokens = [*range(family * MAX_LEN, family * MAX_LEN + random.randint(1, 48))]
        tokens += [random.randrange(3) for _ in range(random.randrange(12))]
        goal, unit = random.randint(1, 24), gcd(self.setup.full, self.setup.mamba)
        longest = [*tokens, *[0] * min(goal + 2 * self.setup.drafts, MAX_LEN - len(tokens))]
        whole = self.empty.plan(Request("whole", longest, unit), len(longest), full_sequence_must_fit=True)
        if isinstance(whole, Never):
            self.counts["never"] += 1
            return
        request = Request(f"r{self.number}", tokens, unit)
        self.goals[request.request_id] = goal
        self.waiting.append(request)

    def admit(self, at: int | None = None) -> bool:
        """Start a waiting request, or load some of its tokens from elsewhere first; return whether it was started."""
        random = self.random
        request = self.waiting[random.randrange(len(self.waiting)) if at is None else at]
        hit, num_hit = self.manager.get_computed_blocks(request)
        more: dict[str, Any] = {"num_new_computed_tokens": num_hit, "new_computed_blocks": hit} if num_hit else {}
        more |= {"full_sequence_must_fit": random.random() < 0.5, "reserved_blocks": random.choice([0, 0, 2])}
        left = request.num_tokens - num_hit
        if left > 1 and request.request_id not in self.loads and random.random() < 0.5:
            align = lcm(self.setup.full, self.setup.mamba)
            count = random.choice([left - 1, random.randint(1, left - 1), max((left - 1) // align * align, 1)])
            if not self.ask(request, 0, is_new=True, num_external_computed_tokens=count, **more):
                self.counts["not now: load"] += 1
                return False
            self.counts["load after a hit" if num_hit else "load"] += 1
            self.loads[request.request_id] = Load(request, num_hit, count, is_freed=False)
            self.waiting.remove(request)
            return True
        new = self.chunk(num_hit, left)
        if not self.ask(request, new, is_new=True, **more):
            self.counts["not now: admit"] += 1
            return False
        self.counts["admitted on a hit" if num_hit else "admitted without a hit"] += 1
        request.num_computed_tokens = num_hit
        self.waiting.remove(request)
        self.running.append(request)
        self.count(request, new, 0)
        return True

    def chunk(self, begin: int, left: int) -> int:
        """Return how many of the tokens left to compute: all, some, or as many as end where a state is kept."""
        ends = [begin + left, self.random.randint(begin + 1, begin + left)]
        ends += [end // self.setup.mamba * self.setup.mamba for end in ends]
        return max(self.random.choice(ends) - begin, 1)

    def wish(self, request: Request) -> tuple[int, int]:
        """Return how many known tokens a request computes next, and how many drafts after them."""
        left = request.num_tokens - request.num_computed_tokens
        new = self.chunk(request.num_computed_tokens, left)
        room = MAX_LEN - request.num_computed_tokens - new
        return new, self.random.randint(0, min(self.setup.drafts, room)) if new == left else 0

    def compute(self) -> None:
        """Serve one request, or several in one call; where blocks run short, preempt perhaps."""
        served = self.compute_one() if self.random.random() < 0.5 else self.compute_some()
        if not served and self.random.random() < 0.5:
            self.preempt()

    def compute_one(self) -> bool:
        """Serve one running request; return whether it was."""
        request = self.random.choice(self.running)
        new, drafts = self.wish(request)
        ahead = self.random.randint(0, self.setup.drafts)
        if not self.ask(request, new + drafts, num_draft_tokens=drafts, num_lookahead_tokens=ahead):
            self.counts["not now: compute"] += 1
            return False
        self.count(request, new, drafts)
        return True

    def compute_some(self) -> bool:
        """Serve several in one call; return whether all were."""
        manager = self.manager
        batch = self.random.sample(self.running, self.random.randint(1, len(self.running)))
        wishes = [self.wish(request) for request in batch]
        news, drafts_each = [new + drafts for new, drafts in wishes], [drafts for _, drafts in wishes]
        before = [manager.get_block_ids(request.request_id) for request in batch]
        given = manager.allocate_slots_batch(batch, news, num_draft_tokens=drafts_each)
        after = [manager.get_block_ids(request.request_id) for request in batch]
        served, refused = given.num_served, given.refused
        self.require(served == (len(batch) if refused is None else refused), "a batch served others than it says")
        self.require(before[served:] == after[served:], "a batch changed a request that it did not serve")
        if refused is not None:
            self.counts["not now: batch"] += 1
            plan = manager.plan(batch[refused], news[refused], num_draft_tokens=drafts_each[refused])
            self.require(isinstance(plan, NotNow), f"a batch refused a request, although {plan}")
        for request, (new, drafts) in list(zip(batch, wishes, strict=True))[:served]:
            self.count(request, new, drafts)
        return refused is None

    def count(self, request: Request, new: int, drafts: int) -> None:
        """Count what was computed; if that is all that is known, accept some drafts and append the tokens."""
        request.num_computed_tokens += new
        if request.num_computed_tokens < request.num_tokens:
            return
        accepted = self.random.randint(0, drafts)
        request.append_output_token_ids([self.random.randrange(3) for _ in range(accepted + 1)])
        request.num_computed_tokens += accepted
        if request.num_output_tokens >= self.goals[request.request_id] or request.num_tokens > MAX_LEN:
            self.counts["served"] += 1
            self.running.remove(request)
            self.end(request)

    def end(self, request: Request) -> None:
        """Release a request, twice: the second time does nothing."""
        self.manager.free(request)
        free = self.manager.block_pool.num_free
        self.manager.free(request)
        self.require(self.manager.block_pool.num_free == free, "released twice")

    def settle(self) -> None:
        """End a load: all of it came, or some, or nothing."""
        load = self.loads.pop(self.random.choice(list(self.loads)))
        request, stop = load.request, load.hit + load.num_tokens
        came = self.random.choice([load.num_tokens, load.num_tokens, 0, self.random.randint(0, load.num_tokens)])
        runs = self.manager.finish_load(request, came)
        is_whole = came == load.num_tokens
        self.require(runs == (is_whole and not load.is_freed), f"{came} of {load.num_tokens} came: {runs}")
        self.counts["load freed meanwhile" if load.is_freed else "loaded" if runs else "load failed"] += 1
        if runs:
            request.num_computed_tokens = stop
            self.running.append(request)
            twin = Request("twin", [*request.all_token_ids[:stop], 0], request.block_size)
            is_aligned = stop % lcm(self.setup.full, self.setup.mamba) == 0
            found = self.manager.get_computed_blocks(twin)[1]
            self.require(found == stop or not is_aligned, f"{stop} tokens were loaded, {found} are found")
        elif not load.is_freed:
            request.num_computed_tokens = 0
            self.waiting.append(request)

    def preempt(self) -> None:
        """Release a request that runs or loads; it waits again, or is gone for good."""
        request = self.random.choice(self.holders())
        self.end(request)
        if request in self.running:
            self.running.remove(request)
        else:
            self.loads[request.request_id] = self.loads[request.request_id]._replace(is_freed=True)
        if self.random.random() < 0.3:
            self.counts["aborted"] += 1
            return
        self.counts["preempted"] += 1
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)

    def reset(self) -> None:
        """Forget all prefixes, which only an idle pool does."""
        is_idle = self.manager.block_pool.num_free == self.setup.num_blocks - 1
        self.require(self.manager.reset_prefix_cache() == is_idle, f"reset with an idle pool: {is_idle}")

    # ------------------------------------------------------------------ a run

    def step(self) -> None:
        """Take one step, of a kind that is possible now."""
        possible = {
            "arrive": len(self.waiting) < 5,
            "admit": self.waiting,
            "compute": self.running,
            "settle": self.loads,
            "preempt": self.holders(),
            "reset": True,
        }
        names = [name for name in WEIGHTS if possible[name]]
        name = self.random.choices(names, [WEIGHTS[name] for name in names])[0]
        self.counts[name] += 1
        getattr(self, name)()
        self.num_steps += 1
        if self.num_steps % CHECK_EVERY == 0:
            self.observe()

    def serve_running(self) -> None:
        """Serve all that runs or loads, oldest first; where blocks run short, the youngest waits again."""
        while self.loads or self.running:
            self.num_steps += 1
            if self.loads:
                self.settle()
                continue
            request = self.running[0]
            left = request.num_tokens - request.num_computed_tokens
            if self.ask(request, left):
                self.count(request, left, 0)
                continue
            self.require(len(self.running) > 1, "a request does not get on, although all others are released")
            last = self.running.pop()
            self.end(last)
            last.num_computed_tokens = 0
            self.waiting.append(last)
        self.observe()
        self.require(self.manager.block_pool.num_free == self.setup.num_blocks - 1, "blocks are held, but by nobody")

    def finish(self) -> None:
        """Serve all that is left, alone if it must be, and find all blocks free."""
        self.serve_running()
        while self.waiting:
            self.num_steps += 1
            self.require(self.admit(0), "a request is not admitted, although all others are released")
            self.serve_running()
        self.require(self.manager.reset_prefix_cache(), "the prefix cache is in use, but by nobody")
        self.manager.check()
        gone = self.counts["served"] + self.counts["aborted"] + self.counts["never"]
        self.require(gone == self.number, f"{self.number} requests arrived, {gone} were served or went")


def drive(
    num_steps: int, seed: int, make: Callable[[Setup], Any] = make_manager, advance: Advance | None = None
) -> tuple[int, int, Counter[str]]:
    """Take at least `num_steps` steps; return the steps, the runs, and how often what happened.

    Raises:
        DriverError: something that must hold does not.
    """
    counts: Counter[str] = Counter()
    done = num_runs = 0
    while done < num_steps:
        run = Run(seed + num_runs, make)
        try:
            for _ in range(min(LENGTH, num_steps - done)):
                run.step()
            run.finish()
        except Exception as error:
            what = str(error) if isinstance(error, DriverError) else f"{type(error).__name__}: {error}"
            again = f"--seed {seed + num_runs} --steps {min(LENGTH, num_steps - done)}"
            raise DriverError(f"step {run.num_steps}: {what} (again: {again})") from error
        num_runs, done = num_runs + 1, done + run.num_steps
        counts += run.counts
        if advance:
            advance(run.num_steps)
    return done, num_runs, counts


def main() -> int:
    """Run the command line; return the exit code: 0 all holds, 1 something does not."""
    parser = argparse.ArgumentParser(
        prog="python -m blockwright_conformance.driver", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--steps", metavar="N", type=int, default=100_000, help="steps to take (default %(default)s)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="seed of the first run (default %(default)s)")
    args = parser.parse_args()
    begin = time.perf_counter()
    try:
        with progress("driving", args.steps) as advance:
            done, runs, counts = drive(args.steps, args.seed, advance=advance)
    except DriverError as error:
        print(f"violation: {error}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - begin
    rows = [(what, f"{count:,}") for what, count in sorted(counts.items())]
    speed = f"{seconds:.1f} s, {done / seconds:,.0f} steps/s"
    footer = f"{done:,} steps in {runs:,} runs, no violation; {speed}; {build_info()}"
    print_table("Full attention and recurrent layers", ["what", "times"], rows, footer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
