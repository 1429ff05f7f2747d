"""The disk tier: a store that keeps blocks in a directory, and the backend that hands out its places."""

from blockwright.offload.disk.backend import DiskBackend
from blockwright.offload.disk.check import StoreCheck, check_store
from blockwright.offload.disk.slots import DiskCounts
from blockwright.offload.disk.store import DiskStore

__all__ = ["DiskBackend", "DiskCounts", "DiskStore", "StoreCheck", "check_store"]
