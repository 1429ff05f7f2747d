"""The gate of data that moves: histories of block tables and tiers with real data."""

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile

from .offload_scopes import OFFLOAD_HISTORIES
from .offload_scopes import histories as chains
from .tables_scopes import HISTORIES


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run the histories of every world; other managers move no data."""
    names = chosen(profile)
    return in_order(histories, [(name, profile.name) for name in names], names, profile.jobs, progress)


def chosen(profile: Profile) -> list[str]:
    return [name for name in (*HISTORIES, *OFFLOAD_HISTORIES) if profile.is_ours and profile.scope in name]


def size(profile: Profile) -> int:
    return len(chosen(profile))


def histories(name: str, profile: str) -> GateResult:
    if name in HISTORIES:
        from .tables_histories import histories as of_tables  # it imports torch

        return of_tables(name, profile)
    return chains(name, profile)
