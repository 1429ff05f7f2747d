"""Property: a wrong type in any argument of any public call raises `InvalidArgumentError` that names the argument.

How: the public calls are found in the sources: each function and class that a package exports, with the methods that
the class has, as long as every parameter is of a public type. Each argument in turn gets values that its annotation
excludes, while the others get values that theirs admit. A new public call is covered by itself; a new type needs a
line in `FITTING`, and a compiled class with methods one in `MADE`. An integer of another library must be taken
wherever an `int` is. Constructors show their parameters to `help`.

Not covered: values outside a documented range (test_integers.py), and fields that are assigned
to; methods of base classes other than in the classes derived from them (`UNMADE`).
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from array import array
from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.core.support import SHA256, chunked, cross, full, group_of, mamba, manager_of, sliding

import blockwright
from blockwright import BlockPool, Request, append_output_token_ids_batch, offload, paging
from blockwright.errors import InvalidArgumentError
from blockwright.events import AllBlocksCleared
from blockwright.observe import Fact, PrefixIndex
from blockwright.policies import Lru
from blockwright.replay import Trace
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import OffloadOptions

PACKAGES = ["blockwright", "blockwright.paging", "blockwright.offload", "blockwright.observe", "blockwright.replay"]
PACKAGES += ["blockwright.device"] if importlib.util.find_spec("torch") else []
PACKAGES += ["blockwright.observe.timeline"]
PACKAGES += ["blockwright.observe.metrics"] if importlib.util.find_spec("prometheus_client") else []
if importlib.util.find_spec("msgspec") and importlib.util.find_spec("zmq"):
    PACKAGES += [f"blockwright.observe.{name}" for name in ("wire", "publisher", "subscriber")]
for package in PACKAGES:
    importlib.import_module(package)


class Call(NamedTuple):
    """A public function, or a method of a class; what it is called, its parameters with their annotations."""

    owner: type | None
    name: str
    annotations: dict[str, str]
    needed: list[str]

    def __str__(self) -> str:
        return ".".join([*([self.owner.__name__] if self.owner else []), self.name])


@cache
def tree_of(module: str) -> ast.Module:
    path = Path(blockwright.__file__).parents[1].joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def described(owner: type | None, node: ast.FunctionDef) -> Call:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = {each.arg: ast.unparse(each.annotation) for each in every if each.annotation}
    positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    without = positional[: len(positional) - len(node.args.defaults)]
    without += [
        each.arg for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if not default
    ]
    return Call(owner, node.name, annotations, [name for name in without if name in annotations])


def calls_of(found: type) -> Iterator[Call]:
    """Yield the methods that a class has, its own and inherited ones, each once."""
    seen: set[str] = set()
    for base in inspect.getmro(found):
        if not base.__module__.startswith("blockwright"):
            continue
        node = next(
            each
            for each in tree_of(base.__module__).body
            if isinstance(each, ast.ClassDef) and each.name == base.__name__
        )
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name not in seen:
                seen.add(each.name)
                if each.args.vararg or each.args.kwarg:  # of any names: such a call has no door
                    continue
                is_read = any(
                    ast.unparse(one).split(".")[-1] in ("property", "setter", "overload") for one in each.decorator_list
                )
                if (not each.name.startswith("_") or each.name == "__init__") and not is_read:
                    yield described(found, each)


def public_calls() -> Iterator[Call]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if not getattr(found, "__module__", "").startswith("blockwright"):
                continue
            if isinstance(found, type) and not issubclass(found, (BaseException, tuple)):
                yield from calls_of(found)
            elif callable(found) and not isinstance(found, type):
                nodes = tree_of(found.__module__).body
                yield from (
                    described(None, each) for each in nodes if isinstance(each, ast.FunctionDef) and each.name == name
                )


# ---------------------------------------------------------------------- values that fit and values that do not


def prefix_caching() -> Any:
    return paging.PrefixCachingBlockAllocator(num_blocks=9, block_size=4)


def devices() -> Any:
    return paging.CpuGpuBlockAllocator.create("naive", 9, 9, 4)


def allocated() -> Any:
    table = paging.BlockTable(4, devices())
    table.allocate([1, 2])
    return table


def input_batch() -> Any:
    from blockwright.device import InputBatch

    return InputBatch(FITTING["KVCacheConfig"](), max_num_requests=2, max_num_tokens=9, max_model_len=60)


class First:
    """An eviction policy."""

    def choose(self, candidates: Any) -> Any:
        return candidates[0]


MADE: dict[str, Callable[[], Any]] = {
    "BlockPool": lambda: BlockPool(9, explain_evictions=True),
    "KVCacheManager": lambda: manager_of(full(), 9, 60),
    "Journal": lambda: manager_of(full(), 9, 60).start_journal(9),
    "JournalReader": lambda: manager_of(full(), 9, 60).start_journal(9).reader(),
    "Request": lambda: Request("r", [1, 2, 3], 4),
    "KVCacheBlocks": lambda: manager_of(full(), 9, 60).create_empty_block_list(),
    "KVCacheBlock": lambda: BlockPool(9).get_new_blocks(1)[0],
    "FullAttentionManager": lambda: group_of(full(), 9),
    "SlidingWindowManager": lambda: group_of(sliding(), 9),
    "ChunkedLocalAttentionManager": lambda: group_of(chunked(), 9),
    "MambaManager": lambda: group_of(mamba(), 9),
    "CrossAttentionManager": lambda: group_of(cross(), 9),
    "PrefixIndex": PrefixIndex,
    "Sha256Hasher": lambda: SHA256,
    "SipHasher": blockwright.SipHasher,
    "FunctionHasher": lambda: blockwright.FunctionHasher(lambda parent, data: bytes(16)),
    "GivenHasher": lambda: blockwright.GivenHasher([bytes(16)]),
    "NaiveBlockAllocator": lambda: paging.NaiveBlockAllocator(9, 4),
    "PrefixCachingBlockAllocator": prefix_caching,
    "CpuGpuBlockAllocator": devices,
    "NaiveBlock": lambda: paging.NaiveBlockAllocator(9, 4).allocate_mutable_block(None),
    "PrefixCachingBlock": lambda: prefix_caching().allocate_mutable_block(None),
    "NullBlock": lambda: devices().allocate_or_get_null_block(),
    "BlockTable": allocated,
    "InputBatch": input_batch,
    "SelfAttnBlockSpaceManager": lambda: paging.SelfAttnBlockSpaceManager(4, 9, 9),
    "SimpleSequence": lambda: paging.SimpleSequence(1, [1, 2]),
    "SimpleSequenceGroup": lambda: paging.SimpleSequenceGroup("g", [paging.SimpleSequence(1, [1, 2])]),
    "CPUBackend": lambda: offload.CPUBackend(4, 9),
    "SlotBackend": lambda: offload.SlotBackend(4, "X", 9),
    "LRUOffloadingManager": lambda: offload.LRUOffloadingManager(offload.CPUBackend(4, 9)),
    "ARCOffloadingManager": lambda: offload.ARCOffloadingManager(offload.CPUBackend(4, 9)),
    "OffloadChain": lambda: offload.OffloadChain([offload.LRUOffloadingManager(offload.CPUBackend(4, 9))]),
}
"""A class of the compiled build, and how it is made. Others are made without a constructor, since the door is first."""

UNMADE = {
    *("BlockHasher", "Candidates", "EvictionOrder", "EvictionPolicy", "Plan", "SingleTypeKVCacheManager"),
    *("Block", "BlockAllocator", "DeviceAwareBlockAllocator", "Sequence", "SequenceGroup"),
    *("Backend", "OffloadingManager", "OffloadingHandler", "ByteStore", "DiskBackend", "SharedStoreManager"),
    *("Fits", "Never", "NotNow", "BatchAllocation"),
}
"""Base classes, whose methods are those of the classes made here, and results, which no caller makes."""

FITTING: dict[str, Callable[[], Any]] = {
    "int": lambda: 1,
    "float": lambda: 0.5,
    "bool": lambda: True,
    "str": lambda: "x",
    "bytes": lambda: b"x" * 16,
    "object": lambda: [1],
    "Any": object,
    "Hashable": lambda: "x",
    "SupportsIndex": lambda: 1,
    "Tokens": lambda: [1],
    "Pairs": list,
    "MultiModalItem": lambda: blockwright.MultiModalItem("i", 0, 1),
    "EvictionPolicy": First,
    "BlockHint": offload.BlockHint,
    "Device": lambda: paging.Device.GPU,
    "SequenceStatus": lambda: paging.SequenceStatus.RUNNING,
    "Block": MADE["NaiveBlock"],
    "BlockStatus": lambda: offload.CPUBackend(4, 9).allocate_blocks([b"x"])[0],
    "KVCacheSpec": full,
    "AttentionSpec": full,
    "KVCacheConfig": lambda: manager_of(full(), 9, 60).kv_cache_config,
    "Plan": lambda: manager_of(full(), 9, 60).plan(Request("r", [1], 4), 1),
    "BlockHasher": lambda: SHA256,
    "Sequence": MADE["SimpleSequence"],
    "SequenceGroup": MADE["SimpleSequenceGroup"],
    "DeviceAwareBlockAllocator": devices,
    "BlockAllocator": MADE["NaiveBlockAllocator"],
    "Backend": MADE["CPUBackend"],
    "OffloadingManager": MADE["LRUOffloadingManager"],
    "Keeping": lambda: Keeping("lru", Lru),
    "OffloadOptions": lambda: OffloadOptions(9),
    "Trace": lambda: Trace("t", "x", (), 0.0),
    "Path": Path,
    "Fact": lambda: Fact(0.0, "admit"),
    "KVCacheEvent": AllBlocksCleared,
    "TierEvent": lambda: offload.OffloadingEvent([b"x"], 1, "CPU", False),
    **MADE,
}
for package in PACKAGES:
    for exported, value in ((each, getattr(sys.modules[package], each)) for each in sys.modules[package].__all__):
        if isinstance(value, type) and not issubclass(value, (BaseException, tuple)):
            FITTING.setdefault(exported, partial(value.__new__, value))
if "blockwright.device" in PACKAGES:
    import torch

    FITTING |= dict.fromkeys(("torch.Tensor", "Caches", "C"), lambda: torch.zeros(9, 4))
"""A value of each public type; by default without a constructor. A call with a type that is not here is not public."""

PASSED_ON = {
    ("BlockTable.get_unseen_token_ids", "ids"),
    ("CPUBackend.get_load_store_spec", "block_hashes"),
    ("SlotBackend.get_load_store_spec", "block_hashes"),
}
"""Lists whose items the call does not read."""

INTERNAL = {"i64", "i32", "vec"}

BARE = {"Tensors", "Caches", "Pairs", "Copies", "C", "Views"}
"""Types of data in memory, which the calls of `blockwright.device` describe in errors of their own."""

ODD: list[Any] = [None, 1.5, "odd", b"odd", 7, True, [object()], {object(): object()}, object()]
"""One of each kind of value that somebody might pass by mistake."""


def parts_of(annotation: str) -> list[str]:
    return [ast.unparse(each) for each in union(ast.parse(annotation, mode="eval").body)]


def union(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from union(node.left)
        yield from union(node.right)
    else:
        yield node


def inner(annotation: str) -> list[str]:
    """Return what the items of a container are."""
    node = ast.parse(annotation, mode="eval").body
    if not isinstance(node, ast.Subscript):
        return []
    return [ast.unparse(each) for each in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]


CONTAINERS = ("list", "Sequence", "Iterable", "Collection")


def is_known(annotation: str) -> bool:
    if annotation in BARE or annotation.startswith("Callable"):
        return True
    if annotation.split("[")[0] in (*CONTAINERS, "Mapping") and "[" in annotation:
        return all(is_known(each) for each in inner(annotation))
    return all(part in FITTING or part == "None" for part in parts_of(annotation)) or (
        len(parts_of(annotation)) > 1 and all(is_known(part) for part in parts_of(annotation))
    )


def fitting(annotation: str) -> Any:
    first = parts_of(annotation)[0]
    if first.startswith("Callable"):
        return lambda *_: 0.0
    if first.startswith("Mapping"):
        return {}
    if "[" in first:
        return [fitting(each) for each in inner(first) if each != "Any"]
    return FITTING.get(first, object)()


def admits(annotation: str, value: Any) -> bool:
    """Return whether an annotation admits a value: what this test thinks, without asking the product."""
    return any(admits_one(part, value) for part in parts_of(annotation))


def admits_one(part: str, value: Any) -> bool:
    if part in BARE or part in ("object", "Any"):
        return True
    if part.startswith("Callable"):
        return callable(value)
    if part == "None":
        return value is None
    kind = {"int": int, "str": str, "bytes": bytes, "bool": bool}.get(part)
    if kind is not None:
        return type(value) is kind
    if part == "float":
        return type(value) in (int, float)
    if part == "Hashable":
        return isinstance(value, Hashable)
    if part == "SupportsIndex":
        return type(value) is int
    if part.startswith("Mapping"):
        return isinstance(value, dict) and all(
            admits(*pair) for each in value.items() for pair in zip(inner(part), each, strict=True)
        )
    if "[" in part:
        return type(value) in (list, tuple) and all(admits(inner(part)[0], each) for each in value)
    kind = type(FITTING[part]())
    return not getattr(kind, "_is_protocol", False) and isinstance(value, kind)


CALLS = {
    str(call): call for call in public_calls() if call.annotations and all(map(is_known, call.annotations.values()))
}


def object_of(kind: Any) -> Any:
    return kind.__new__(kind)


def made(call: Call) -> Callable[..., Any]:
    if call.owner is None:
        package = next(each for each in PACKAGES if call.name in sys.modules[each].__all__)
        return getattr(sys.modules[package], call.name)  # type: ignore[no-any-return]
    if call.name == "__init__":
        return call.owner
    found = inspect.getattr_static(call.owner, call.name)
    if isinstance(found, (staticmethod, classmethod)) or not inspect.isroutine(found) or call.owner.__name__ in UNMADE:
        return getattr(call.owner, call.name)  # type: ignore[no-any-return]
    maker = MADE.get(call.owner.__name__, partial(object_of, call.owner))
    return getattr(maker(), call.name)  # type: ignore[no-any-return]


TESTED = [name for name, call in CALLS.items() if not (call.owner and call.owner.__name__ in UNMADE)]


def test_public_calls_are_found() -> None:
    assert {"KVCacheManager.allocate_slots", "Request.__init__", "BlockPool.touch", "siphash128"} <= set(TESTED)
    assert {"BlockTable.allocate", "OffloadChain.load", "EventStream.since", "replay"} <= set(TESTED)


@pytest.mark.parametrize("name", TESTED)
def test_a_wrong_type_is_refused(name: str) -> None:
    call = CALLS[name]
    for parameter, annotation in call.annotations.items():
        for value in ODD:
            if admits(annotation, value) or ((name, parameter) in PASSED_ON and type(value) is list):
                continue
            others = {each: fitting(call.annotations[each]) for each in call.needed if each != parameter}
            function = made(call)
            with pytest.raises(InvalidArgumentError) as caught:
                function(**{**others, parameter: value})
            said = re.sub(r"(?<=h)es$|s$", "", parameter)  # an item is named by itself: one of its requests, a hash
            assert str(caught.value).startswith((parameter, said)), f"{parameter}={value!r}: {caught.value}"


class OtherInteger:
    """An integer of another library."""

    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "name", [name for name in TESTED if "int" in " ".join(CALLS[name].annotations.values()).split()]
)
def test_integers_of_other_libraries_are_integers(name: str) -> None:
    call = CALLS[name]
    for parameter, annotation in call.annotations.items():
        if "int" in parts_of(annotation):
            others = {each: fitting(call.annotations[each]) for each in call.needed if each != parameter}
            try:
                made(call)(**{**others, parameter: OtherInteger()})
            except Exception as error:  # the other arguments are only of the right types
                refused = str(error)
            else:
                refused = ""
            assert "OtherInteger" not in refused


@pytest.mark.parametrize("name", sorted(name for name in TESTED if name.endswith(".__init__")))
def test_constructors_show_their_parameters(name: str) -> None:
    call = CALLS[name]
    assert call.owner
    for shown in (call.owner, call.owner.__init__):  # type: ignore[misc]
        assert [each for each in inspect.signature(shown).parameters if each != "self"] == list(call.annotations)
    if not inspect.isfunction(call.owner.__init__):  # type: ignore[misc]
        said = call.owner.__init__.__doc__ or ""  # type: ignore[misc]
        assert all(f"    {each}: {annotation}" in said for each, annotation in call.annotations.items())


def test_tokens_pass_by_their_type_once_one_was_admitted() -> None:
    numpy = pytest.importorskip("numpy")
    tokens = [array("q", [5]), numpy.array([6]), numpy.array(7), numpy.int64(8), (9,), [10], array("i", [11, 12]), 13]
    request = Request("r", [1])
    for each in tokens + tokens[::-1] + tokens:
        request.append_output_token_ids(each)
    once = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert list(request.output_token_ids) == [*once, 13, 11, 12, 10, 9, 8, 7, 6, 5, *once]
    wrong: list[Any] = [numpy.array([[1]]), numpy.array([1.5]), numpy.array(1.5), array("d", [1]), (1.5,), "12", {1: 2}]
    for each in wrong + wrong[::-1]:
        with pytest.raises(InvalidArgumentError, match="token_ids"):
            request.append_output_token_ids(each)
    append_output_token_ids_batch((request,), array("q", [1]))
    for given in ((None,), [None], (request, None)):
        with pytest.raises(InvalidArgumentError, match="request"):
            append_output_token_ids_batch(given, array("q", [1]))  # type: ignore[arg-type]
    assert request.num_tokens == 1 + 3 * len(once) + 1
