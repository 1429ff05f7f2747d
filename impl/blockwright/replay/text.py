"""Prompts that a trace holds as text or messages, and the tokenizer that turns them into tokens.

No chat template is applied: each message is its role and its text, so that prompts share what their messages share,
and are some tokens shorter than an engine's.
"""

from __future__ import annotations

import importlib.util
import json
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from blockwright.errors import InvalidArgumentError
from blockwright.replay.rows import Row

_ANSWERS: Final = frozenset(("assistant", "gpt", "chatgpt", "bing", "bard", "model"))


class Tokenizer:
    """A tokenizer of the library `tokenizers`, from its file."""

    def __init__(self, path: str | Path) -> None:
        if importlib.util.find_spec("tokenizers") is None:
            raise InvalidArgumentError("tokenizer: needs tokenizers; install it with: pip install tokenizers")
        from tokenizers import Tokenizer

        try:
            encode = Tokenizer.from_file(str(path)).encode
        except Exception as error:  # the library raises no narrower one
            raise InvalidArgumentError(f"tokenizer: {path} is no tokenizer.json ({error})") from None
        # Turns of a conversation repeat its messages.
        self.tokens = lru_cache(1 << 12)(lambda text: array("i", encode(text, add_special_tokens=False).ids))


def prompts_of(row: Row, name: str, all_of_it: bool = False) -> Iterator[tuple[list[str], str]]:
    """Yield the messages that precede each answer in a field of text or messages, and the answer or nothing.

    With `all_of_it` the field is one prompt, and its last message may be an answer.

    Raises:
        TraceError: no text and no messages.
    """
    if isinstance(text := row.get(name), str):
        yield [text], ""
        return
    said: list[str] = []
    answered = False
    for message in row.rows(name):
        role = message.get("role") or message.get("from")
        content = message.get("content" if "content" in message.fields else "value")
        if not isinstance(role, str):
            raise message.wrong("role", "the name of who speaks")
        one = f"{role}\n{content if isinstance(content, str) else json.dumps(content, sort_keys=True)}\n"
        answered = role.lower() in _ANSWERS
        if answered and said and not all_of_it:
            yield said[:], one
        said.append(one)
    if all_of_it or not answered:
        yield said, ""
