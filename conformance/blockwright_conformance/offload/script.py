"""Counterexamples of offloading as calls: lines of Python over public names, to be pasted at a prompt."""

from collections.abc import Sequence

from blockwright_spec.offload.chain_state import Chain, Kind, chain

from .actions import Cancel, ChainAction, Compute, Land, Load, Store, Take, Touch, chain_told
from .scopes import ChainScope, TierScope
from .tier_adapter import TOKENS
from .tier_world import TierCall

HEAD = "from blockwright.offload import ARCOffloadingManager, CPUBackend, LRUOffloadingManager, OffloadChain"


def commented(lines: list[str], fault: str) -> str:
    """Join lines, and what was wrong after them."""
    return "\n".join([*lines, *(f"# {line}" for line in fault.split("; ") if line)])


def tier_script(scope: TierScope, actions: Sequence[TierCall], fault: str = "") -> str:
    """Give the calls of a path from a new manager, and what was wrong at its end; a foreign backend's on ours."""
    kind = "ARC" if scope.manager.startswith("ARC") else "LRU"
    events = "silent" not in scope.manager
    lines = [HEAD, f"manager = {kind}OffloadingManager(CPUBackend({TOKENS}, {scope.capacity}), enable_events={events})"]
    if scope.recovered:
        found = list(scope.recovered)
        lines += [f"manager.prepare_store({found})", f"manager.complete_store({found})", "manager.take_events()"]
    for name, keys, success in actions:
        more = f", {success}" if name.startswith("complete") else ""
        lines.append(f"manager.{name}({list(keys)}{more})")
    return commented(lines, fault)


def chain_script(scope: ChainScope, actions: Sequence[ChainAction], fault: str = "") -> str:
    """Give the calls of a path from a new chain, and what was wrong at its end."""
    config, state = scope.config, chain(scope.config)
    tiers = [f"LRUOffloadingManager(CPUBackend({TOKENS}, {each}), enable_events=True)" for each in config.capacities]
    options = [
        f"device_blocks_per_block={config.span}",
        f"write={'through' if config.through else 'back'!r}",
        f"reserve={list(config.reserve) or 0}",
        f"on_load={'free' if config.frees else 'keep'!r}",
        f"max_transfers={config.most}",
    ]
    lines = [HEAD, f"chain = OffloadChain([{', '.join(tiers)}], {', '.join(options)})", "jobs = []"]
    for action in actions:
        told = chain_told(state, action, scope.eager)
        lines += chain_lines(state, action, told.refusal is not None)
        lines += ["jobs += chain.take_transfers()"] if scope.eager and told.refusal is None else []
        state = told.state
    return commented(lines, fault)


def chain_lines(state: Chain, action: ChainAction, refused: bool) -> list[str]:
    """Give the lines of an action; transfers are found again by what they do."""
    match action:
        case Compute(block, key, part):
            lines = [f"# the engine writes part {part} of {key!r} into block {block} of the device"]
        case Store(keys, device):
            lines = [f"stored = chain.store({list(keys)}, {list(device)})"]
        case Load(keys, device):
            lines = [f"loaded = chain.load({list(keys)}, {list(device)})"]
        case Take():
            lines = ["jobs += chain.take_transfers()"]
        case Land(at, success):
            lines = [f"chain.finish({named(state, at)}, {success})"]
        case Cancel(at):
            lines = [f"chain.cancel({named(state, at)})"]
        case Touch(keys):
            lines = [f"chain.touch({list(keys)})"]
    return [f"{line}  # refused" for line in lines] if refused else lines


def named(state: Chain, at: int) -> str:
    """Give an expression for the chain's own name of a transfer under way."""
    if at >= len(state.transfers):
        return "-1"
    each = state.transfers[at]
    if not each.started:
        return {Kind.STORE: "stored.job_id", Kind.LOAD: "loaded"}.get(each.kind, "-1")
    alike = f"each.kind == {each.kind.name.lower()!r} and each.block_hashes == {list(each.keys)}"
    return f"[each.job_id for each in jobs if {alike}][-1]"
