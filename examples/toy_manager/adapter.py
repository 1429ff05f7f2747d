"""The adapter of the toy manager: the engine's side of it, in the words of the conformance kit."""

import copy
from typing import Any, Self

from blockwright_conformance import Capabilities, Found, Observation
from toy import EagerManager, NoBlocksError, TooLongError, ToyManager


class ToyAdapter:
    """One manager, and the requests of the engine. A prefix is a pair: extra keys (none here), and tokens."""

    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"chunks", "reset"}),
        features=frozenset({"caching"}),
    )
    errors, stale, follows_policy = (TooLongError,), (), False  # it may evict in an order of its own
    manager_class = ToyManager

    def __init__(self, config: Any) -> None:
        self.manager = self.manager_class(config.num_blocks, config.groups[0].block_size, config.max_model_len)
        self.tokens: dict[str, list[int]] = {}
        self.hits: dict[str, list[int]] = {}

    def copy(self) -> Self:
        return copy.deepcopy(self)

    def send(self, name: str, prefix: tuple[int, tuple[int, ...]]) -> None:
        self.tokens[name] = list(prefix[1])

    def forget(self, name: str) -> None:
        self.tokens.pop(name, None)

    def find(self, name: str) -> Found:
        hit = self.hits[name] = self.manager.cached_prefix(self.tokens[name])
        return Found(len(hit) * self.manager.block_size, (tuple(hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        end = computed + length + step.new
        try:
            if name in self.manager.tables:
                new = self.manager.grow(name, end)
            else:
                new = self.manager.admit(name, self.hits.get(hit_of or "", []) if length else [], end)
        except NoBlocksError:
            return None
        self.manager.publish(name, self.tokens[name][:end])
        return (tuple(new),)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.tokens[name] += tokens

    def free(self, name: str) -> None:
        self.manager.free(name)

    def reset(self) -> bool:
        return self.manager.reset()

    def common_prefix(self, name: str, running: int) -> None: ...  # it does not count them

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables = self.manager.tables
        shown = tuple((tuple(tables[name]),) if name in tables else None for name in names)
        return Observation(shown, references=tuple(self.manager.ref_counts), free=len(self.manager.free_blocks))

    def check(self) -> None: ...  # it has no self-check


class EagerAdapter(ToyAdapter):
    """The manager with the bug."""

    manager_class = EagerManager
