"""The peer of a whole decode step: vLLM 0.33.0's manager, and the rows and slots of its worker, on the CPU.

Block tables are vLLM 0.33.0's `MultiGroupBlockTable`, executed unmodified with the real torch and numpy. Slots come
from `compute_slot_mapping` of 0.11.0, run on these tables, unmodified too: it is plain numpy, where 0.33.0 calls a
kernel that was compiled for its device. As its runner for the CPU arranges it, the device's buffers are the host's, so
nothing is copied. Nothing of it is part of this distribution.
"""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers import vllm as vllm_peer
from benchmarks.peers import vllm_offload as vllm_offload_peer
from benchmarks.peers.vllm import VllmPeer
from benchmarks.published import Published
from benchmarks.sides import Windows

TABLES = Published(
    version=vllm_peer.PUBLISHED.version,
    sha256=vllm_peer.PUBLISHED.sha256,
    folder=vllm_peer.PUBLISHED.folder,
    witness="vllm/v1/worker/block_table.py",
    prefix="vllm.v1.worker.block_table",
    modules=frozenset({"vllm.utils", "vllm.utils.math_utils", "vllm.v1.utils"}),
    foreign=frozenset({"uvloop"}),
)
"""The worker's side of the same release."""

MAPPING = replace(vllm_offload_peer.PUBLISHED, witness=TABLES.witness, prefix=TABLES.prefix, modules=frozenset())
"""The release whose slot mapping is numpy."""


class VllmStepPeer(VllmPeer):
    """vLLM's manager, request and block hasher, and its worker's block tables."""

    version = f"{TABLES.version}, slots of {MAPPING.version}"

    def __init__(self, block_size: int, tables: Any, mapping: Any) -> None:
        super().__init__(block_size)
        self._tables, self._mapping = tables, mapping

    def worker(self, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> "VllmWorker":
        manager = self.manager(num_blocks, max_model_len, windows)
        width = -(-max_model_len // self.block_size)
        groups = len(windows)
        tables = self._tables.MultiGroupBlockTable(
            max_num_reqs=num_rows,
            max_num_batched_tokens=num_rows,
            pin_memory=False,
            device=self._tables.torch.device("cpu"),
            block_sizes=[self.block_size] * groups,
            max_num_blocks=[width] * groups,
            # It maps no slots itself: its kernel is compiled for a device, and the numpy of 0.11.0 takes its place.
            slot_mapping_modes=[self._tables.SlotMappingMode.NONE] * groups,
        )
        for table in tables.block_tables:  # as its runner for the CPU does
            for buffer in (table.block_table, table.slot_mapping):
                buffer.gpu = buffer.cpu
        return VllmWorker(manager, tables, self._mapping.BlockTable.compute_slot_mapping, self._tables.np, num_rows)


class VllmWorker:
    """The calls that vLLM's scheduler and model runner make in a step, and what their arguments need.

    Left out is what the runner does besides for the same tensors: its own lists of block ids, lengths of sequences, the
    offsets of the queries, and, on a GPU, the copy of all rows.
    """

    def __init__(self, manager: Any, tables: Any, compute_slot_mapping: Any, numpy: Any, num_rows: int) -> None:
        self.manager = manager
        self.tables, self.compute_slot_mapping, self._numpy = tables, compute_slot_mapping, numpy
        self._num_computed_tokens = numpy.zeros(num_rows, dtype=numpy.int32)
        self._positions = numpy.zeros(num_rows, dtype=numpy.int64)
        self._rows = numpy.arange(num_rows, dtype=numpy.int64)
        self._query_pos = numpy.zeros(num_rows, dtype=numpy.int64)
        self._num_scheduled_tokens = numpy.ones(num_rows, dtype=numpy.int32)

    def add(self, row: int, request: Any, replaced: Any) -> None:
        self.tables.add_row(self.manager.get_block_ids(request.request_id), row)

    def schedule(self, requests: Sequence[Any]) -> Any:
        allocate_slots = self.manager.allocate_slots
        return [allocate_slots(request, 1).get_block_ids(allow_none=True) for request in requests]

    def write(self, requests: Sequence[Any], scheduled: Any) -> None:
        """Append the new block ids to their rows, commit the rows, map the slots."""
        tables, num_computed_tokens, count = self.tables, self._num_computed_tokens, len(requests)
        for row, (request, new_block_ids) in enumerate(zip(requests, scheduled, strict=True)):
            num_computed_tokens[row] = request.num_computed_tokens
            if new_block_ids is not None:
                tables.append_row(new_block_ids, row)
        tables.commit_block_table(count)
        rows = self._numpy.repeat(self._rows[:count], self._num_scheduled_tokens[:count])
        positions = self._positions[:count]
        self._numpy.add(num_computed_tokens[rows], self._query_pos[:count], out=positions)
        for table in tables.block_tables:
            self.compute_slot_mapping(table, rows, positions)

    def entries(self, group: int, row: int, begin: int, end: int) -> list[int]:
        entries: list[int] = self.tables[group].get_cpu_tensor()[row, begin:end].tolist()
        return entries

    def slots(self, group: int, count: int) -> list[int]:
        slots: list[int] = self.tables[group].slot_mapping.gpu[:count].tolist()
        return slots


def _block_table() -> Any:
    """Return the module of block tables, set up for one process without a GPU."""
    tables = importlib.import_module(TABLES.prefix)
    tables.__dict__.update(get_dcp_group=_not_initialized, get_pcp_group=_not_initialized)
    importlib.import_module("vllm.v1.utils").__dict__["PIN_MEMORY"] = False
    return tables


def _not_initialized() -> None:
    """Say, as its module of groups of processes does, that there are none."""
    raise AssertionError("context parallel group is not initialized")


def load(peer_path: Path, block_size: int = 16) -> VllmStepPeer:
    """Load vLLM's manager and block tables from the folder that `fetch_peers` filled. Raises as `Published.load` does.

    Needs torch and numpy.
    """
    tables = TABLES.load(peer_path, _block_table)
    mapping = MAPPING.load(peer_path, lambda: importlib.import_module(MAPPING.prefix))
    return vllm_peer.PUBLISHED.load(peer_path, lambda: VllmStepPeer(block_size, tables, mapping))
