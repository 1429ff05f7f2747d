"""Adapters: block managers of other makes under the gates of the kit, from their packages as published.

`capabilities` says what an adapter declares of its engine, and how findings are judged against the list of known
deviations. The others follow an engine (`follower`, `following`) or hold one (`vllm_*`);
the engines themselves are not part of this distribution.
"""

import sys
from pathlib import Path

CHECKOUT = str(Path(__file__).parents[3])
if CHECKOUT not in sys.path:  # whose benchmarks, which are not installed, know how peers are loaded
    sys.path.append(CHECKOUT)
