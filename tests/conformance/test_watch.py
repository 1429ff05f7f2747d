"""Property: a watch stops what runs on and on, and leaves no timer behind that would end the process.

How: the watch is put over an endless loop, over copies that start it anew, and inside another; after it, and without
it, a copy of a watched adapter arms nothing.
Not covered: signals that arrive in other threads.
"""

import signal
import time

import pytest

from blockwright_lab.known_bugs.watch import OutOfTimeError, alarm, rearm, watch


def armed() -> bool:
    """Whether the timer of the watch runs."""
    return signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0


def endless() -> None:
    """Run on and on, with the watch started anew once."""
    assert armed()
    rearm(0.05)
    while True:
        pass


def test_what_runs_on_is_stopped_and_the_timer_with_it() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(OutOfTimeError), watch():
        endless()
    assert not armed()
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_starting_the_watch_anew_gives_more_time() -> None:
    with alarm():
        rearm(0.2)
        started = time.process_time()
        while time.process_time() - started < 0.5:
            rearm(0.2)
    assert not armed()


def test_without_a_watch_nothing_is_armed() -> None:
    rearm()
    assert not armed()


def test_the_end_of_an_inner_watch_leaves_the_outer_one() -> None:
    with alarm():
        with alarm():
            assert armed()
        assert armed()
        with pytest.raises(OutOfTimeError):
            endless()
    assert not armed()
