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


def prompt_of(row: Row, name: str) -> tuple[list[str] | list[int], int]:
    """Return the one prompt in a field: text, texts, token ids or messages; and how many of these end with an answer.

    Of what is no messages, that number is -1: nothing says what is an answer.

    Raises:
        TraceError: none of these.
    """
    value = row.get(name)
    if isinstance(value, str):
        return [value], -1
    if isinstance(value, list) and value and not isinstance(value[0], dict):
        return row.names(name), -1
    if isinstance(value, list) and value and "contents" in value[0]:  # aiperf's and genai-perf's named texts
        return [str(text) for each in row.rows(name) for text in each.names("contents")], -1
    messages = list(_messages(row, name))
    answers = [number for number, (_, is_answer) in enumerate(messages, 1) if is_answer]
    return [text for text, _ in messages], answers[-1] if answers else 0


def prompts_of(row: Row, name: str) -> Iterator[tuple[list[str], str]]:
    """Yield the messages that precede each answer in a field of messages or of text, and the answer or nothing.

    Raises:
        TraceError: no text and no messages.
    """
    if isinstance(text := row.get(name), str):
        yield [text], ""
        return
    said: list[str] = []
    answered = False
    for one, answered in _messages(row, name):
        if answered and said:
            yield said[:], one
        said.append(one)
    if not answered:
        yield said, ""


def _messages(row: Row, name: str) -> Iterator[tuple[str, bool]]:
    """Yield each message with its role, and whether it is an answer."""
    for message in row.rows(name):
        role = message.get("role") or message.get("from")
        content = message.get("content" if "content" in message.fields else "value")
        if not isinstance(role, str):
            raise message.wrong("role", "the name of who speaks")
        text = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        yield f"{role}\n{text}\n", role.lower() in _ANSWERS
