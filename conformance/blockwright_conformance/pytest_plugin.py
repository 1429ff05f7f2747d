"""Options for pytest: which manager the tests of this package are run on.

pytest --pyargs blockwright_conformance --blockwright-impl module:factory [--blockwright-expected FILE]
"""

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("blockwright", "conformance of KV-cache managers")
    group.addoption("--blockwright-impl", metavar="MODULE:FACTORY", help="the manager to test (default: Blockwright's)")
    group.addoption("--blockwright-expected", metavar="FILE", help="a strict list of expected failures (TOML)")
    group.addoption("--blockwright-profile", default="pr", metavar="NAME", help="quick, pr (default) or nightly")
    group.addoption("--blockwright-scope", default="", metavar="TEXT", help="only scopes whose names contain TEXT")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    left = [words for words in (dict(getattr(each, "user_properties", ())).get("lacks") for each in skipped) if words]
    if left:
        terminalreporter.section("scopes left out, by what the manager does not declare")
        for word, count in Counter(word for words in left for word in words).most_common():
            terminalreporter.write_line(f"{count:5d}  {word}")
