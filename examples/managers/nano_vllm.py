"""nano-vllm's `BlockManager`, of the fork on PyPI, under the kit: its scheduler's side of each call."""

import copy
import importlib.util
import sys
import types
from typing import Any, Self

from blockwright_conformance import Capabilities, Found, Observation

if "nanovllm" not in sys.modules:  # without the kernels that the package imports at its top
    found = importlib.util.find_spec("nanovllm")
    sys.modules["nanovllm"] = types.ModuleType("nanovllm")
    sys.modules["nanovllm"].__path__ = list(found.submodule_search_locations)
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.sequence import Sequence


def copied(seq: Sequence) -> Sequence:  # its own `__getstate__` leaves tokens out
    twin = object.__new__(Sequence)
    twin.__dict__ |= {**seq.__dict__, "token_ids": [*seq.token_ids], "block_table": [*seq.block_table]}
    return twin


class NanoAdapter:
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"preempt"}),
        features=frozenset({"caching"}),
        lengths={"block size": range(2, 1 << 20)},
        ways=frozenset({"cautious", "forgets"}),
        absent={"block size": "may_append never gives one of one token", "too long": "lengths are not checked"},
    )
    errors, stale, follows_policy = (), (), False
    manager_class = BlockManager

    def __init__(self, config: Any) -> None:  # its blocks are numbered from 0: shown as from 1
        Sequence.block_size = config.groups[0].block_size
        self.manager = self.manager_class(config.num_blocks - 1, Sequence.block_size)
        self.seqs: dict[str, Sequence] = {}

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin.manager = copy.deepcopy(self.manager)
        twin.seqs = {name: copied(seq) for name, seq in self.seqs.items()}
        return twin

    def send(self, name: str, prefix: Any) -> None:
        self.seqs[name] = Sequence(list(prefix[1]))

    def forget(self, name: str) -> None:
        self.seqs.pop(name, None)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            self.seqs[name].append_token(token)

    def find(self, name: str) -> Found:  # it has no lookup of its own: `allocate` finds and takes
        twin, seq = copy.deepcopy(self.manager), copied(self.seqs[name])
        try:
            twin.allocate(seq)
        except IndexError:  # out of blocks, behind the hit
            pass
        hit = seq.block_table[: seq.num_cached_blocks]
        return Found(seq.num_cached_tokens, (tuple(block + 1 for block in hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        seq, manager = self.seqs[name], self.manager
        begin = len(seq.block_table) or length // manager.block_size
        if not (manager.can_append if computed else manager.can_allocate)(seq):
            return None
        (manager.may_append if computed else manager.allocate)(seq)
        return (tuple(block + 1 for block in seq.block_table[begin:]),)

    def free(self, name: str) -> None:
        if self.seqs[name].block_table:
            self.manager.deallocate(self.seqs[name])

    def common_prefix(self, name: str, running: int) -> None: ...

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables = [self.seqs[name].block_table if name in self.seqs else [] for name in names]
        shown = tuple((tuple(block + 1 for block in table),) if table else None for table in tables)
        references = (0, *(block.ref_count for block in self.manager.blocks))
        return Observation(shown, references=references, free=len(self.manager.free_block_ids), kept=())

    def check(self) -> None: ...
