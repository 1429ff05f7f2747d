"""All realms of mutants."""

from functools import cache

from . import realm_connector, realm_core, realm_offload, realm_paging, realm_parts
from .mutant_realm import Realm
from .mutation import Mutation, Source

REALMS: tuple[Realm, ...] = (
    realm_core.REALM,
    realm_parts.REALM,
    realm_paging.REALM,
    realm_offload.REALM,
    realm_connector.REALM,
)


def realm(name: str) -> Realm:
    """Give a realm by its name."""
    return next(each for each in REALMS if each.name == name)


@cache
def realm_of(file: str) -> Realm:
    """Give the realm that a source belongs to."""
    return next(each for each in REALMS if file in each.files)


@cache
def parsed(file: str) -> Source:
    """Give a source, parsed once per process."""
    return Source(file, realm_of(file).left_out)


def all_mutations() -> list[Mutation]:
    """Give every mutant of every realm, in the order of the sources."""
    return [mutation for each in REALMS for file in each.files for mutation in parsed(file).mutations]


def excuse(mutation: Mutation) -> str:
    """Give the reason why a mutant is listed as equivalent; empty if it is not."""
    return realm_of(mutation.file).excuse(mutation.key)
