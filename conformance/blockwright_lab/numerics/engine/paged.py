"""A second small engine: the same model over the tables of a `SelfAttnBlockSpaceManager`, which forks and swaps.

A script says what happens, call by call. Tokens are given, not sampled; whatever is computed is compared at once with
the dense recomputation of its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

import blockwright
import blockwright.paging
from blockwright.device import KVCacheStorage, copy_blocks, empty_host_caches_like, plan_kv_cache, swap_blocks
from blockwright_spec.reads import Full, Group, Sliding

from .dense import Recomputation
from .errors import NumericsError
from .model import HybridModel
from .schedule import PagedScript
from .weights import ModelConfig

VOCAB = 12

TOLERANCE = 1e-9
"""Most that logits may differ, absolutely and relatively, in double precision."""


@dataclass
class OneStep:
    """The inputs of a step for one sequence and one group of layers."""

    block_tables: tuple[Tensor, ...]
    slot_mapping: tuple[Tensor, ...]
    positions: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    max_query_len: int
    max_seq_len: int
    num_requests: int = 1
    encoder_lens: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int32))
    state_reads: tuple[Tensor, ...] = ()
    state_writes: tuple[Tensor, ...] = ()


def step_of(table: list[int], start: int, stop: int, size: int) -> OneStep:
    """Give the inputs that compute positions start..stop-1 through a table."""
    positions = torch.arange(start, stop)
    row = torch.tensor(table, dtype=torch.int64)
    return OneStep(
        (row.to(torch.int32)[None],),
        (row[positions // size] * size + positions % size,),
        positions,
        torch.tensor([0, stop - start], dtype=torch.int32),
        torch.tensor([stop], dtype=torch.int32),
        stop - start,
        stop,
    )


@lru_cache(maxsize=8)
def model_of(window: int | None, size: int) -> HybridModel:
    """Make a model of two layers of one kind, once."""
    kind = Full() if window is None else Sliding(window)
    return HybridModel(ModelConfig((Group(kind, size),) * 2, vocab_size=VOCAB))


class PagedNumerics:
    """One block manager, a model over its tables, and sequences by name; blocks of the device are counted from 1."""

    def __init__(self, script: PagedScript, package: Any = blockwright) -> None:
        self.script, self.paging = script, package.paging
        self.model = model_of(script.window, script.block_size)
        self.dense = Recomputation(self.model)
        plan = plan_kv_cache(
            self.model.layers, 1 << 30, 64, num_blocks=1 + max(script.num_gpu, 64), max_num_batched_tokens=64
        )
        self.storage = KVCacheStorage(plan)
        self.storage.fill(None, float("nan"))
        self.host = empty_host_caches_like(list(self.storage.tensors), script.num_cpu)
        self.manager = self.paging.SelfAttnBlockSpaceManager(
            script.block_size, script.num_gpu, script.num_cpu, 0.0, script.window, script.caching
        )
        self.groups: dict[str, Any] = {}
        self.count = self.num_seqs = 0

    def run(self) -> None:
        """Make all calls.

        Raises:
            NumericsError: something computed is not what the dense recomputation says.
        """
        for name, *arguments in self.script.calls:
            getattr(self, str(name))(*arguments)
            self.count += 1
        for group in self.groups.values():
            for seq in group.seqs:
                self.manager.free(seq)
        self.manager.check()

    def arrive(self, name: str, length: int, variation: int = 0) -> None:
        """Let a sequence come with a prompt."""
        drawn = Random(variation)
        self.num_seqs += 1
        seq = self.paging.SimpleSequence(self.num_seqs, [drawn.randrange(VOCAB) for _ in range(length)])
        self.groups[name] = self.paging.SimpleSequenceGroup(name, [seq])
        cached = self.manager.get_num_cached_tokens(seq)
        self.manager.allocate(self.groups[name])
        seq.status = self.paging.SequenceStatus.RUNNING
        self.compute(name, min(cached, length - 1))

    def grow(self, name: str, tokens: int, variation: int = 0) -> None:
        """Append tokens to a sequence and compute them."""
        seq = self.groups[name].seqs[0]
        start = len(seq.token_ids)
        seq.token_ids += [Random(f"{variation} {start + at}").randrange(VOCAB) for at in range(tokens)]
        copies = self.manager.append_slots(seq, 0)
        copy_blocks(self.storage.tensors, [(source + 1, destination + 1) for source, destination in copies])
        self.compute(name, start)

    def fork(self, name: str, child: str) -> None:
        """Start another sequence on the blocks of one."""
        seq = self.groups[name].seqs[0]
        self.num_seqs += 1
        twin = seq.fork(self.num_seqs)
        self.manager.fork(seq, twin)
        self.groups[child] = self.paging.SimpleSequenceGroup(child, [twin])

    def swap_out(self, name: str) -> None:
        """Move a sequence to the host."""
        pairs = self.manager.swap_out(self.groups[name])
        swap_blocks(list(self.storage.tensors), self.host, [(source + 1, place) for source, place in pairs])
        self.groups[name].seqs[0].status = self.paging.SequenceStatus.SWAPPED

    def swap_in(self, name: str) -> None:
        """Move it back."""
        pairs = self.manager.swap_in(self.groups[name])
        swap_blocks(self.host, list(self.storage.tensors), [(place, target + 1) for place, target in pairs])
        self.groups[name].seqs[0].status = self.paging.SequenceStatus.RUNNING

    def end(self, name: str) -> None:
        self.manager.free(self.groups.pop(name).seqs[0])

    def compute(self, name: str, start: int) -> None:
        """Compute a sequence from a position on, and compare."""
        seq = self.groups[name].seqs[0]
        table = [block + 1 for block in self.manager.get_block_table(seq)]
        inputs: Any = step_of(table, start, len(seq.token_ids), self.script.block_size)
        logits = self.model.logits(self.model.forward(seq.token_ids[start:], inputs, self.storage))
        expected = self.dense.logits(seq.token_ids)[start:]
        seq.num_computed_tokens = len(seq.token_ids)
        self.manager.mark_blocks_as_computed(self.groups[name], 0)
        told = f"sequence {name}: the logits of positions {start}..{len(seq.token_ids) - 1}"
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError("NUMERICS-2", f"{told} are not finite", self.count)
        if not torch.allclose(logits, expected, rtol=TOLERANCE, atol=TOLERANCE):
            off = float((logits - expected).abs().max())
            raise NumericsError("NUMERICS-1", f"{told} are off by {off:.2g}", self.count)
