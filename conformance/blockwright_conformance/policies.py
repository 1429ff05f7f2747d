"""The gate of policies: the choices of any policy are legal, and no content of the pool is lost by them.

A policy has the form that ``blockwright replay --policy`` takes: it is an order that chooses the victim (`choose`), or
it gives hints when requests end (`ending`, here of hits of no tokens at time 0). Blockwright's manager asks it in every
reachable state of some scopes, and in longer histories, at random, of a larger one; the specification follows its
choices, and laws judge them, and what an order was told: POLICY-1 to 3, ORDER-1 and 2, beside all others. Its answers
must depend on its calls alone: each state goes on from a copy of the policy that first led there.
"""

import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, Self

from blockwright import Candidate, Candidates
from blockwright._terminal import Advance
from blockwright.policies import ORDERS, chooser, policy_named
from blockwright.policies import POLICIES as NAMED
from blockwright_spec.manager.orders import Told
from blockwright_spec.manager.retention import Retention, retention_of
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Full, Mamba

from .checker.explore import Explorer, Result, Violation
from .checker.history import History, HistoryError, walk
from .gates import GateResult, Profile
from .kv_cache.adapter import Observation
from .kv_cache.blockwright import BlockwrightAdapter
from .kv_cache.gate import judged
from .kv_cache.scopes import POLICIES, Scope
from .kv_cache.world import KVCacheWorld
from .rows import rows_of_calls

LENGTHS = 7
"""Of the random histories, each twice as long as the one before."""


class Watched:
    """A policy, with a count of how often it was asked, for all copies, and with what it was told."""

    def __init__(self, policy: Any, asked: Counter[str]) -> None:
        self.policy, self.asked = policy, asked
        self.candidates, self.hits = list[int](), list[int]()

    def choose(self, candidates: Candidates) -> Candidate:
        self.asked["choose"] += 1
        return self.policy.choose(candidates)  # type: ignore[no-any-return]

    def released(self, block: Candidate) -> None:
        self.candidates.append(block.block_id)
        getattr(self.policy, "released", id)(block)

    def taken(self, block: Candidate) -> None:
        self.candidates.remove(block.block_id)
        getattr(self.policy, "taken", id)(block)

    def hit(self, block: Candidate) -> None:
        self.hits.append(block.block_id)
        getattr(self.policy, "hit", id)(block)

    def told(self) -> Told:
        """Return what it was told, of hits since the last time."""
        hits, self.hits = self.hits, []
        return Told(tuple(self.candidates), tuple(hits))

    def ending(self, *told: Any) -> None:
        """Tell the policy of a request that ends, if it asks for that."""
        if hasattr(self.policy, "ending"):
            self.asked["ending"] += 1
            self.policy.ending(*told)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self)(deepcopy(self.policy, memo), self.asked)
        twin.candidates, twin.hits = self.candidates[:], self.hits[:]
        return twin


class PolicyAdapter(BlockwrightAdapter):
    follows_policy = False

    def __init__(self, config: Config, policy: Watched) -> None:
        self.policy = policy
        chosen = chooser(policy.policy)
        self.options = {"eviction_order": chosen if isinstance(chosen, str) else policy} if chosen else {}  # type: ignore[misc]
        super().__init__(config)

    def copy(self) -> Self:
        twin = super().copy()
        chooses: Any = twin.manager.block_pool.eviction_order  # None if it is the manager's own
        twin.policy = deepcopy(self.policy) if chooses is None else chooses
        return twin

    def free(self, name: str) -> None:
        if name in self.manager.request_ids():
            self.policy.ending(self.manager, self.requests[name], 0, 0.0)
        super().free(name)

    def observe(self, names: tuple[str, ...]) -> Observation:
        shown = super().observe(names)
        is_own = isinstance(self.options.get("eviction_order", ""), str)  # the manager's, which tells nobody
        if is_own:
            self.policy.asked["admit"] += getattr(self.manager.block_pool._order, "admitted", 0)
        return shown if is_own else shown._replace(told=self.policy.told())


def is_adaptable(config: Config) -> bool:
    """Return whether the manager's own order takes these layers: full attention and recurrent, all of one size."""
    kinds = all(isinstance(group.kind, (Full, Mamba)) for group in config.groups)
    return kinds and len({group.block_size for group in config.groups}) == 1


class PolicyManagers:
    def __init__(self, policy: Callable[[], object]) -> None:
        self.policy, self.asked = policy, Counter[str]()
        chosen = chooser(policy())
        self.is_own, self.chooses = isinstance(chosen, str), chosen is not None
        self.scopes = [
            each
            for each in POLICIES
            if (self.chooses or ": orders" not in each.name) and (not self.is_own or is_adaptable(each.config))
        ]

    def __call__(self, config: Config) -> PolicyAdapter:
        return PolicyAdapter(config, Watched(self.policy(), self.asked))

    def explore(self, scope: Scope) -> Result:
        """Explore a scope, or try histories of a large one; of a policy that was never asked nothing is known."""
        others = tuple([each for each in scope.config.chapters if not isinstance(each, Retention)])
        hints = () if self.chooses else (retention_of(scope.config) or Retention(),)  # they tell candidates apart
        told = replace(scope, config=replace(scope.config, chapters=others + hints))
        result = self.try_histories(told) if scope == POLICIES[-1] else Explorer(KVCacheWorld(told, self)).run()
        if result.violation is None and not (self.asked["admit"] if self.is_own else self.asked.total()):
            result.violation = Violation("SEEN-1", "the policy was never asked", ())
        return result

    def try_histories(self, scope: Scope) -> Result:
        result, started = Result(scope), time.perf_counter()
        try:
            for seed in range(LENGTHS):
                result.fired += walk(History(KVCacheWorld(scope, self, is_long=True)), seed, 10 << seed).fired
        except HistoryError as error:
            result.violation = error.violation
        result.transitions, result.seconds = sum(result.fired.values()), time.perf_counter() - started
        return result


def tasks(profile: Profile) -> list[tuple[str, str]]:
    """Return the requested policies, each with each scope, by name: each process makes its own scopes."""
    known, theme = (ORDERS, ": orders") if profile.name == "quick" else (NAMED, "")
    names = [profile.policy] if profile.policy else list(known)
    pairs = [(name, each.name) for name in names for each in PolicyManagers(policy_named(name)).scopes]
    return [(name, scope) for name, scope in pairs if profile.scope in scope and theme in scope]


def size(profile: Profile) -> int:
    return len(tasks(profile))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    calls = tasks(profile)
    return rows_of_calls(row_of, "policies", [name for _, name in calls], calls, profile, progress)


def row_of(policy: str, name: str) -> GateResult:
    (scope,) = [each for each in POLICIES if each.name == name]
    return replace(judged(scope, PolicyManagers(policy_named(policy))), kind="policies", manager=policy)
