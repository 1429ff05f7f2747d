"""Part three, chapter 6: what comes of a call on the chain."""

from dataclasses import dataclass
from enum import Enum

from ..manager.outcomes import When
from .chain_state import Chain, Transfer
from .tier_state import Event, Key


class ChainReason(Enum):
    """Why a call on the chain is refused; each reason includes when it could happen."""

    NO_ROOM_TO_STORE = (When.NOT_NOW, "tier 0 has no room for what would be stored")
    NO_ROOM_TO_LOAD = (When.NOT_NOW, "tier 0 has no room for what has to come up from below")
    TOO_MANY = (When.NOT_NOW, "as many transfers are under way as there may be when a store begins")
    LOADING = (When.NOT_NOW, "a load writes this block of the device, and no other transfer may read or write it")
    PINNED = (When.NOT_NOW, "a transfer reads or writes this block of the device, so that nobody else may write it")
    NOT_FOUND = (When.INVALID, "a block that is to be loaded is readable in no tier")
    NAMED_TWICE = (When.INVALID, "a block is named twice in one call")
    WRONG_COUNT = (When.INVALID, "each block needs as many blocks of the device as it spans")
    NOT_UNDER_WAY = (When.INVALID, "no transfer of this name was handed out and has not ended")
    NO_SIZE = (When.INVALID, "a tier has at least the places that the shares of tenants promise")
    TOO_LATE = (When.NOT_NOW, "only a store or a load that was not handed out can be cancelled")


@dataclass(frozen=True, slots=True)
class ChainRefusal:
    """A call that did not happen: nothing has changed."""

    reason: ChainReason


@dataclass(frozen=True, slots=True)
class ChainDone:
    """A call that happened: the new state and, each in order, the blocks to be stored (`keys`), the evicted ones and
    the announcements (by tier), those `dropped` since the tier below had no room, which transfers were `handed` out,
    which `ended`, well or not, the blocks that were forgotten (`forgot`), and those that had to leave tier 0 since it
    is smaller now (`resized`).
    """

    state: Chain
    keys: tuple[Key, ...] = ()
    evicted: tuple[tuple[int, Key], ...] = ()
    events: tuple[tuple[int, Event], ...] = ()
    dropped: tuple[Key, ...] = ()
    handed: tuple[Transfer, ...] = ()
    ended: tuple[tuple[Transfer, bool], ...] = ()
    forgot: tuple[Key, ...] = ()
    resized: tuple[Key, ...] = ()


ChainOutcome = ChainDone | ChainRefusal
