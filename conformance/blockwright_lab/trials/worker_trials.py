"""Trials of what a worker keeps: none; `blockwright_conformance.worker` is a world of the checker."""

from ..known_bugs.known_bug import Trial

WALKS: tuple[Trial, ...] = ()
