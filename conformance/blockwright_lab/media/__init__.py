"""Faults of media: disks and servers that stop or lie while blocks are on their way."""
