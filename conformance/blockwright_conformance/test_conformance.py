"""Property: a manager behaves as the specification demands in every scope that it can run.

How: ``pytest --pyargs blockwright_conformance --blockwright-impl module:factory``: one test for each scope, which
visits it whole in lock-step. A difference that is on the list of expected failures is an xfail; one that is listed and
shows in no scope fails the last test.
Not covered: worlds larger than the scopes; ``blockwright conform --impl`` runs long histories too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from .capabilities import Capabilities, Deviation, expected_of, findings
from .gates import OURS, factory_of
from .kv_cache.fitting import capabilities_of, fitted, fitting, lacking, none_fits
from .kv_cache.gate import judged
from .kv_cache.scopes import FOR_OTHERS, Scope

SEEN = pytest.StashKey[set[str]]()
RUN = pytest.StashKey[set[str]]()


def option(config: pytest.Config, name: str, default: str) -> str:
    return str(config.getoption(f"--blockwright-{name}", default) or default)


def scopes_of(config: pytest.Config) -> list[Scope]:
    profile, text = option(config, "profile", "pr"), option(config, "scope", "")
    if profile not in FOR_OTHERS:
        raise pytest.UsageError(f"--blockwright-profile: expected one of {', '.join(FOR_OTHERS)}, not {profile!r}")
    scopes = [each for each in FOR_OTHERS[profile] if text in each.name]
    if not scopes:
        raise pytest.UsageError(f"--blockwright-scope: no scope of profile {profile} contains {text!r}")
    return scopes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scope" in metafunc.fixturenames:
        scopes = scopes_of(metafunc.config)
        metafunc.parametrize("scope", scopes, ids=[each.name for each in scopes])


class UnderTest(NamedTuple):
    """The manager under test, what it declares, expected failures, and the scopes that ask something of their own."""

    factory: Any
    can: Capabilities | None
    expected: tuple[Deviation, ...]
    names: set[str]


@pytest.fixture(scope="session")
def tested(pytestconfig: pytest.Config) -> UnderTest:
    file = option(pytestconfig, "expected", "")
    try:
        factory = factory_of(option(pytestconfig, "impl", OURS))
        can = capabilities_of(factory)
    except ValueError as error:
        raise pytest.UsageError(str(error).replace("--impl", "--blockwright-impl")) from error
    try:
        expected = expected_of(file) if file else ()
    except ValueError as error:
        raise pytest.UsageError(f"--blockwright-expected: {error}") from error
    return UnderTest(factory, can, expected, {each.name for each in fitting(scopes_of(pytestconfig), can)})


def test_some_scope_is_run(tested: UnderTest, pytestconfig: pytest.Config) -> None:
    """A manager that is left out of every scope is not tested."""
    if not tested.names:
        pytest.fail(f"no scope was run: {none_fits(scopes_of(pytestconfig), tested.can)}", pytrace=False)


def test_scope(
    scope: Scope, tested: UnderTest, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    pytestconfig.stash.setdefault(RUN, set()).add(scope.name)
    able = fitted(scope, tested.can)
    if words := lacking(able, tested.can):
        record_property("lacks", words)
        pytest.skip(f"the manager does not do: {', '.join(words)}")
    if able.name not in tested.names:
        pytest.skip("without the calls that are not declared, another scope asks as much")
    for finding in findings([judged(able, tested.factory)]):
        known = next((each for each in tested.expected if each.explains(finding)), None)
        if known is not None:
            pytestconfig.stash.setdefault(SEEN, set()).add(known.name)
            pytest.xfail(f"{known.name}: {known.reason}")
        pytest.fail(f"{finding.law}: {finding.detail}\n\n{finding.script}", pytrace=False)


def test_every_expected_failure_shows(tested: UnderTest, pytestconfig: pytest.Config) -> None:
    """An entry that no longer fails must be removed from the list."""
    profile = FOR_OTHERS[option(pytestconfig, "profile", "pr")]
    run: set[str] = pytestconfig.stash.setdefault(RUN, set())
    if not {each.name for each in profile} <= run:
        pytest.skip("only some scopes were run here: leave out -k, --blockwright-scope and parallel workers to know")
    seen = pytestconfig.stash.setdefault(SEEN, set())
    assert [each.name for each in tested.expected if each.name not in seen] == []
