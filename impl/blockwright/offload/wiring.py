"""Whether the parts of offloading fit one another: looked at once, when a connector takes them, before a byte moves."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.core.keys.block_hash import Sha256Hasher, SipHasher
from blockwright.core.keys.request import Request
from blockwright.errors import InvalidArgumentError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import SharedLoadStoreSpec
from blockwright.offload.metrics import Pair
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.tiers.backend import SlotBackend
from blockwright.offload.tiers.interfaces import GPULoadStoreSpec, OffloadingManager
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.worker import OffloadingWorker

DEVICE = GPULoadStoreSpec.medium()


def check_wiring(num_blocks: int, tiers: Sequence[OffloadingManager], worker: OffloadingWorker) -> None:
    """Check that a worker can make every transfer of a chain, to and from every place that is given out.

    Properties that a handler does not report, and tiers of other makes, are not checked.

    Raises:
        InvalidArgumentError: a pair of media without a handler, or fewer places than are given out; names the remedy.
    """
    for pair in pairs_of(tiers):
        if worker.handler_of(pair) is None:
            raise InvalidArgumentError(
                f"worker: no handler serves {pair[0]} to {pair[1]}; register one for each pair of neighbouring media, "
                "and from every tier to the first"
            )
    # The null block is never moved, but its number is counted: ids go up to num_blocks - 1.
    given = [(DEVICE, num_blocks, "the manager's pool")]
    for at, tier in enumerate(tiers):
        if isinstance(tier, TierManager) and isinstance(tier.backend, SlotBackend):
            given.append((tier.backend.medium, tier.backend.num_blocks, f"tier {at}"))
    for pair in pairs_of(tiers):
        for medium, count, who in given:
            handler = worker.handler_of(pair)
            there = handler.places_of(medium) if handler is not None and medium in pair else None
            if there is not None and there < count:
                raise InvalidArgumentError(
                    f"worker: {who} gives out {count} blocks of {medium}, the handler of {pair[0]} to {pair[1]} "
                    f"reaches {there}; make both of one size"
                )


def pairs_of(tiers: Sequence[OffloadingManager]) -> list[Pair]:
    """Return the pairs of media between which a chain moves blocks: down tier by tier, up to the first at once."""
    media = [medium_of(tier) for tier in tiers]
    pairs = [(DEVICE, media[0]), (media[0], DEVICE)]
    for at in range(1, len(media)):
        pairs += [(media[at - 1], media[at]), (media[at], media[0])]
    # A tier of another make names no medium: the worker finds out when its first transfer comes.
    known = [(source, destination) for source, destination in pairs if source is not None and destination is not None]
    return list(dict.fromkeys(known))


def medium_of(tier: OffloadingManager) -> str | None:
    """Return the medium of a tier; None for one of another make."""
    if isinstance(tier, SharedStoreManager):
        return SharedLoadStoreSpec.medium()
    return tier.backend.medium if isinstance(tier, TierManager) else None


def identity_of(worker: OffloadingWorker) -> CacheIdentity | None:
    """Return the identity under which blocks leave the process; None where they do not, or where no store reports it.

    Raises:
        InvalidArgumentError: two stores have different ones.
    """
    found = list(dict.fromkeys(each for handler in worker.handlers() for each in handler.identities()))
    if len(found) > 1:
        raise InvalidArgumentError(f"worker: its stores keep blocks under different identities, {found}; make it one")
    return found[0] if found else None


def check_hasher(identity: CacheIdentity, request: Request) -> None:
    """Check that another process of the same identity can find the blocks that a request stores.

    A caller's hasher is trusted.

    Raises:
        InvalidArgumentError: it is hashed under a secret of this process, or under another seed than the identity's.
    """
    hasher = request.hasher
    if isinstance(hasher, SipHasher):
        how = "under a secret of this process"
    elif isinstance(hasher, Sha256Hasher) and not hasher.has_seed(identity.hash_seed):
        how = "under another seed than the store's identity names"
    else:
        return
    raise InvalidArgumentError(
        f"request: {request.request_id!r} is hashed {how}, so that its blocks would not be found again; make it with "
        "hasher=Sha256Hasher(identity.hash_seed) (OffloadingConnector.hasher)"
    )
