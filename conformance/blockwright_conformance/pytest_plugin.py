"""Options for pytest: which manager the tests of this package are run on.

pytest --pyargs blockwright_conformance --blockwright-impl module:factory [--blockwright-expected FILE]
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; nothing of the kit is imported for it."""
    group = parser.getgroup("blockwright", "conformance of KV-cache managers")
    group.addoption("--blockwright-impl", metavar="MODULE:FACTORY", help="the manager to test (default: Blockwright's)")
    group.addoption("--blockwright-expected", metavar="FILE", help="a strict list of expected failures (TOML)")
    group.addoption("--blockwright-profile", default="pr", metavar="NAME", help="quick, pr (default) or nightly")
    group.addoption("--blockwright-scope", default="", metavar="TEXT", help="only scopes whose names contain TEXT")
