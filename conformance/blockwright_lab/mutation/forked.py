"""Does some work in a forked process, which may change anything, run on and on, or end."""

import json
import os
import select
import signal
import time
from collections.abc import Callable


def in_fork(work: Callable[[], str], limit: float) -> tuple[str, bool]:
    """Do some work in a forked process, silently; return the text that it gives, and whether it ended within `limit`.

    An error gives the text of a pair: nothing, and what was raised, as JSON. The process and all that it started is
    ended.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        with os.fdopen(writes, "w", encoding="utf-8") as pipe:
            pipe.write(silently(work))
            pipe.flush()
        os._exit(0)
    os.close(writes)
    received, until = bytearray(), time.monotonic() + limit
    try:
        while (left := until - time.monotonic()) > 0:
            if select.select([reads], [], [], left)[0]:
                more = os.read(reads, 1 << 16)
                if not more:
                    return received.decode("utf-8", "replace"), True
                received += more
        return "", False
    finally:
        os.close(reads)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def silently(work: Callable[[], str]) -> str:
    """Do some work without output; an error is told like a result."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        return work()
    except BaseException as error:
        return json.dumps(("", f"{type(error).__name__}: {error}"[:300]))
