"""Part one, chapter 1: how to read this part, and what a first reading leaves out.

This part is best read twice. The first reading is of an engine that runs one step after another, on tokens that it
knows, and says nothing of what to keep. The second adds steps in flight, drafts, loads, forks and encoders (`in_time`),
what others are told (`events`), and what is kept for whom (`retention`). What only the second needs of a configuration,
a request and a step is below, and stands there in a field `added`. A first reading goes on with the next chapter: to it
every `added` is plain, and what a chapter says of it can be passed over.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from ..hints import UNSAID, Wish


@dataclass(frozen=True, slots=True)
class ConfigAdded:
    """What is added to a configuration (`state.Config`).

    With `overlaps`, steps are in flight until they are settled; without, each call says that all before it is done.
    With `settles`, blocks are published when their data is settled, without when a step that writes them is scheduled.
    With `tells`, the outside is told what can be found. With `counts`, what happens is counted. With `retains`,
    candidates are told apart by hints and tenants: each of `floors` is a tenant's extra keys and the blocks that are
    its own, and the last `guard` candidates are out of the reach of hints. With `keeps`, blocks that no wanted hit
    needs go first (chapter `keeping`), except the last `spares` of them, which go as others do where there are neither
    hints nor floors. With a `unit`, which divides every block, hits may end inside blocks, at its multiples (chapter
    `units`).
    """

    overlaps: bool = False
    settles: bool = False
    tells: bool = False
    counts: bool = False
    retains: bool = False
    floors: tuple[tuple[Hashable, int], ...] = ()
    guard: int = 0
    keeps: bool = False
    spares: int = 0
    unit: int = 0


@dataclass(frozen=True, slots=True)
class RunningAdded:
    """What is added to a request with block tables (`state.Running`).

    `states` are, per group, the blocks for the states of draft tokens; `drafts` counts the drafts of the last step, all
    its unknown tokens unless steps are in flight. Of recurrent layers that run ahead, `saved` is the first token
    count of the last steps without a gap: from there on each step leaves the state at the last block end that it
    passes. `encoder` tokens are read by cross-attention; `loading` tokens after the written ones are on their way from
    elsewhere. `wish` is what was said of its blocks, and `wants` are the lengths of hits that it wants kept. `tails`
    are the lengths that end inside a block and are still to be published; `is_delayed` says that the last step put
    publication off.
    """

    states: tuple[tuple[int, ...], ...] = ()
    drafts: int = 0
    saved: int = 0
    encoder: int = 0
    loading: int = 0
    wish: Wish = UNSAID
    wants: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()
    is_delayed: bool = False


@dataclass(frozen=True, slots=True)
class StepAdded:
    """What is added to a step (`outcomes.Step`): the last `drafts` of its new tokens are drafts.

    For a request that is admitted, also: slots for `external` tokens that are loaded, and for the tokens of an
    `encoder`.
    """

    drafts: int = 0
    external: int = 0
    encoder: int = 0


PLAIN_CONFIG = ConfigAdded()
PLAIN_REQUEST = RunningAdded()
PLAIN_STEP = StepAdded()
"""What stands in a first reading: nothing is added."""
