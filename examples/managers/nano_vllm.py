"""nano-vllm's `BlockManager` (the fork on PyPI) under the kit: its scheduler's side of each call."""

import sys
from contextlib import suppress
from copy import deepcopy
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

from base import Adapter
from blockwright_conformance import Capabilities, Found, Observation

spec = PathFinder.find_spec("nanovllm")  # not executed: the package imports its kernels at its top
sys.modules.setdefault("nanovllm", module_from_spec(spec))  # type: ignore[arg-type]
from nanovllm.engine.block_manager import BlockManager  # noqa: E402
from nanovllm.engine.sequence import Sequence  # noqa: E402

__all__ = ["BlockManager", "NanoAdapter", "Sequence"]


class Seq(Sequence):  # type: ignore[misc]
    def __deepcopy__(self, memo: Any) -> Any:  # its own `__getstate__` leaves tokens out
        twin = object.__new__(type(self))
        twin.__dict__ |= {**vars(self), "token_ids": [*self.token_ids], "block_table": [*self.block_table]}
        return twin


class NanoAdapter(Adapter):
    manager_class = BlockManager
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"preempt"}),
        features=frozenset({"caching"}),
        lengths={"block size": range(2, 1 << 20)},
        ways=frozenset({"cautious", "forgets"}),
        absent={"block size": "may_append gives no block of one token", "too long": "lengths are not checked"},
    )

    def __init__(self, config: Any) -> None:  # its blocks are numbered from 0: shown as from 1
        super().__init__()
        Sequence.block_size = config.groups[0].block_size
        self.manager = self.manager_class(config.num_blocks - 1, Sequence.block_size)

    def send(self, name: str, prefix: Any) -> None:
        self.requests[name] = Seq(list(prefix[1]))

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            self.requests[name].append_token(token)

    def find(self, name: str) -> Found:  # it has no lookup of its own: `allocate` finds and takes
        manager, seq = deepcopy((self.manager, self.requests[name]))
        with suppress(IndexError):  # out of blocks, behind the hit
            manager.allocate(seq)
        return Found(seq.num_cached_tokens, (self.ids(seq.block_table[: seq.num_cached_blocks]),))

    def ids(self, table: list[int]) -> tuple[int, ...]:
        return tuple(block + 1 for block in table)

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        seq, manager = self.requests[name], self.manager
        begin = len(seq.block_table) or length // manager.block_size
        if not (manager.can_append if computed else manager.can_allocate)(seq):
            return None
        (manager.may_append if computed else manager.allocate)(seq)
        return (self.ids(seq.block_table[begin:]),)

    def free(self, name: str) -> None:
        if self.requests[name].block_table:
            self.manager.deallocate(self.requests[name])

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables = [self.requests[name].block_table if name in self.requests else [] for name in names]
        references = (0, *(block.ref_count for block in self.manager.blocks))
        shown = tuple((self.ids(table),) if table else None for table in tables)
        return Observation(shown, references=references, free=len(self.manager.free_block_ids), kept=())
