"""The paths of `blockwright.paging`: allocate, append, fork, write to a shared block, free, swap.

Block size 16, sequences of about 1,000 tokens of different content, full attention, prefix caching off and on. Every
sample checks, outside the timed region, that the work was done.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.measure import Sample, now, require, since
from benchmarks.paging import runs as runs
from benchmarks.paging.sides import OursPaging, PagingSide
from benchmarks.path import PAGING, Path

TARGET = 10
"""Ratio over the peer to reach."""


def allocate(side: PagingSide, caching: bool) -> Sample:
    run = runs.Run(side, caching, [runs.LENGTH] * runs.SEQUENCES, runs.SEQUENCES * runs.PER_SEQUENCE, 1)
    manager = run.manager

    def sample() -> float:
        run.empty()
        begin = now()
        for group in run.groups:
            manager.allocate(group)
        spent = since(begin)
        require(run.held() == runs.SEQUENCES * runs.PER_SEQUENCE)
        for group in run.groups:
            run.prefilled(group)
        return spent / runs.SEQUENCES

    return sample


def append(side: PagingSide, caching: bool) -> Sample:
    run = runs.Decoding(side, caching)
    append_slots = run.manager.append_slots

    def sample() -> float:
        run.start()
        seqs = [group.seqs[0] for group in run.groups]
        spent = 0
        for token_id in run.outputs[: runs.STEPS]:
            run.advance(token_id)
            begin = now()
            for seq in seqs:
                append_slots(seq, 0)
            spent += since(begin)
        run.finish()
        return spent / (runs.STEPS * runs.BATCH)

    return sample


def step(side: PagingSide, caching: bool) -> Sample:
    run = runs.Decoding(side, caching)
    manager = run.manager

    def sample() -> float:
        run.start()
        spent = 0
        for time, token_id in enumerate(run.outputs[: runs.STEPS], start=2):
            run.advance(token_id)
            begin = now()
            for group in run.groups:
                (seq,) = group.seqs
                manager.can_append_slots(group, 0)
                manager.append_slots(seq, 0)
                manager.access_all_blocks_in_seq(seq, float(time))
                manager.get_block_table(seq)
            spent += since(begin)
        run.finish()
        return spent / (runs.STEPS * runs.BATCH)

    return sample


def fork(side: PagingSide, caching: bool) -> Sample:
    run = runs.Forking(side, caching)
    manager = run.manager

    def sample() -> float:
        parent, children = run.children()
        begin = now()
        for child in children:
            manager.fork(parent, child)
        spent = since(begin)
        table = list(manager.get_block_table(parent))
        require(all(list(manager.get_block_table(child)) == table for child in children))
        require(run.held() == runs.PER_SEQUENCE)
        run.finish(children)
        return spent / runs.SEQUENCES

    return sample


def write_shared(side: PagingSide, caching: bool) -> Sample:
    run = runs.Forking(side, caching)
    manager = run.manager

    def sample() -> float:
        parent, children = run.children()
        for child, token_id in zip(children, run.outputs, strict=False):
            manager.fork(parent, child)
            child.append(token_id)
        copies = []
        begin = now()
        for child in children:
            copies.append(manager.append_slots(child, 0))
        spent = since(begin)
        source = manager.get_block_table(parent)[-1]
        expected = [[(source, manager.get_block_table(child)[-1])] for child in children]
        require(copies == expected and run.held() == runs.PER_SEQUENCE + runs.SEQUENCES)
        run.finish(children)
        return spent / runs.SEQUENCES

    return sample


def release(side: PagingSide, caching: bool) -> Sample:
    run = runs.Run(side, caching, [runs.LENGTH] * runs.SEQUENCES, runs.SEQUENCES * runs.PER_SEQUENCE, 1)
    free = run.manager.free

    def sample() -> float:
        run.start()
        require(run.held() == runs.SEQUENCES * runs.PER_SEQUENCE)
        seqs = [group.seqs[0] for group in run.groups]
        begin = now()
        for seq in seqs:
            free(seq)
        spent = since(begin)
        require(run.held() == 0)
        return spent / runs.SEQUENCES

    return sample


def swap(side: PagingSide, caching: bool, width: int) -> Sample:
    run = runs.Swapping(side, caching, width)
    manager = run.manager

    def sample() -> float:
        group = run.group()
        begin = now()
        manager.swap_out(group)
        spent = since(begin)
        held = run.num_cpu - int(manager.get_num_free_cpu_blocks())
        # A manager that forgets sharing when it swaps holds a block for each entry.
        require(run.held() == 0 and held in (run.num_distinct, width * runs.PER_SEQUENCE))
        group.mark(side.swapped)
        begin = now()
        manager.swap_in(group)
        spent += since(begin)
        group.mark(side.running)
        require(manager.get_num_free_cpu_blocks() == run.num_cpu and run.held() == held)
        require(all(len(manager.get_block_table(seq)) == runs.PER_SEQUENCE for seq in group.seqs))
        return spent / (width * runs.PER_SEQUENCE)

    return sample


def _lines(
    name: str, title: str, unit: str, target: float | None, make: Callable[..., Sample], **more: Any
) -> list[Path]:
    return [
        Path(
            f"paging-{name}{suffix}",
            f"{title}{note}",
            unit,
            target,
            lambda caching=caching: make(OursPaging(), caching, **more),  # type: ignore[misc]
            lambda peer, caching=caching: make(peer, caching, **more),  # type: ignore[misc]
            system=PAGING,
        )
        for caching, suffix, note in ((False, "", ""), (True, "-caching", ", caching"))
    ]


def all_paths() -> list[Path]:
    return [
        *_lines("append", "append a token", "sequence", TARGET, append),
        *_lines("step", "decode step: ask, append, table, access time", "sequence", None, step),
        *_lines("fork", "fork 1,000 tokens", "fork", TARGET, fork),
        *_lines("write", "write that copies a shared block", "write", TARGET, write_shared),
        *_lines("free", "free 1,000 tokens", "sequence", TARGET, release),
        *_lines("swap", "swap out and in, 4 forked sequences", "table entry", TARGET, swap, width=runs.WIDTH),
        *_lines("swap-one", "swap out and in, one sequence", "table entry", TARGET, swap, width=1),
        *_lines("allocate", "allocate 1,000 tokens", "sequence", None, allocate),
    ]
