"""Cached blocks that leave the device: kept on the host, on disk and in a shared store, and brought back.

The bookkeeping (`tiers`) is compiled and moves no byte. The handlers move bytes between the media; those that need
torch or another library import it themselves, so that this package imports none of them.
"""
