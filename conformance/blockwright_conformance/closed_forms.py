"""Which functions of the implementation are closed forms, what is proved of each, and which are left out, and why.

A *closed form* is a function of the bookkeeping that divides, multiplies, or takes a remainder of counts, or that, free
of loops and of writes, returns what it adds, subtracts or limits. Each is read as a formula by some theorem (`proofs`),
whole or the expressions in question, or followed by a contract (`contracts`), or listed in `NOT_PROVED` with the
reason. `unlisted` and `needless` say where the list is wrong; a test fails on both.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import blockwright

from .contracts import CONTRACTS

FOLDERS: Final = ("core", "paging", "offload/tiers", "device")

LEFT_OUT: Final = {
    "core.block_hash": "arithmetic of hashes: compared with reference values, and hashers with each other "
    "(tests/core/test_siphash.py, test_hashing.py)",
    "core.index": "the hash table's own places: compared with a dictionary (tests/core/test_pool_keys.py, "
    "test_pool_model.py), and its keys in every state of lock-step",
    "device.attention": "kernels in torch: equal to dense attention (tests/device/test_attention.py, gate `numerics`)",
    "device.copies": "moves of bytes: compared block by block (tests/device/test_copies.py)",
    "device.fused": "masks of fused kernels: equal to dense attention (tests/device/test_fused.py)",
    "device.layout": "strides of tensors: compared with the sets of addresses (tests/device/test_copies.py)",
    "device.staging": "places in one transfer: read back whole (tests/device/test_inputs_staged.py)",
    "device.states": "kernels in torch: equal to a recurrence token by token (tests/device/test_states.py)",
    "device.storage": "views of tensors: written and read back (tests/device/test_storage.py)",
}
"""Modules whose arithmetic is not bookkeeping: each with what compares it, whole."""

ADDRESS: Final = (
    "only finds the place of a record in a packed array: a wrong one gives another record, and each is compared"
)
WRITES: Final = (
    "writes state, which lock-step compares whole after every transition; the closed forms that it uses are proved"
)
ASKING: Final = "checks arguments: calls on both sides of each limit are made by scopes, by `inputs` and by tests"
SELF_CHECK: Final = "the self-check: a wrong one fails in a sound state, or lets an exhibit of the museum pass"
WORDS: Final = "words and shares for people; tests compare them with numbers worked out by hand"
COUNTS: Final = (
    "a sum or difference of two counts that are compared in every state; there is nothing to divide or to round"
)
BYTES: Final = "places in bytes and tensors: what is written is read back and compared, element by element"
"""Why a closed form is not proved."""


def listed(reason: str, module: str, *names: str) -> dict[str, str]:
    """List functions of a module with a reason."""
    return {f"blockwright.{module}:{name}": reason for name in names}


NOT_PROVED: Final[dict[str, str]] = {
    **listed(SELF_CHECK, "core.access_order", "AccessOrder.is_sound"),
    **listed(ASKING, "core.asking", "CheckedRequests._check_hit"),
    **listed(WORDS, "core.explain", "eviction_stats"),
    **listed(
        "an account of a hit, which law EXPLAIN-1 defines exactly; compared in every state of its scopes",
        "core.explain",
        "explain_group",
    ),
    **listed(COUNTS, "core.group", "GroupTables.check_hit"),
    **listed(
        "what an event says: compared with the index in random walks (tests/core/walk.py, test_pool_model.py)",
        "core.journal",
        "Journal.stored",
    ),
    **listed(
        "a share of the pool in floats, rounded down, and the least of several sizes",
        "core.manager",
        "KVCacheManager.__init__",
    ),
    **listed(WRITES, "core.manager", "KVCacheManager.allocate_slots_batch"),
    **listed(ASKING, "core.managers", "SingleTypeKVCacheManager.__init__", "SingleTypeKVCacheManager._require_hit"),
    **listed(
        COUNTS,
        "core.managers",
        "SingleTypeKVCacheManager.allocate_new_blocks",
        "SingleTypeKVCacheManager._missing_states",
    ),
    **listed(WORDS, "core.pool", "BlockPool.get_usage"),
    **listed(
        ADDRESS,
        "core.replica",
        "TableReplica.__init__",
        "TableReplica._apply",
        "TableReplica._append",
        "TableReplica._null",
        "TableReplica._replace",
        "TableReplica._check_slots",
        "TableReplica._state_index",
        "TableReplica._state_read",
        "TableReplica._fill",
        "TableReplica._fill_states",
    ),
    **listed(
        BYTES,
        "core.request",
        "_tagged",
        "_pack_list",
        "_pack_view",
        "BlockKeys.content",
        "Request.__init__",
        "Request.all_token_ids",
        "Request.token_at",
        "Request.append_output_token_ids",
        "Request.token_bytes",
        "Request._extra_keys",
        "Request.prefix_content",
    ),
    **listed(COUNTS, "core.request", "Request.num_tokens"),
    **listed(
        ADDRESS,
        "core.rows",
        "TableRows._length",
        "TableRows._set_length",
        "TableRows.block_ids",
        "TableRows.add_request",
        "TableRows._set_row",
        "TableRows._set_record",
        "TableRows._record",
        "TableRows._swap",
    ),
    **listed(ASKING, "core.rows", "TableRows._checked_row"),
    **listed(COUNTS, "core.running", "RunningRequests._is_quiet"),
    **listed(SELF_CHECK, "core.running", "RunningRequests._covered"),
    **listed(COUNTS, "core.store", "BlockStore.num_sharers"),
    **listed(WRITES, "core.store", "BlockStore.end_copies"),
    **listed(ADDRESS, "core.store", "BlockStore.find_run", "BlockStore.count_free_hits"),
    **listed(ASKING, "paging.block_table", "BlockTable.update"),
    **listed(SELF_CHECK, "paging.block_table", "BlockTable.check"),
    **listed(
        COUNTS,
        "paging.cpu_gpu",
        "CpuGpuBlockAllocator.copy_block",
        "CpuGpuBlockAllocator.clear_copy_on_writes",
        "CpuGpuBlockAllocator.num_moves",
    ),
    **listed(
        COUNTS,
        "paging.device_pool",
        "DevicePool.is_free",
        "DevicePool.is_copy_end",
        "DevicePool.time_of",
        "DevicePool.can_reset",
    ),
    **listed(BYTES, "paging.pool_allocator", "encode_extra"),
    **listed(
        COUNTS,
        "paging.pool_allocator",
        "PoolBlock.block_id",
        "PoolBlock.num_empty_slots",
        "PoolAllocator.cow_block_if_not_appendable",
        "PoolAllocator.promote_to_immutable_block",
        "PoolAllocator.get_physical_block_id",
        "PoolAllocator.all_block_ids",
        "PoolAllocator.has_id",
    ),
    **listed(WRITES, "paging.prefix_caching", "PrefixCachingBlockAllocator.settle"),
    **listed(
        "how far the ghosts reach is a choice of the policy: victims are judged legal (gate `offload`), and compared "
        "with the published algorithm (tests/offload/test_arc.py)",
        "offload.tiers.arc",
        "ARCOffloadingManager._note_entered",
    ),
    **listed(SELF_CHECK, "offload.tiers.arc", "ARCOffloadingManager.check"),
    **listed(ASKING, "offload.tiers.asking", "checked_device_ids"),
    **listed("how much room is made at a time: nobody sees it", "offload.tiers.backend", "SlotBackend.return_places"),
    **listed(ADDRESS, "offload.tiers.chain", "OffloadChain._blocks_of"),
    **listed(WORDS, "offload.tiers.keys", "shown"),
    **listed(
        "where a key lies in the hash table: seen by nobody; each key is found again in every state",
        "offload.tiers.keys",
        "spread",
        "KeyIndex._grow",
    ),
    **listed(BYTES, "device.host", "_made"),
    **listed(ASKING, "device.operands", "require_cache"),
    **listed(BYTES, "device.operands", "_addresses"),
    **listed(BYTES, "device.pages", "state_offsets"),
    **listed(COUNTS, "device.pages", "Family.grown"),
    **listed(
        "shares in floats, to choose among plans each of which is sound: LAYOUT-9 judges the choice",
        "device.plan",
        "_Memory.cost",
    ),
    **listed(WORDS, "device.plan", "_too_little", "_too_much_waste"),
    **listed(
        WORDS,
        "device.planned",
        "KVCachePlan.max_concurrency",
        "KVCachePlan.waste",
        "KVCachePlan.summary",
        "bytes_text",
    ),
    **listed(ASKING, "device.slots", "_check_slots", "check_blocks"),
    **listed(BYTES, "device.state_blocks", "StateSteps.begin", "require_state_cache"),
    **listed(ASKING, "device.step", "checked_step"),
    **listed("which positions a step reads, by `first_read`, which is proved", "device.step", "read_spans"),
}
"""The closed forms of which nothing is proved, with the reason."""


def closed_forms() -> list[str]:
    """Give the closed forms, as ``package.module:Class.function``."""
    root = Path(blockwright.__path__[0])
    return [
        f"blockwright.{module}:{name}"
        for folder in FOLDERS
        for path in sorted((root / folder).glob("*.py"))
        for module in (".".join(path.relative_to(root).with_suffix("").parts),)
        if module not in LEFT_OUT
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if is_closed_form(function)
    ]


def functions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Give the functions of a module and the methods of its classes, by their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def is_closed_form(function: ast.FunctionDef) -> bool:
    """Tell whether a function is one, by the operators in its body; annotations and text are passed over."""
    used = {type(operator) for operator in operators(function)}
    if used & {ast.FloorDiv, ast.Mod, ast.Mult, ast.RShift, ast.LShift}:
        return True
    return bool(used) and is_pure(function)


def operators(function: ast.FunctionDef) -> Iterator[ast.operator]:
    """Give the operators between numbers in a function's body."""
    for statement in function.body:
        for node in ast.walk(statement):
            match node:
                case ast.AugAssign(op=operator):
                    yield operator
                case ast.BinOp(op=operator) if isinstance(operator, COUNTING) and not is_text(node):
                    yield operator


COUNTING: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.RShift, ast.LShift)


def is_text(node: ast.BinOp) -> bool:
    """Tell whether one side is text, a list or a tuple, which are joined and repeated, or a float."""
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and not isinstance(side.value, int))
        for side in (node.left, node.right)
    )


LOOPS: Final = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def is_pure(function: ast.FunctionDef) -> bool:
    """Tell whether a function has no loop, writes to names only, and returns a value."""
    nodes = list(ast.walk(function))
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AugAssign | ast.AnnAssign)]
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    return returns and all(isinstance(t, ast.Name) for t in targets) and not any(isinstance(n, LOOPS) for n in nodes)


@cache
def proved() -> frozenset[str]:
    """Give the functions that theorems read, by reading all of them; needs z3."""
    from . import symbolic
    from .proofs import theorems

    symbolic.READ.clear()
    count = sum(1 for _ in theorems())
    assert count
    return frozenset(symbolic.READ)


def contracted() -> frozenset[str]:
    """Give the functions that contracts follow."""
    return frozenset(name for each in CONTRACTS for name in each.about)


def unlisted() -> list[str]:
    """Give the closed forms of which nothing is proved, and which are not listed."""
    known = proved() | contracted() | frozenset(NOT_PROVED)
    return [name for name in closed_forms() if name not in known]


def needless() -> list[str]:
    """Give what is listed without need: what is proved, and what is no closed form, or is not there any more."""
    forms, known = frozenset(closed_forms()), proved() | contracted()
    return sorted(name for name in NOT_PROVED if name not in forms or name in known)
