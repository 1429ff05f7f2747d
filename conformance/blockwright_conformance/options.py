"""The options of the kit's sub-commands, from one table (``command.toml``)."""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("command.toml").read_text(encoding="utf-8"))


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, not {text!r}")
    return int(text)


def limit(text: str) -> int | None:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer or 'all', not {text!r}")
    return None if text == "all" else int(text)


TYPES: Final[dict[str, Callable[[str], Any]]] = {"path": Path, "count": count, "limit": limit, "text": str}


def added(subparsers: Any, name: str, run: Callable[..., int], choices: Mapping[str, Any], **usual: Any) -> None:
    """Add a sub-command; `choices` are those of some options, `usual` defaults that only code knows."""
    options, words = TABLE[name]["options"], {word: text for word, text in TABLE[name].items() if word != "options"}
    form = argparse.RawDescriptionHelpFormatter if "epilog" in words else argparse.HelpFormatter
    parser = subparsers.add_parser(name, formatter_class=form, **words)
    for option, more in options.items():
        own = {"choices": tuple(choices[option])} if option in choices else {}
        parser.add_argument(option, **more | own | {"type": TYPES[more.get("type", "text")]})
    parser.set_defaults(run=run, **usual)
