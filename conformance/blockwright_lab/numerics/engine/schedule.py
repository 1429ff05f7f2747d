"""What an engine is to do: the model's layers, the engine's features, and the requests that come, as plain data.

A schedule decides everything that happens, so that it can be printed, pasted into Python and run again (`script`).
"""

from dataclasses import dataclass, fields
from random import Random

from blockwright_conformance.checker.recorded import Written
from blockwright_spec.reads import Group


@dataclass(frozen=True)
class EngineConfig:
    """Features of an engine, all of them off or plain unless told otherwise."""

    max_num_seqs: int = 4  # requests that run at once
    max_num_batched_tokens: int = 16  # tokens of one step
    max_model_len: int = 40  # tokens of one request
    enable_caching: bool = True  # share prefixes
    # blocks of the pool beyond what one request of `max_model_len` needs: 0 is as tight as can be
    spare_blocks: int = 8
    align_chunks: bool = False  # end prefill chunks on block boundaries, so that recurrent states are published
    drafts: int = 0  # tokens guessed ahead of each step, at most
    guesser: str = "ngram"  # who guesses: ``"ngram"``, ``"random"``, or ``"eagle"``, the model's draft head
    declare_drafts: bool = True  # tell the manager which tokens are drafts, where it need not know
    # ``"recompute"``, or ``"swap"``: blocks go to the host where it has room, and come back
    preemption: str = "recompute"
    host_blocks: int = 32  # room on the host for swapped blocks
    load_steps: int = 1  # steps that a load takes
    store_steps: int | None = None  # steps that a store to the host takes; 0: it is done at once; None: as a load
    lose_load_every: int = 0  # every so many loads nothing, or only a part, arrives; 0: never
    offload: str = ""  # ``""``, or when blocks are stored on the host: ``"publish"``, ``"evict"``
    offload_blocks: int = 32  # room on the host for these
    # what a dropped request was scheduled for has been launched already, and runs all the same
    launch_dropped: bool = False
    own_copies: bool = False  # run the copies of evicted blocks itself, just before the step
    shelf_blocks: int = 0  # room below the host, on a shelf that outlives the engine; 0: there is none
    write: str = "back"  # when blocks go to the shelf: ``"back"``, to make room, or ``"through"``, at once
    lose_lowered_every: int = 0  # every so many blocks do not arrive there; 0: never
    byte_order: str = "<"  # of the numbers on the shelf
    overlap_steps: bool = False  # schedule a step before the results of the last one are known
    publish_on_settlement: bool = False  # with it: publish what is known to be computed
    delay_publication: bool = False  # publish a prompt after its chunk is computed, by `cache_blocks`
    trim_early: bool = False  # give back what no later token reads after each step, by `remove_skipped_blocks`
    plan_first: bool = False  # admit by `plan` and `commit` instead of `allocate_slots`
    staged: bool = False  # keep block tables apart from those of the device, and send what changed, as on a GPU
    padded: bool = False  # run the model on inputs of the largest size, as a captured graph would be
    prefix_match_unit: int = 0  # tokens at whose multiples hits may end inside a block; 0: they end with blocks
    # full_sequence_must_fit, watermark, reserved_blocks, verify_tokens: as the manager's
    full_sequence_must_fit: bool = False
    watermark: float = 0.0
    reserved_blocks: int = 0
    verify_tokens: bool = False
    readers: int = 0  # how many others read the blocks of requests that end, each for a step
    # the readers let go once more than they may, and what is still being loaded is to be stored: refused
    careless: bool = False
    # of prefixes: ``""``, the process's own; ``"fixed"``, the same keys in every run; ``"weak"``, a few keys only,
    # where the manager takes it
    hasher: str = ""

    @property
    def changed(self) -> list[str]:
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


@dataclass(frozen=True)
class Job:
    """A request to come."""

    shared: int = 0  # first tokens, which all requests of its family have
    own: int = 1  # tokens after them, drawn by `variation`: at least one
    output: int = 4  # tokens to generate
    arrival: int = 0  # the step before which it comes
    family: int = 0  # of the shared tokens
    variation: int = 0  # of the own ones; requests that agree in all of these have one prompt
    seed: int | None = None  # of its samples; None: greedy
    # salt, adapter: parts of its identity; an adapter changes what the model computes
    salt: str | None = None
    adapter: int = 0
    encoder: int = 0  # tokens that cross-attention reads
    abort: int | None = None  # steps after its arrival at which it is aborted; None: never
    forks: tuple[int, ...] = ()  # for each fork that is to be made, after how many tokens of output
    # multimodal items within the prompt: identifier, first position, length
    items: tuple[tuple[str, int, int], ...] = ()
    # tokens computed at which it is aborted between the schedule of a step and the step, so that what it was given is
    # never written; for engines that publish later only. None: never
    drop: int | None = None

    def prompt(self, vocab_size: int) -> list[int]:
        common, rest = Random(f"family {self.family}"), Random(f"own {self.variation}")
        return [common.randrange(vocab_size) for _ in range(self.shared)] + [
            rest.randrange(vocab_size) for _ in range(self.own)
        ]


@dataclass(frozen=True)
class Schedule:
    """All that happens to one engine."""

    layers: tuple[Group, ...]  # of the model, in order; equal ones may share a block table
    draft: Group | None = None  # the draft head's own layer, if there is one
    config: EngineConfig = EngineConfig()  # the engine's features
    jobs: tuple[Job, ...] = (Job(),)  # the requests
    resets: tuple[int, ...] = ()  # steps before which the prefix cache is reset, if no block is held then
    model_seed: int = 0  # of the weights
    # let the plan give layers more tokens per block, so that their pages are equal; else pages are padded, and every
    # layer keeps its block size
    grow_blocks: bool = False
    # dtype, cache_dtype: in which the model computes, and keeps keys and values (None: the same)
    dtype: str = "float64"
    cache_dtype: str | None = None

    def __repr__(self) -> str:
        return Written(None).text(self)


def script(schedule: Schedule) -> str:
    written = Written(None)
    call = f"{written.named('blockwright_lab.numerics.engine.engine', 'run')}({written.text(schedule)})"
    return "\n".join([*written.imports(), "", call])
