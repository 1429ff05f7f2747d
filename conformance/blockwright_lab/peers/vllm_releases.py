"""The two releases of vLLM as engines under test: what they can do, and where they differ.

The scopes are smaller than Blockwright's own, of every kind, and each is followed to the limit of the profile, shortest
ways first: two requests, pools that two requests do not fit in, prompts that end on a block and beside one.
"""

from functools import partial
from pathlib import Path

from blockwright_conformance.kv_cache.fitting import needs_of
from blockwright_conformance.kv_cache.scopes import Scope, of_row, rows_of
from blockwright_spec.reads import Cross, Full, Mamba

from .engines import EngineUnderTest, Explored, capabilities_of, deviations_of, explored, laws_of
from .follower import JUDGED, STEPS, Follower
from .vllm_engine import NEW, OLD, load
from .vllm_kv import VllmAdapter


def unfit(version: str, scope: Scope) -> list[str]:
    reasons = capabilities_of(f"vllm-{version}").lacks(needs_of(scope))
    config = scope.config
    kinds = [group.kind for group in config.groups]
    if version == OLD.version and config.caching:
        if len({group.block_size for group in config.groups}) > 1:
            reasons.append("feature block sizes: all groups have one block size where prefixes are cached")
        if any(isinstance(kind, Mamba) for kind in kinds):
            reasons.append("kind mamba: states are not cached")
        if len(set(kinds)) > 2 or (len(kinds) > 1 and Full() not in kinds):
            reasons.append("feature groups: full attention and one other kind")
    if version == OLD.version and "load" in scope.calls and set(kinds) != {Full()}:
        reasons.append("call load: loaded tokens are new tokens to it, of which it keeps every block")
    if config.eagle and any(isinstance(kind, Mamba | Cross) for kind in kinds):
        reasons.append("feature eagle: drafts of models with recurrent layers are not followed here")
    return reasons


def explore(version: str, scope: Scope, peer_path: Path, limit: int | None) -> Explored:
    engine = load(version, peer_path)
    deviations = deviations_of(f"vllm-{version}")
    follower = Follower(scope, lambda config: VllmAdapter(engine, config), deviations, limit)
    return explored(follower.run(), limit, follower.findings)


SCOPES = tuple([of_row(*row) for row in rows_of(__file__)["scopes"]])
LISTED = tuple((law.id, law.statement.partition("\n")[0]) for law in (*JUDGED, *STEPS))
LAWS = (*LISTED, *laws_of("vllm").items())

ENGINES = tuple(
    EngineUnderTest(
        f"vllm-{version}", "vLLM KVCacheManager", LAWS, SCOPES, partial(explore, version), partial(unfit, version)
    )
    for version in (NEW.version, OLD.version)
)
