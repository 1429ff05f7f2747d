"""What the adapters of this folder have in common: requests by their names, and what these managers do not have."""

import copy
from typing import Any, Self


class Adapter:
    errors: tuple[type[Exception], ...] = ()
    stale: tuple[type[Exception], ...] = ()
    follows_policy = False  # each of them takes blocks in an order of its own

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.shared: list[Any] = []  # what all copies may have in common, since nothing changes it

    def copy(self) -> Self:
        return copy.deepcopy(self, {id(each): each for each in self.shared})

    def forget(self, name: str) -> None:
        self.requests.pop(name, None)

    def common_prefix(self, name: str, running: int) -> None: ...

    def check(self) -> None: ...
