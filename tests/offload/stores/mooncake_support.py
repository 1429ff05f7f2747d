"""A Mooncake store, real or not, as a space for the tests of shared stores."""

from typing import Any

from tests.offload.stores.shared_spaces import Space

from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.mooncake import MooncakeStore
from blockwright_lab.media.cluster import FakeCluster, RealCluster


class MooncakeSpace(Space):
    """A cluster in which stores of several identities meet."""

    def __init__(self, cluster: "FakeCluster | RealCluster | None" = None) -> None:
        super().__init__()
        self.cluster = cluster or FakeCluster()

    def made(self, identity: CacheIdentity, **options: Any) -> MooncakeStore:
        return self.cluster.open(identity, **options)

    def value(self, store: Any, key: bytes) -> bytes:
        return bytes(store._client.get(store._name(key)))

    def replace(self, store: Any, key: bytes, value: bytes) -> None:
        store.remove([key])
        if value:  # the library takes no empty object
            assert store._client.put(store._name(key), value) == 0

    def confuse(self, store: Any, key: bytes) -> None:
        self.replace(store, key, b"x" * 7)
