"""What others see of a manager: events that can be replayed, snapshots for routers, metrics, a timeline.

`EventStream` numbers events and keeps what a late consumer needs; `PrefixIndex` is a consumer of them. `wire` writes
and reads the formats of today's routers (extra ``events``: msgspec), `publisher` and `subscriber` send them (pyzmq),
`checkpoint` keeps the index over a restart; `record` is the journal that `metrics` (extra ``metrics``:
prometheus-client) and `timeline` fold. Importing this package imports none of these.
"""

from blockwright.observe.prefix_index import PrefixIndex
from blockwright.observe.stream import Batch, EventStream, Snapshot

__all__ = ["Batch", "EventStream", "PrefixIndex", "Snapshot"]
