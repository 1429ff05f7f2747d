"""A tier that several engines share: its stores, and the manager of reads and writes under way.

`ValkeyStore` keeps blocks in a Valkey or Redis server, `FileSystemStore` on any file system of fsspec. Both are
`ByteStore`s, for the handler that moves bytes, and tell `SharedStoreManager` which blocks are there.
"""
