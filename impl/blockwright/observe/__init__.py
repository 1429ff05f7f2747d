"""A manager seen from outside: events that can be replayed, snapshots for routers, metrics, a timeline.

`EventStream` numbers events and keeps those that a late consumer needs; `PrefixIndex` is a consumer of them, and
`FleetIndex` one of those of many engines. `wire`
writes and reads the formats of today's routers (extra ``events``: msgspec), `publisher` and `subscriber` send them
(pyzmq); `metrics` (extra ``metrics``: prometheus-client) and `timeline` read the journal of a manager
(`Journal`). Importing this package imports none of these.
"""

from blockwright.arguments import guard as _guard
from blockwright.core.records.journal import Fact, Journal, JournalReader
from blockwright.observe.checkpoint import dump, restore
from blockwright.observe.fleet_index import FleetIndex
from blockwright.observe.picture import Picture, draw
from blockwright.observe.prefix_index import PrefixIndex
from blockwright.observe.stream import Batch, EventStream, Snapshot
from blockwright.observe.trace import Trace, trace

__all__ = [
    "Batch", "EventStream", "Fact", "FleetIndex", "Journal", "JournalReader", "Picture", "PrefixIndex", "Snapshot",
    "Trace", "draw", "dump", "restore", "trace",
]  # fmt: skip

_guard(globals(), __all__)
