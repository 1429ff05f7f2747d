"""The command `blockwright`, as ``python -m blockwright``."""

import sys

from blockwright.cli import main

sys.exit(main())
