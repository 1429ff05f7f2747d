"""What an engine is to do: the model's layers, the engine's features, and the requests that come, as plain data.

A schedule decides everything that happens, so that it can be printed, pasted into Python and run again (`script`).
"""

from dataclasses import MISSING, dataclass, fields
from random import Random

from blockwright_spec.reads import Group


@dataclass(frozen=True)
class EngineConfig:
    """Features of an engine, all of them off or plain unless told otherwise.

    Attributes:
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of one step.
        max_model_len: tokens of one request.
        enable_caching: share prefixes.
        spare_blocks: blocks of the pool beyond what one request of `max_model_len` needs: 0 is as tight as can be.
        align_chunks: end prefill chunks on block boundaries, so that recurrent states are published.
        drafts: tokens guessed ahead of each step, at most.
        guesser: who guesses: ``"ngram"``, ``"random"``, or ``"eagle"``, the model's draft head.
        declare_drafts: tell the manager which tokens are drafts, where it need not know.
        preemption: ``"recompute"``, or ``"swap"``: blocks go to the host where it has room, and come back.
        host_blocks: room on the host for swapped blocks.
        load_steps: steps that a load takes.
        store_steps: steps that a store to the host takes; 0: it is done at once; None: as a load.
        lose_load_every: every so many loads nothing, or only a part, arrives; 0: never.
        offload: ``""``, or when blocks are stored on the host: ``"publish"``, ``"evict"``.
        offload_blocks: room on the host for these.
        launch_dropped: what a dropped request was scheduled for has been launched already, and runs all the same.
        own_copies: run the copies of evicted blocks itself, just before the step.
        shelf_blocks: room below the host, on a shelf that outlives the engine; 0: there is none.
        write: when blocks go to the shelf: ``"back"``, to make room, or ``"through"``, at once.
        lose_lowered_every: every so many blocks do not arrive there; 0: never.
        byte_order: of the numbers on the shelf.
        overlap_steps: schedule a step before the results of the last one are known.
        publish_on_settlement: with it: publish what is known to be computed.
        delay_publication: publish a prompt after its chunk is computed, by `cache_blocks`.
        trim_early: give back what no later token reads after each step, by `remove_skipped_blocks`.
        plan_first: admit by `plan` and `commit` instead of `allocate_slots`.
        staged: keep block tables apart from those of the device, and send what changed, as on a GPU.
        padded: run the model on inputs of the largest size, as a captured graph would be.
        full_sequence_must_fit, watermark, reserved_blocks, verify_tokens: as the manager's.
        readers: how many others read the blocks of requests that end, each for a step.
        careless: the readers let go once more than they may, and what is still being loaded is to be stored: refused.
        hasher: of prefixes: ``""``, the process's own; ``"fixed"``, the same keys in every run; ``"weak"``, a few keys
            only, where the manager takes it.
    """

    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 40
    enable_caching: bool = True
    spare_blocks: int = 8
    align_chunks: bool = False
    drafts: int = 0
    guesser: str = "ngram"
    declare_drafts: bool = True
    preemption: str = "recompute"
    host_blocks: int = 32
    load_steps: int = 1
    store_steps: int | None = None
    lose_load_every: int = 0
    offload: str = ""
    offload_blocks: int = 32
    launch_dropped: bool = False
    own_copies: bool = False
    shelf_blocks: int = 0
    write: str = "back"
    lose_lowered_every: int = 0
    byte_order: str = "<"
    overlap_steps: bool = False
    publish_on_settlement: bool = False
    delay_publication: bool = False
    trim_early: bool = False
    plan_first: bool = False
    staged: bool = False
    padded: bool = False
    full_sequence_must_fit: bool = False
    watermark: float = 0.0
    reserved_blocks: int = 0
    verify_tokens: bool = False
    readers: int = 0
    careless: bool = False
    hasher: str = ""

    @property
    def changed(self) -> list[str]:
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


@dataclass(frozen=True)
class Job:
    """A request to come.

    Attributes:
        shared: first tokens, which all requests of its family have.
        own: tokens after them, drawn by `variation`: at least one.
        output: tokens to generate.
        arrival: the step before which it comes.
        family: of the shared tokens.
        variation: of the own ones; requests that agree in all of these have one prompt.
        seed: of its samples; None: greedy.
        salt, adapter: parts of its identity; an adapter changes what the model computes.
        encoder: tokens that cross-attention reads.
        abort: steps after its arrival at which it is aborted; None: never.
        forks: for each fork that is to be made, after how many tokens of output.
        items: multimodal items within the prompt: identifier, first position, length.
        drop: tokens computed at which it is aborted between the schedule of a step and the step, so that what it was
            given is never written; for engines that publish later only. None: never.
    """

    shared: int = 0
    own: int = 1
    output: int = 4
    arrival: int = 0
    family: int = 0
    variation: int = 0
    seed: int | None = None
    salt: str | None = None
    adapter: int = 0
    encoder: int = 0
    abort: int | None = None
    forks: tuple[int, ...] = ()
    items: tuple[tuple[str, int, int], ...] = ()
    drop: int | None = None

    def prompt(self, vocab_size: int) -> list[int]:
        common, rest = Random(f"family {self.family}"), Random(f"own {self.variation}")
        return [common.randrange(vocab_size) for _ in range(self.shared)] + [
            rest.randrange(vocab_size) for _ in range(self.own)
        ]


@dataclass(frozen=True)
class Schedule:
    """All that happens to one engine.

    Attributes:
        layers: of the model, in order; equal ones may share a block table.
        draft: the draft head's own layer, if there is one.
        config: the engine's features.
        jobs: the requests.
        resets: steps before which the prefix cache is reset, if no block is held then.
        model_seed: of the weights.
        grow_blocks: let the plan give layers more tokens per block, so that their pages are equal; else pages are
            padded, and every layer keeps its block size.
        dtype, cache_dtype: in which the model computes, and keeps keys and values (None: the same).
    """

    layers: tuple[Group, ...]
    draft: Group | None = None
    config: EngineConfig = EngineConfig()
    jobs: tuple[Job, ...] = (Job(),)
    resets: tuple[int, ...] = ()
    model_seed: int = 0
    grow_blocks: bool = False
    dtype: str = "float64"
    cache_dtype: str | None = None

    def __repr__(self) -> str:
        """Show what differs from the defaults, as Python."""
        return shown(self)


def shown(value: object) -> str:
    """Show plain data as Python that makes it again, without the fields that have their default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))}{',' * (len(value) == 1)})"
    if not isinstance(value, EngineConfig | Job | Schedule):
        return repr(value)
    parts = [
        f"{each.name}={shown(getattr(value, each.name))}"
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name) != each.default
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def script(schedule: Schedule) -> str:
    """Return a schedule as a Python session that runs it."""
    return "\n".join(
        (
            "from blockwright_lab.numerics.engine.engine import run",
            "from blockwright_lab.numerics.engine.schedule import EngineConfig, Job, Schedule",
            "from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding",
            "",
            f"run({shown(schedule)})",
        )
    )
