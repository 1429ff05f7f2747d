"""Part one, chapter 5: the effects on blocks that are not of taking or releasing them, each noted for the page."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from .page import Act, Acts
from .state import NULL, Content, State


def note(state: State, steps: Acts, **changes: Any) -> State:
    """Make changes, note the steps of the page that they are, and let chapters hear of them."""
    if not steps and not changes:
        return state
    state = replace(state, steps=state.steps + steps, **changes)
    for chapter in state.config.chapters:
        state = chapter.hear(state, steps)
    return state


def write_blocks(state: State, into: Mapping[int, Content | None]) -> State:
    """Write to blocks that have other contents, except for the null block."""
    new = {block: content for block, content in into.items() if block != NULL and content != state.contents[block]}
    if not new:
        return state
    contents = tuple(new.get(block, content) for block, content in enumerate(state.contents))
    return note(state, tuple(Act("write", block, content=content) for block, content in new.items()), contents=contents)


def publish_keys(state: State, keys: tuple[tuple[int, Content], ...]) -> State:
    """Let lookups find blocks as some contents."""
    steps = tuple(Act("publish", block, content=content) for block, content in keys)
    return note(state, steps, keys=state.keys + keys) if keys else state


def forget_keys(state: State, gone: Collection[tuple[int, Content]]) -> State:
    """Let no lookup find blocks as some contents any more."""
    if not gone:
        return state
    steps = tuple(Act("forget", block, content=content) for block, content in state.keys if (block, content) in gone)
    return note(state, steps, keys=tuple(each for each in state.keys if each not in gone))
