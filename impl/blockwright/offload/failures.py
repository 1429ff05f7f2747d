"""How a failure is named in a log: by its type and place, never by its message.

The message of a client of a store may hold an address with a password in it, that of a foreign handler anything.
"""

from __future__ import annotations

from pathlib import Path


def name_of(error: BaseException) -> str:
    """Return the kind of an error and the line of code that raised it.

    >>> name_of(ValueError("secret"))
    'ValueError'
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    kind = type(error).__name__
    return kind if trace is None else f"{kind} ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
