"""Counterexamples as calls: lines of Python over Blockwright's public names, to be pasted at a prompt.

A line ends with what the specification expects of it. A manager of another make gets the same trace: the names are
those that its adapter stands for.
"""

from collections.abc import Callable, Sequence
from typing import Any

from blockwright_spec.manager.outcomes import Publication, Reason, Step, When
from blockwright_spec.manager.state import Absent, Config, Running, State, Waiting, initial
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Prefix, Sliding

from .actions import (
    Action,
    Admit,
    AdmitHeld,
    Append,
    Find,
    FinishLoad,
    Fork,
    Grow,
    GrowEach,
    LateHit,
    Preempt,
    Publish,
    Release,
    Reset,
    Settle,
    Start,
    TakeCopies,
    Told,
    Trim,
    WrongHit,
    WrongStep,
    computed_of,
    meaning,
    step_of,
)
from .blockwright import EXTRAS, MORE, hash_unit
from .lockstep import OTHER, name_of

IMPORTS = """\
from blockwright import (
    ChunkedLocalAttentionSpec, CrossAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager,
    MambaSpec, Request, SlidingWindowSpec,
)
"""


def script(config: Config, slots: int, actions: Sequence[Action], fault: str = "") -> str:
    """Give the calls of a path from a new manager, and what was wrong at its end."""
    state, lines = initial(config, slots), [IMPORTS + constructor(config)]
    for action in actions:
        told = meaning(state, action)
        lines += LINES[type(action)](state, action, told)
        state = told.state
    return "\n".join([*lines, *(f"# {line}" for line in fault.split("; ") if line)])


def constructor(config: Config) -> str:
    """Give the lines that make the manager."""
    specs = ", ".join(declaration(group.kind, group.block_size) for group in config.groups)
    options = "" if config.caching else ", enable_caching=False"
    options += ", use_eagle=True" if config.eagle else ""
    options += ", overlap_steps=True" if config.overlaps else ""
    options += ", publish_on_settlement=True" if config.settles else ""
    options += f", watermark={config.watermark / config.num_blocks!r}" if config.watermark else ""
    return (
        f"specs = [{specs}]\n"
        'groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]\n'
        f"config = KVCacheConfig(num_blocks={config.num_blocks}, kv_cache_groups=groups)\n"
        f"manager = KVCacheManager(config, max_model_len={config.max_model_len}{options})"
    )


def declaration(kind: Kind, block_size: int) -> str:
    """Give the expression that declares a layer."""
    sizes = f'block_size={block_size}, num_kv_heads=1, head_size=1, dtype="float32"'
    match kind:
        case Full():
            return f"FullAttentionSpec({sizes})"
        case Sliding(window):
            return f"SlidingWindowSpec({sizes}, sliding_window={window})"
        case Chunked(chunk):
            return f"ChunkedLocalAttentionSpec({sizes}, attention_chunk_size={chunk})"
        case Mamba(drafts):
            states = f", num_speculative_blocks={drafts}" if drafts else ""
            return f'MambaSpec(block_size={block_size}, shapes=((1,),), dtypes=("float32",){states})'
        case Cross():
            return f"CrossAttentionSpec({sizes})"


def expects(told: Told) -> str:
    """Give the comment that says what the specification expects."""
    if told.refusal is None:
        return f"  # new blocks {told.steps[-1].new}" if told.steps else ""
    when, words = told.refusal.reason.value
    wrong = when is When.INVALID or told.refusal.reason is Reason.TOO_LONG
    return f"  # {'an error' if wrong else 'refused'}: {words}"


def request(state: State, name: str, prefix: Prefix) -> str:
    """Give the line that makes a request."""
    extra: Any = prefix[0]
    keys = "".join(f', {key}="{value}"' for key, value in EXTRAS[extra].items())
    return f'{name} = Request("{name}", {list(prefix[1])}, block_size={hash_unit(state.config)}{keys})'


def sending(state: State, slot: int, prefix: Prefix) -> list[str]:
    """Give the line that makes a request, if it is not there."""
    return [request(state, name_of(slot), prefix)] if isinstance(state.requests[slot], Absent) else []


def looking(name: str) -> str:
    """Give the line that looks a request up; the hit keeps the request's name."""
    return f"hit_{name}, length_{name} = manager.get_computed_blocks({name})"


def call(name: str, step: Step, hit: str, told: Told, planned: bool = False) -> str:
    """Give the line that asks slots; a step that was planned is planned in the line before."""
    more = f", num_lookahead_tokens={step.lookahead}" if step.lookahead else ""
    more += ", delay_cache_blocks=True" if step.publication is Publication.LATER else ""
    more += "".join(f", {keyword}={getattr(step, field)}" for keyword, field in MORE if getattr(step, field))
    asked = f"({name}, {step.new}{hit}{more})"
    if not planned:
        return f"manager.allocate_slots{asked}{expects(told)}"
    return f"plan = manager.plan{asked}{expects(told)}" + ("" if told.refusal else "\nmanager.commit(plan)")


def counting(slot: int, told: Told) -> list[str]:
    """Give the line by which the engine counts what was computed."""
    after = told.state.requests[slot]
    if told.refusal or not isinstance(after, Running):
        return []
    return [f"{name_of(slot)}.num_computed_tokens = {computed_of(told.state, slot)}"]


def of_admit(state: State, action: Admit, told: Told) -> list[str]:
    """Give the lines of an admission."""
    name = name_of(action.slot)
    hit = f", length_{name}, hit_{name}" if action.asked else ""
    return [
        *sending(state, action.slot, action.prefix),
        *([looking(name)] if action.asked else []),
        call(name, step_of(action), hit, told, action.planned),
        *counting(action.slot, told),
    ]


def of_find(state: State, action: Find, told: Told) -> list[str]:
    """Give the lines of a lookup."""
    return [*sending(state, action.slot, action.prefix), looking(name_of(action.slot))]


def of_admit_held(state: State, action: AdmitHeld, told: Told) -> list[str]:
    """Give the lines of an admission with an earlier hit."""
    name, held = name_of(action.slot), state.requests[action.slot]
    hit = f", length_{name}, hit_{name}" if isinstance(held, Waiting) and held.hit.length else ""
    return [call(name, step_of(action), hit, told), *counting(action.slot, told)]


def of_grow(state: State, action: Grow, told: Told) -> list[str]:
    """Give the lines of a step."""
    line = call(name_of(action.slot), step_of(action), "", told, action.planned)
    return [line, *counting(action.slot, told)]


def of_grow_each(state: State, action: GrowEach, told: Told) -> list[str]:
    """Give the lines of a step of several requests."""
    names = ", ".join(name_of(slot) for slot, _ in action.asks)
    news = [new for _, new in action.asks]
    lines = [f"manager.allocate_slots_batch([{names}], {news}, {action.lookahead}){expects(told)}"]
    for slot, _ in action.asks[: len(told.steps)]:
        lines.append(f"{name_of(slot)}.num_computed_tokens = {computed_of(told.state, slot)}")
    return lines


def of_append(state: State, action: Append, told: Told) -> list[str]:
    """Give the lines of an output."""
    return [f"{name_of(action.slot)}.append_output_token_ids({list(action.tokens)})", *counting(action.slot, told)]


def of_release(state: State, action: Release, told: Told) -> list[str]:
    """Give the lines of a release."""
    return [*sending(state, action.slot, (0, (0,))), f"manager.free({name_of(action.slot)})"]


def of_preempt(state: State, action: Preempt, told: Told) -> list[str]:
    """Give the lines of a preemption."""
    name = name_of(action.slot)
    return [f"manager.free({name})", f"{name}.num_computed_tokens = 0"]


def of_fork(state: State, action: Fork, told: Told) -> list[str]:
    """Give the lines of a fork: a child with the parent's tokens is made by the parent."""
    name, child, one = name_of(action.slot), name_of(action.child), state.requests[action.slot]
    lines = sending(state, action.slot, (0, (0,)))
    if isinstance(state.requests[action.child], Absent):
        same = isinstance(one, Running) and one.prefix == action.prefix
        lines.append(f'{child} = {name}.fork("{child}")' if same else request(state, child, action.prefix))
        lines += [] if same else [f"{child}.num_computed_tokens = {name}.num_computed_tokens"]
    return [*lines, f"manager.fork({name}, {child}){expects(told)}"]


def of_wrong_step(state: State, action: WrongStep, told: Told) -> list[str]:
    """Give the lines of a step with wrong counts."""
    name = name_of(action.slot)
    lines = [] if isinstance(state.requests[action.slot], Running) else [request(state, name, action.prefix)]
    claim = f"{name}.num_computed_tokens = {action.computed}"
    return [*lines, claim, call(name, step_of(action), "", told)]


def of_wrong_hit(state: State, action: WrongHit, told: Told) -> list[str]:
    """Give the lines of an admission with a wrong hit."""
    name, new = name_of(action.slot), len(action.prefix[1]) - action.claimed
    return [
        request(state, OTHER, action.other),
        looking(OTHER),
        request(state, name, action.prefix),
        call(name, Step(new), f", {action.claimed}, hit_{OTHER}", told),
    ]


def of_late_hit(state: State, action: LateHit, told: Told) -> list[str]:
    """Give the lines of a hit for a running request."""
    name = name_of(action.slot)
    return [
        request(state, OTHER, action.prefix),
        looking(OTHER),
        call(name, Step(1), f", length_{OTHER}, hit_{OTHER}", told),
    ]


def of_settle(state: State, action: Settle, told: Told) -> list[str]:
    """Give the lines of a settlement: requests whose drafts were rejected count less."""
    rejected = {name_of(slot): count for slot, count in action.rejected}
    step = "manager.steps_in_flight[0]" if state.flights else "1"
    line = f"manager.settle_step({step}{f', {rejected}' if rejected else ''}){expects(told)}"
    return [line, *(line for slot, _ in action.rejected for line in counting(slot, told))]


def of_finish_load(state: State, action: FinishLoad, told: Told) -> list[str]:
    """Give the lines of the end of a load."""
    name = name_of(action.slot)
    lines = [*sending(state, action.slot, (0, (0,))), f"manager.finish_load({name}, {action.came}){expects(told)}"]
    if told.refusal or isinstance(told.state.requests[action.slot], Running):
        return lines + counting(action.slot, told)
    return [*lines, f"{name}.num_computed_tokens = 0"]


LINES: dict[type, Callable[..., list[str]]] = {
    Admit: of_admit,
    Find: of_find,
    AdmitHeld: of_admit_held,
    Grow: of_grow,
    GrowEach: of_grow_each,
    Append: of_append,
    Publish: lambda _, action, __: [f"manager.cache_blocks({name_of(action.slot)}, {action.end})"],
    Trim: lambda _, action, __: [f"manager.remove_skipped_blocks({name_of(action.slot)}, {action.end})"],
    Release: of_release,
    Preempt: of_preempt,
    Reset: lambda _, __, told: [f"manager.reset_prefix_cache(){expects(told)}"],
    Start: lambda state, __, ___: [
        "step = manager.start_step()" if state.config.overlaps else "manager.new_step_starts()"
    ],
    Settle: of_settle,
    FinishLoad: of_finish_load,
    Fork: of_fork,
    TakeCopies: lambda _, __, told: [f"manager.take_copies(){expects(told)}"],
    WrongStep: of_wrong_step,
    WrongHit: of_wrong_hit,
    LateHit: of_late_hit,
}
"""The lines of each action."""
