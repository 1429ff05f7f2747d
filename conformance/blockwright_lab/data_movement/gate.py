"""The gate of data that moves: histories of block tables and tiers with real data."""

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed

from .offload_scopes import OFFLOAD_HISTORIES
from .offload_scopes import histories as chains
from .tables_scopes import HISTORIES


def row(name: str, profile: Profile) -> GateResult:
    if name in HISTORIES:
        from .tables_histories import histories as of_tables  # it imports torch

        return of_tables(name, profile.name)
    return chains(name, profile.name)


GATE = Listed((*HISTORIES, *OFFLOAD_HISTORIES), row)
