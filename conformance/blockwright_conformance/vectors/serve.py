"""Serves a Python manager by the protocol, for who wants to see one speak it: reads lines, answers each with one.

python -m blockwright_conformance.vectors.serve [module:factory]
"""

import sys
from collections.abc import Iterator
from typing import TextIO

from ..capabilities import Capabilities
from ..gates import OURS, factory_of
from ..kv_cache.adapter import ManagerAdapter
from ..kv_cache.fitting import FEATURES, QUESTIONS
from ..kv_cache.scopes import CALLS, LAYERS
from ..kv_cache.world import Factory
from .calls import SIGNATURES, asked
from .wire import answer_line, call_of, config_from, hello_line, state_line

EVERYTHING = Capabilities(frozenset(LAYERS), frozenset(CALLS) - QUESTIONS, frozenset(FEATURES))
"""What the protocol can ask of a manager."""


def served(factory: Factory, lines: TextIO) -> Iterator[str]:
    adapter: ManagerAdapter | None = None
    for line in lines:
        match line.split():
            case ["hello", *_]:
                yield hello_line("python", EVERYTHING, getattr(factory, "follows_policy", True))
            case ["new", *_]:
                adapter = factory(config_from(line))
                yield "ok"
            case ["state", *names] if adapter is not None:
                yield state_line(adapter.observe(tuple(names)))
            case [word, *_] if adapter is not None and word in SIGNATURES:
                yield answer_line(asked(adapter, call_of(line)))
            case _:
                yield "error no such call"


if __name__ == "__main__":
    for answer in served(factory_of(*(sys.argv[1:] or [OURS])), sys.stdin):
        print(answer, flush=True)
