"""The script `blockwright`, in a package of its own: Ctrl-C ends it quietly while Blockwright is imported, too."""

import sys


def main() -> int:
    """Import the command, run it, and return its exit code."""
    try:
        from blockwright.cli import main as run
    except KeyboardInterrupt:
        print("blockwright: interrupted", file=sys.stderr)
        return 130
    return run()
