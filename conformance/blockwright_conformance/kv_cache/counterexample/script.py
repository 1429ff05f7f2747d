"""Lines of a counterexample over Blockwright's public names, to be pasted at a prompt.

A line ends with what the specification expects of it. A manager of another make gets the same trace: the names are
those that its adapter stands for.
"""

from typing import Any

from blockwright_spec.manager.outcomes import Publication, Reason, Step, When
from blockwright_spec.manager.state import Absent, Config, Running, State
from blockwright_spec.reads import Kind, Prefix

from ..blockwright import EXTRAS, declared, hash_unit, keywords, options_of
from ..outcome import ManagerOutcome
from ..parts import computed_of, name_of

IMPORTS = """\
from blockwright import (
    ChunkedLocalAttentionSpec, CrossAttentionSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager,
    MambaSpec, Request, Sha256Hasher, SlidingWindowSpec,
)
"""


def constructor(config: Config) -> str:
    """Return the lines that make the manager."""
    specs = ", ".join(declaration(group.kind, group.block_size) for group in config.groups)
    told = {name: value for name, value in options_of(config).items() if bool(value) != (name == "enable_caching")}
    options = "".join(f", {name}={value!r}" for name, value in told.items())
    first = "\nmanager.advance_time(0)" if config.added.retains else ""
    return (
        f"specs = [{specs}]\n"
        'groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]\n'
        f"config = KVCacheConfig(num_blocks={config.num_blocks}, kv_cache_groups=groups)\n"
        f"manager = KVCacheManager(config, max_model_len={config.max_model_len}{options}){first}"
    )


def declaration(kind: Kind, block_size: int) -> str:
    """Return the expression that declares a layer."""
    name, arguments = declared(kind, block_size)
    words = ", ".join(f"{word}={value!r}" for word, value in arguments.items())
    return f"{name}({words})".replace("'", '"')


def expects(outcome: ManagerOutcome) -> str:
    """Return the comment that says what the specification expects."""
    if outcome.refusal is None:
        return f"  # new blocks {outcome.steps[-1][1].new}" if outcome.steps else ""
    when, words = outcome.refusal.reason.value
    wrong = when is When.INVALID or outcome.refusal.reason is Reason.TOO_LONG
    return f"  # {'an error' if wrong else 'refused'}: {words}"


def making(state: State, name: str, prefix: Prefix) -> str:
    """Return the line that makes a request."""
    extra: Any = prefix[0]
    keys = "".join(f', {key}="{value}"' for key, value in EXTRAS[extra].items())
    keys += ', hasher=Sha256Hasher(b"")' if state.config.added.tells else ""
    return f'{name} = Request("{name}", {list(prefix[1])}, block_size={hash_unit(state.config)}{keys})'


def sending(state: State, slot: int, prefix: Prefix = (0, (0,))) -> list[str]:
    """Return the line that makes a request, if it is not there."""
    return [making(state, name_of(slot), prefix)] if isinstance(state.requests[slot], Absent) else []


def looking(name: str) -> str:
    """Return the line that looks a request up; the hit keeps the request's name."""
    return f"hit_{name}, length_{name} = manager.get_computed_blocks({name})"


def call(name: str, step: Step, hit: str, outcome: ManagerOutcome, planned: bool = False) -> str:
    """Return the line that asks slots; a step that was planned is planned in the line before."""
    more = f", num_lookahead_tokens={step.lookahead}" if step.lookahead else ""
    more += ", delay_cache_blocks=True" if step.publication is Publication.LATER else ""
    more += "".join(f", {name}={value}" for name, value in keywords(step).items())
    asked = f"({name}, {step.new}{hit}{more})"
    if not planned:
        return f"manager.allocate_slots{asked}{expects(outcome)}"
    return f"plan = manager.plan{asked}{expects(outcome)}" + ("" if outcome.refusal else "\nmanager.commit(plan)")


def counting(slot: int, outcome: ManagerOutcome) -> list[str]:
    """Return the line by which the engine counts what was computed."""
    after = outcome.state.requests[slot]
    if outcome.refusal or not isinstance(after, Running):
        return []
    return [f"{name_of(slot)}.num_computed_tokens = {computed_of(outcome.state, slot)}"]
