"""Ids of requests: text is kept as it is, and for any other hashable object a text that no other id has.

So inside, an id is always a `str`, whose hash and comparison cannot fail in the middle of a step. Those of a caller's
own class run here alone, at the start of a call.
"""

from __future__ import annotations

from itertools import count
from secrets import token_hex
from typing import Any, Final
from weakref import WeakValueDictionary

from blockwright.errors import InvalidArgumentError

_SECRET: Final = token_hex(16)
_numbers: Final = count()


class Name(str):
    """The text under which an id is kept that is no string. It shows itself as that id.

    Attributes:
        value: the id as it was given.
    """

    __slots__ = ("__weakref__", "value")
    value: Any

    def __repr__(self) -> str:
        """Show the id."""
        return repr(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the id: another process has a text of its own for it."""
        return id_kept, (self.value,)


_names: Final[WeakValueDictionary[Any, Name]] = WeakValueDictionary()


def id_kept(request_id: Any) -> str:
    """Return the text under which a request's id is kept; equal ids have the same. O(1).

    Raises:
        InvalidArgumentError: the id is the empty string, None, or has no hash.
    """
    if isinstance(request_id, str):
        if not request_id:
            raise InvalidArgumentError("request_id: must not be the empty string")
        return request_id if type(request_id) in (str, Name) else str.__str__(request_id)
    try:
        found = None if request_id is None else _names.get(request_id)
    except TypeError:
        request_id = None
    if request_id is None:
        raise InvalidArgumentError("request_id: must be a string or another hashable object, and not None")
    if found is None:
        found = Name(f"\0{_SECRET}{next(_numbers)}")
        found.value = request_id
        _names[request_id] = found
    return found


def id_given(name: str) -> Any:
    """Return the id that a text is kept for, as it was given. O(1)."""
    return name.value if type(name) is Name else name
