"""Switches in the environment: what turns one on, what leaves it off, and an error for any other word.

`setup.py` runs this file by its path, before the package exists, so it imports only the standard library.
"""

from __future__ import annotations

import os

ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off", "")


def is_on(name: str) -> bool:
    """Return whether a variable of the environment is a word for on, in either case; unset is off.

    Example:
        >>> os.environ["BLOCKWRIGHT_EXAMPLE"] = "False"
        >>> is_on("BLOCKWRIGHT_EXAMPLE")
        False
        >>> os.environ["BLOCKWRIGHT_EXAMPLE"] = "maybe"
        >>> is_on("BLOCKWRIGHT_EXAMPLE")
        Traceback (most recent call last):
        ValueError: BLOCKWRIGHT_EXAMPLE='maybe': takes 1, true, yes or on, and 0, false, no, off or nothing
        >>> del os.environ["BLOCKWRIGHT_EXAMPLE"]

    Raises:
        ValueError: it is another word.
    """
    word = os.environ.get(name, "")
    if word.strip().lower() in ON:
        return True
    if word.strip().lower() in OFF:
        return False
    raise ValueError(f"{name}={word!r}: takes 1, true, yes or on, and 0, false, no, off or nothing")
