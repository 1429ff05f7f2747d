"""Copies of objects that keep their state in fields, compiled or not."""

from __future__ import annotations


def copy_fields(source: object, twin: object, *left: str) -> None:
    """Set the fields of another object of the class to copies of these; those named in `left` stay as they are.

    What has a method `copy` is copied by it, a vector by a slice; everything else is shared. So a new field of a class
    is copied without being listed anywhere. O(contents).
    """
    for name in getattr(type(source), "__mypyc_attrs__", None) or vars(source):
        if name not in left:
            value = getattr(source, name)
            is_vector = type(value).__name__.startswith("vec[")
            setattr(twin, name, value.copy() if hasattr(value, "copy") else value[:] if is_vector else value)
