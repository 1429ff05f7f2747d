"""Property: an order of anybody's own is judged by the laws of policies and orders, in the manager that asks it.

How: policies that keep every law, that take a block before its extension, that lose a block, that answer with what is
no candidate, that fail when asked or told, and that are never asked go through the gate, by function and by command;
each failure names its law and shows calls. Under a policy that is plain LRU the manager is in lock-step with the
specification's choices.
Not covered: policies that answer otherwise each time they are asked the same.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright import (
    Candidate,
    Candidates,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
)
from blockwright.cli import main
from blockwright.errors import (
    EvictionPolicyError,
    ExcludedOptionsError,
    InterruptedCallError,
    InvalidArgumentError,
    UnsupportedError,
)
from blockwright.orders.least_frequently_used import Order
from blockwright.policies import Adaptive
from blockwright_conformance import ConformanceError, run_conformance
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import POLICIES, of_row
from blockwright_conformance.policies import PolicyManagers

SMALL = "full, block 1: policies"


class First:
    """Plain LRU."""

    def choose(self, candidates: Candidates) -> Candidate:
        return next(iter(candidates))


class Newest:
    def choose(self, candidates: Candidates) -> Candidate:
        return list(candidates)[-1]


class Loses:
    """Takes each block once, and then knows of it no more."""

    def __init__(self) -> None:
        self.gone: set[int] = set()

    def choose(self, candidates: Candidates) -> Any:
        found = next((each for each in candidates if each.block_id not in self.gone), None)
        self.gone.add(found.block_id if found else 0)
        return found


class Late:
    """Answers with what it was shown before."""

    def __init__(self) -> None:
        self.shown: list[Candidate] = []

    def choose(self, candidates: Candidates) -> Candidate:
        self.shown += list(candidates)
        return self.shown[0]


class Deaf(Order):
    """Goes on to count as a candidate what somebody holds."""

    def taken(self, block: Candidate) -> None:
        """Pass it over."""


class Fails:
    def choose(self, candidates: Candidates) -> Candidate:
        raise LookupError("nothing found")


@pytest.fixture
def manager_of() -> Callable[..., Any]:
    """Make a manager of eight blocks under a policy, and what serves it a request of three blocks whole."""

    def made(policy: object = None, **options: Any) -> Any:
        spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float32")
        config = KVCacheConfig(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        manager = KVCacheManager(config, 16, **{"eviction_order": policy, **options})

        def serve(number: int) -> None:
            request = Request(f"request {number}", [number] * 6, block_size=2)
            hit, num_hit = manager.get_computed_blocks(request)
            manager.allocate_slots(request, 6 - num_hit, num_hit, hit)
            request.num_computed_tokens = 6
            manager.free(request)

        return manager, serve

    return made


@pytest.mark.parametrize("policy", [First, Order, "t-lru"])
def test_policies_that_keep_every_law(policy: Any) -> None:
    report = run_conformance(policy=policy)
    run = POLICIES if hasattr(policy, "choose") else [each for each in POLICIES if ": orders" not in each.name]
    assert [each.scope for each in report.scopes] == [each.name for each in run]
    assert min(each.transitions for each in report.scopes) > 20


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        (Newest, "POLICY-1"),
        (Loses, "POLICY-3"),
        (Late, "POLICY-3"),
        (Deaf, "POLICY-3"),
        (Fails, "REF-0: LookupError: nothing found"),
    ],
)
def test_a_policy_that_breaks_a_law_is_shown_with_calls(policy: Callable[[], object], law: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        run_conformance(policy=policy, scope=SMALL)
    text = str(caught.value)
    assert f"{SMALL}: {law}" in text
    assert f"\n    adapter = PolicyManagers({policy.__name__})(Config(" in text
    assert text.count("adapter.allocate(") == text.count("adapter.find('r0')")


def test_histories_find_what_is_forgotten_late() -> None:
    """Each state is visited with one copy of the policy only; histories go on with one policy."""
    with pytest.raises(ConformanceError, match="histories: POLICY-3"):
        run_conformance(policy=Loses, scope="histories")


def test_a_policy_is_shown_the_keys_of_requests(manager_of: Callable[..., Any]) -> None:
    late = Late()
    _, serve = manager_of(late)
    for number in range(3):
        serve(number)
    request = Request("the same tokens", [0] * 6, block_size=2)
    assert request.block_hashes[-1].startswith(late.shown[0].block_hash)


class Unheard(Adaptive):
    """Names an order of the manager's own that is never told of an admission."""

    order = "lru"


@pytest.mark.parametrize("policy", [First, Unheard])
def test_a_policy_that_is_never_asked_fails(policy: Callable[[], object]) -> None:
    found = (
        PolicyManagers(policy)
        .explore(of_row("full, block 2", "nothing is full", 4, 1, "", {"prompts": ["0"]}))
        .violation
    )
    assert found is not None
    assert (found.law, found.detail) == ("SEEN-1", "the policy was never asked")


def test_the_command_takes_what_replay_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_to_test.py").write_text(
        "class Newest:\n    def choose(self, candidates):\n        return list(candidates)[-1]\nclass Idle:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    names = ["conform", "--policy", "mine_to_test:Newest", "--jobs", "1"]
    assert main([*names, "--scope", SMALL, "--json", "report.json"]) == 1
    rows = json.loads((tmp_path / "report.json").read_text())["gates"]
    assert {(row["manager"], row["law"]) for row in rows} == {("mine_to_test:Newest", "POLICY-1")}
    for wrong in (["--policy", "mine_to_test:Idle"], ["--policy", "mine_to_test:None"], ["--policy", "mru"]):
        assert main(["conform", *wrong]) == 2
    assert main([*names, "--impl", "examples.toy_manager:Adapter"]) == 2
    assert "--policy: " in capsys.readouterr().err
    with pytest.raises(ValueError, match="either a factory or a policy"):
        run_conformance(BlockwrightAdapter, policy=First)


def test_answers_that_are_no_candidates_end_the_call(manager_of: Any) -> None:
    manager, serve = manager_of(Late())
    for at in range(3):
        serve(at)
    with pytest.raises(EvictionPolicyError, match=r"eviction_order: choose\(\) must return one of the"):
        serve(3)
    with pytest.raises(InterruptedCallError):
        manager.check()


def test_candidates_are_shown_while_the_policy_chooses(manager_of: Any) -> None:
    class Keeps(First):
        def choose(self, candidates: Candidates) -> Candidate:
            self.candidates, self.size, self.ids = candidates, len(candidates), [each.block_id for each in candidates]
            return super().choose(candidates)

    policy = Keeps()
    manager, serve = manager_of(policy)
    assert manager.block_pool.eviction_order is policy is not manager.copy().block_pool.eviction_order
    for at in range(5):
        serve(at)
    assert (policy.size, list(policy.candidates)) == (len(policy.ids), [])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"eviction_order": object()}, InvalidArgumentError, "must be an object with choose"),
        (
            {"eviction_order": "most_used"},
            InvalidArgumentError,
            "expected lru, least_frequently_used or module:factory",
        ),
        ({"eviction_order": "builtins:list"}, InvalidArgumentError, "must make an object with choose"),
        ({"eviction_order": "lru", "eviction_policy": First()}, InvalidArgumentError, "give one of them"),
        ({"eviction_order": First(), "shares": {"a": 1}}, ExcludedOptionsError, "eviction_order: not together with"),
        ({"eviction_policy": First(), "hint_guard": 0.5}, ExcludedOptionsError, "eviction_order: not together with"),
        (
            {"eviction_order": First(), "enable_caching": False},
            ExcludedOptionsError,
            "together with enable_caching=False",
        ),
    ],
)
def test_policies_that_cannot_choose_are_refused(
    manager_of: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        manager_of(**options)


def test_hints_are_refused_beside_a_policy(manager_of: Any) -> None:
    manager, _ = manager_of(First())
    with pytest.raises(UnsupportedError, match="eviction_order: not together with retain"):
        manager.advance_time(1)


def test_an_order_goes_by_name_and_by_the_earlier_name_of_the_option(manager_of: Any) -> None:
    named, _ = manager_of("least_frequently_used")
    assert isinstance(named.block_pool.eviction_order, Order)
    plain, serve = manager_of("lru")
    assert plain.block_pool.eviction_order is None
    serve(0)
    given, _ = manager_of(None, eviction_policy=(first := First()))
    assert given.block_pool.eviction_policy is given.block_pool.eviction_order is first


@pytest.mark.parametrize("what", ["released", "taken", "hit"])
def test_an_order_that_fails_when_it_is_told_ends_the_call(manager_of: Any, what: str) -> None:
    class Breaks(First):
        """Fails at what it is told."""

    def breaks(self: Breaks, block: Candidate) -> None:
        raise LookupError(block)

    setattr(Breaks, what, breaks)
    manager, serve = manager_of(Breaks())
    with pytest.raises(LookupError):  # noqa: PT012  # what fails in the first call fails no more in the second
        serve(0)
        serve(0)
    with pytest.raises(InterruptedCallError):
        manager.check()


def test_an_order_of_least_frequent_use_keeps_what_is_shared(manager_of: Any) -> None:
    """Eight blocks: what was hit twice stays while others come and go."""
    kept = {}
    for order in ("least_frequently_used", "lru"):
        manager, serve = manager_of(order)
        for number in (0, 0, 0, 1, 2, 3):
            serve(number)
        kept[order] = manager.get_computed_blocks(Request("last", [0] * 6, block_size=2))[1]
        manager.check()
    assert kept == {"least_frequently_used": 4, "lru": 0}
