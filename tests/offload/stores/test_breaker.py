"""Property: a store that fails again and again is left alone, for longer each time, until one call succeeds.

How: a clock that the test turns.
Not covered: threads (one call more than allowed may pass as the breaker opens, which is harmless).
"""

from typing import Any

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.offload.shared.breaker import CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_story_of_a_breaker() -> None:
    clock = Clock()
    breaker = CircuitBreaker(2, 1.0, 3.0, clock)
    assert not breaker.failed()
    assert not breaker.succeeded()
    assert not breaker.failed()
    assert breaker.may_try()
    assert breaker.failed()
    for pause in (1.0, 2.0, 3.0, 3.0):
        assert breaker.is_open
        assert not breaker.may_try()
        clock.now += pause - 0.25
        assert not breaker.may_try()
        clock.now += 0.25
        assert not breaker.is_open
        assert breaker.may_try()  # one, to see
        assert not breaker.may_try()  # the others wait for it
        assert not breaker.failed()  # it is open as it is, and stays so for longer
    clock.now += 3.0
    assert breaker.may_try()
    assert breaker.succeeded()
    assert breaker.may_try()
    assert not breaker.is_open
    assert [breaker.failed(), breaker.failed()] == [False, True]
    clock.now += 1.0
    assert not breaker.is_open


def test_one_failure_is_enough_where_one_is_allowed() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 1.0, 1.0, clock)
    assert breaker.failed()
    assert not breaker.may_try()
    clock.now += 1.0
    assert breaker.may_try()
    assert breaker.succeeded()  # it was open
    assert not breaker.succeeded()


def test_a_trial_that_never_ends_gives_way_to_another() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 1.0, 1.0, clock)
    breaker.failed()
    clock.now += 1.0
    assert breaker.may_try()
    clock.now += 1.0
    assert breaker.may_try()


@pytest.mark.parametrize(
    "settings",
    [(0, 1, 1), (1, 0, 1), (1, -1, 1), (1, 2, 1), (1, float("nan"), 1), ("1", 1, 1), (1, None, 1), (1, 1, "2")],
)
def test_bad_settings_are_refused(settings: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="failures"):
        CircuitBreaker(*settings)
