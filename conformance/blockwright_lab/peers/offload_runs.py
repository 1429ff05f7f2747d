"""vLLM's offloading managers under the explorer of tiers: scopes, findings, and what is known of them.

The search is that of one tier (`offload_tier_explore`), but does not end at the first fault: it records the shortest
way to each kind of fault, with the laws that it breaks, and goes on from the states in which nothing was wrong.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.published import Published
from blockwright_conformance.capabilities import Finding
from blockwright_conformance.checker.diagnose import diagnose
from blockwright_conformance.checker.explore import Explorer, Node, Result
from blockwright_conformance.checker.history import History, HistoryError
from blockwright_conformance.checker.world import Outcome, Reply
from blockwright_conformance.offload.scopes import KEYS, TierScope, lists
from blockwright_conformance.offload.tier import TierCall, TierNow, TierSeen
from blockwright_conformance.offload.tier_adapter import TierUnderTest
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.offload.tier_state import Key

from ..known_bugs.symptoms import OneTier
from .engines import EngineUnderTest, Explored, Findings, explored, laws_of, walked
from .vllm_offload import OLD, PUBLISHED, VllmTier, load, tier_class

_OWN = laws_of("offload")
FIRST = ("REFUSE-2", "REFUSE-1", "STORE-1")
LAWS = {law: _OWN[law] for law in FIRST} | {law.id: law.statement for law in (*TIER_LAWS, *TIER_STEP_LAWS)} | _OWN

FIELD = re.compile(r"^(?:expected \w+|\w+ ?)")

SINGLE = lists(3, 1)
ORDERED = (*SINGLE, KEYS[:2], KEYS[1:3], (KEYS[2], KEYS[0]), KEYS[:3])


class WalkScope(NamedTuple):
    """Right calls at random in a larger tier, where indexes are compacted: so many, from each of so many seeds."""

    name: str
    manager: str
    capacity: int = 8
    steps: int = 2000
    seeds: int = 3


def scopes_of(policy: str) -> tuple[TierScope | WalkScope, ...]:
    """Return the scopes of a policy whose calls are right, those that name a key twice, and wrong calls.

    An ARC remembers keys that are gone, so its states are many: it gets two places only with calls of one key.
    """
    is_arc, three = policy.startswith("ARC"), f"{policy}, 3 places, 3 keys"
    two = SINGLE if is_arc else ORDERED
    return (
        TierScope(f"{policy}, 2 places, 3 keys", policy, 2, two, readers=1 if is_arc else 2, misuse=False),
        *([TierScope(three, policy, 3, (*SINGLE, KEYS[:3]), misuse=False)] if policy == "LRU" else []),
        TierScope(f"{policy}, 1 place, 3 keys", policy, 1, ORDERED, misuse=False),
        TierScope(f"{policy}, no places", policy, 0, lists(2, 2)[:-1], misuse=False),
        TierScope(f"{policy}, a key twice", policy, 2, (*lists(2, 1), (KEYS[0], KEYS[0])), misuse=False),
        TierScope(f"{policy}, wrong calls", policy, 2, (*lists(2, 1), KEYS[:2], KEYS[1::-1])),
        WalkScope(f"{policy}, a walk, 8 places, 16 keys", policy),
    )


STRICT = TierScope("LRU requests strict, 2 places", "LRU requests strict", 2, (*lists(2, 1), KEYS[:2]), misuse=False)
"""Whole requests, held to the order of use in which only `touch` and storing count."""

SCOPES = (*(scope for policy in ("LRU", "LRU requests", "ARC", "ARC requests") for scope in scopes_of(policy)), STRICT)
SCOPES_OLD = scopes_of("LRU")


class VllmWorld(OneTier):
    """One tier, with the calls that the manager has."""

    def enabled(self, state: TierNow) -> Iterator[TierCall]:
        for call in super().enabled(state):
            if call.name != "remove" and (call.success or call.name != "complete_load"):
                yield call

    def differences(
        self, model: TierUnderTest, action: TierCall, outcome: Outcome[TierNow], reply: Reply, shown: TierSeen
    ) -> list[str]:
        """Name what differs, even if the state is known: what the manager keeps beside it may be wrong, too."""
        faults = super().differences(model, action, outcome, reply, shown)
        try:
            model.check()
        except AssertionError as error:
            faults.append(f"check: {error}")
        return faults


class TierFollower(Explorer[TierNow, TierUnderTest]):
    """Explores one scope to its end, past what is wrong."""

    def __init__(self, scope: TierScope, factory: type[VllmTier], most: int | None = None) -> None:
        super().__init__(VllmWorld(scope, factory), max_transitions=most)
        self.scope, self.factory = scope, factory
        self.kinds: dict[tuple[str, ...], list[str]] = {}
        self.findings = Findings()

    def run(self) -> Result:
        result = super().run()
        if result.violation is not None:
            wrong = result.violation
            self.findings[wrong.law, ""] = Finding(wrong.law, self.scope.name, f"a new manager: {wrong.detail}")
        return result

    def visit(self, node: Node[TierNow, TierUnderTest], action: TierCall) -> Node[TierNow, TierUnderTest] | None:
        after = super().visit(node, action)
        if self.result.violation is None:
            return after
        wrong, self.result.violation = self.result.violation, None
        fields = sorted(match[0] for fault in wrong.detail.split("; ") if (match := FIELD.match(fault)))
        kind = (action.name, *fields) if wrong.law == "REF-0" else (wrong.law, action.name)
        self.found(kind, wrong.detail if wrong.law == "REF-0" else f"{wrong.law}: {wrong.detail}", wrong.actions)
        return None

    def found(self, kind: tuple[str, ...], detail: str, actions: tuple[TierCall, ...]) -> None:
        if kind not in self.kinds:
            broken = diagnose(self.world, actions)
            self.kinds[kind] = [law for law in LAWS if law in broken] or ["REF-0"]
        laws, call = self.kinds[kind], actions[-1].name

        def made() -> Finding:
            text = f"{call}: {detail} (breaks {', '.join(laws)})"
            return Finding(laws[0], self.scope.name, text, script_of(self.factory, self.scope, actions), len(actions))

        self.findings.add((laws[0], call), made)


def script_of(factory: type[VllmTier], scope: TierScope, actions: tuple[TierCall, ...]) -> str:
    if factory.offload.published is OLD:
        lines = [
            "from vllm.v1.kv_offload.backends.cpu import CPUBackend",
            "from vllm.v1.kv_offload.lru_manager import LRUOffloadingManager",
            f"manager = LRUOffloadingManager(CPUBackend(16, {scope.capacity}), enable_events=True)",
        ]
    else:
        policy = scope.manager.partition(" ")[0].lower()
        lines = [
            "from vllm.v1.kv_offload.base import ReqContext, make_offload_key",
            "from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager",
            f"manager = CPUOffloadingManager({scope.capacity}, {policy!r}, enable_events=True)",
            'p, q, r = (make_offload_key(name, 0) for name in (b"p", b"q", b"r"))',
        ]
    return "\n".join([*lines, *(line_of(factory, scope, at, call) for at, call in enumerate(actions))])


def line_of(factory: type[VllmTier], scope: TierScope, at: int, call: TierCall) -> str:
    more = f", {call.success}" if call.name == "complete_store" else ""
    if factory.offload.published is OLD:
        return f"manager.{call.name}({list(call.keys)}{more})"
    keys = f"[{', '.join(key.decode() for key in call.keys)}]"
    whole = "  # a request with positions that ends here" if "requests" in scope.manager else ""
    return f'manager.{call.name}({keys}, ReqContext("{at}"){more}){whole}'


# --- a long walk


WALKED: tuple[Key, ...] = tuple(b"%02d" % number for number in range(16))


def walk(factory: type[VllmTier], scope: WalkScope, seed: int, steps: int) -> tuple[int, list[Finding]]:
    """Make right calls at random in a larger tier, where indexes are compacted; return how far it went, and faults."""
    larger = TierScope("a walk", scope.manager, scope.capacity, tuple((key,) for key in WALKED))
    random, history = Random(seed), History(VllmWorld(larger, factory))
    for step in range(1, steps + 1):
        call = drawn(random, history.state)
        try:
            history.act(call)
        except HistoryError as error:
            fault = f"{call}: {error.violation.detail}"
            return step, [Finding("REF-0", scope.name, fault, f"# seed {seed}, step {step}", step)]
    return steps, []


def drawn(random: Random, now: TierNow) -> TierCall:
    names = ("touch", "prepare_load", "complete_load", "prepare_store", "complete_store")
    while True:
        name, keys = random.choice(names), tuple(random.sample(WALKED, random.randrange(1, 4)))
        call = TierCall(name, keys, name != "complete_store" or random.random() < 0.8)
        if not call.is_wrong(now):
            return call


def explore(release: Published, scope: TierScope | WalkScope, peer_path: Path, limit: int | None) -> Explored:
    factory = tier_class(load(peer_path, release))
    if isinstance(scope, WalkScope):
        return walked(scope, limit, partial(walk, factory, scope))
    explorer = TierFollower(scope, factory, limit)
    return explored(explorer.run(), limit, explorer.findings.values())


ENGINES = tuple(
    EngineUnderTest(
        f"vllm-offload-{release.version}",
        f"vLLM {release.version}, the offloading manager of the host's memory, {policies}",
        tuple(LAWS.items()),
        scopes,
        partial(explore, release),
    )
    for release, policies, scopes in ((PUBLISHED, "LRU and ARC", SCOPES), (OLD, "LRU", SCOPES_OLD))
)
