"""Copies of objects that keep their state in fields, compiled or not."""

from __future__ import annotations

_SHARED = frozenset((int, float, bool, str, bytes, tuple, type(None)))


def copy_fields(source: object, twin: object, *left: str) -> None:
    """Set the fields of another object of the class to copies of these; those named in `left` stay as they are.

    What has a method `copy` is copied by it, a vector by a slice; everything else is shared. So a new field of a class
    is copied without being listed anywhere. O(contents).
    """
    for name in getattr(type(source), "__mypyc_attrs__", None) or vars(source):
        if name not in left:
            value = getattr(source, name)
            if type(value) not in _SHARED:  # most fields are shared, and asked first
                is_vector = type(value).__name__.startswith("vec[")
                value = value.copy() if hasattr(value, "copy") else value[:] if is_vector else value
            setattr(twin, name, value)
