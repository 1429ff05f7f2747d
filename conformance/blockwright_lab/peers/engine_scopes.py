"""The scopes in which KV-cache managers of other makes are followed: smaller than Blockwright's own, of every kind.

Each is followed to the limit of the profile, shortest ways first. They are as small as they can be for what they are to
show: two requests, pools that two requests do not fit in, prompts that end on a block and beside one.
"""

from blockwright_conformance.kv_cache.scopes import Scope, of_row, rows_of

SCOPES: tuple[Scope, ...] = tuple([of_row(*row) for row in rows_of(__file__)["scopes"]])
