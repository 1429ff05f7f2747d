"""Small worlds of a worker's rows: their limits, their groups, the rows on a package, and what is told to them."""

from types import ModuleType, SimpleNamespace
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from .call_trials import spec_of
from .replica_model import PlainReplica, Shape, Told

ROWS, BLOCKS, TOKENS, LENGTH, ENCODER = 4, 40, 16, 12, 5
"""Limits of the worlds: rows, blocks of the pool, tokens of a step and of a request, tokens of an encoder."""

Group = tuple[str, int]
WORLDS: dict[str, tuple[tuple[Group, ...], bool]] = {
    "tokens": ((("full", 3), ("sliding", 1), ("cross", 2)), True),
    "states": ((("mamba +2", 2), ("full", 4), ("mamba", 3)), True),
    "one state": ((("full", 2), ("mamba +1", 3)), False),
}
"""Groups, each by kind and block size, and whether the manager caches."""


def shapes_of(groups: tuple[Group, ...], caching: bool, length: int = LENGTH) -> list[Shape]:
    """Give the shapes of groups."""
    found: list[Shape] = []
    for kind, size in groups:
        tokens = ENCODER if kind == "cross" else length
        if kind.startswith("mamba"):
            drafts = int(kind.removeprefix("mamba").strip(" +") or 0)
            found.append(Shape(size, -(-tokens // size) if caching else 1, drafts, "states" if caching else "state"))
        else:
            found.append(Shape(size, -(-tokens // size), 0, "encoder" if kind == "cross" else "slots"))
    return found


def replica_of(package: ModuleType, groups: tuple[Group, ...], caching: bool, keeps: bool, length: int = LENGTH) -> Any:
    """Give a worker's rows, on the package."""
    layers = [package.KVCacheGroupSpec([f"layer {at}"], spec_of(package, *each)) for at, each in enumerate(groups)]
    config = package.KVCacheConfig(num_blocks=BLOCKS, kv_cache_groups=layers)
    return package.worker.replica.TableReplica(
        config, max_num_requests=ROWS, max_num_tokens=TOKENS, max_model_len=length, max_encoder_len=ENCODER,
        enable_caching=caching, keep_changes=keeps,
    )  # fmt: skip


def plain_of(shapes: list[Shape], length: int = LENGTH) -> PlainReplica:
    """Give the model of empty rows."""
    return PlainReplica(shapes, [None] * ROWS, BLOCKS, TOKENS, length)


def packed(told: Told) -> Any:
    """Give a batch as the manager tells it: packed buffers, and where each request's and group's part ends."""
    found: dict[str, Any] = {"num_served": told.served}
    for items, ends, lists in (
        ("new_block_ids", "new_block_offsets", told.new),
        ("nulled_entries", "nulled_offsets", told.nulled),
    ):
        flat, stops = [], [0]
        for each in (part for parts in lists for part in parts):
            flat += each
            stops.append(len(flat))
        found |= {items: vec[i32](flat), ends: vec[i32](stops)}
    found["replaced_entries"] = vec[i32]([number for each in told.replaced for number in each])
    if told.number:
        found |= {"number": told.number, "request_ids": told.names}
    return SimpleNamespace(**found)


def seen(replica: Any, shapes: list[Shape], encoder: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Give the words and counts of the last step, from where the module says that they lie."""
    words, counts, tokens, requests = replica.words, replica.counts, replica.num_tokens, replica.num_requests
    places = [at * TOKENS for at in range(1 + sum(each.holds == "slots" for each in shapes))]
    lies = [(0, requests + 1)] + [(at * ROWS + 1, requests) for at in (1, 2, 3)]
    end = 4 * ROWS + 1
    for shape in shapes:
        if shape.recurrent:
            lies += [(end, requests), (end + ROWS, requests * (1 + shape.drafts))]
            end += (2 + shape.drafts) * ROWS
    if (len(words), len(counts)) != (len(places) * TOKENS, end):
        return [[len(words)]], [[len(counts)]]
    numbers = [[int(each) for each in counts[at : at + size]] for at, size in lies]
    if not encoder:
        numbers[3] = [0] * requests
    return [[int(each) for each in words[at : at + tokens]] for at in places], numbers
