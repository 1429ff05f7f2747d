"""Part one, chapter 1: how to read this part, and the parts that a first reading leaves out.

This part is best read twice. The first reading is of an engine that runs one step after another, on tokens that it
knows, and says nothing of what to keep. The second adds steps in flight, drafts, loads, forks and encoders (`in_time`),
what others are told (`events`), and what is kept for whom (`retention`). What only the second needs of a configuration,
a request and a step is below, in a field `added`. A first reading goes on with the next chapter: to it
every `added` is plain, and its mentions in a chapter can be passed over.
"""

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass

from ..hints import UNSAID, Wish
from ..reads import Group, Prefix, cut, longest_hit


@dataclass(frozen=True, slots=True)
class ConfigAdded:
    """Additions to a configuration (`state.Config`).

    With `overlaps`, steps are in flight until they are settled; without, each call says that all before it is done.
    With `settles`, blocks are published when their data is settled, without when a step that writes them is scheduled.
    With `tells`, the outside is told what can be found. With `counts`, what happens is counted. With `retains`,
    candidates are told apart by hints and tenants: each of `floors` is a tenant's extra keys and the blocks that are
    its own, and the last `guard` candidates are out of the reach of hints. With `keeps`, blocks that no wanted hit
    needs go first (chapter `keeping`), except the last `spares` of them, which go as others do where there are neither
    hints nor floors. With `learns` their number is learned: its numbers say in how many parts of the pool, how slowly,
    and which part of a hit counts as all of it. With `every`, hits of each multiple of so many tokens are wanted too.
    With `key_lookahead`, a key covers so many tokens behind its block as well (PUB-4). With a `unit`, which divides
    every block, hits may end inside blocks, at its multiples (chapter `units`). So many of the
    `last_prompts` that were admitted are remembered, where no layer shows a junction.
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
    learns: tuple[int, int, int] | None = None
    every: int = 0
    key_lookahead: int = 0
    unit: int = 0
    last_prompts: int = 0


@dataclass(frozen=True, slots=True)
class Wants:
    """What a request wants kept (chapter `keeping`): hits of these lengths.

    From the `proven` ones other requests have gone on as well. With `output`, as it ends, it also wants all that it has
    published.
    """

    lengths: tuple[int, ...] = ()
    proven: tuple[int, ...] = ()
    output: bool = True


NO_WANTS = Wants()
"""Where nothing is kept so."""


@dataclass(frozen=True, slots=True)
class RunningAdded:
    """Additions to a request with block tables (`state.Running`).

    `states` are, per group, the blocks for the states of draft tokens; `drafts` counts the drafts of the last step, all
    its unknown tokens unless steps are in flight. Of recurrent layers that run ahead, `saved` is the first token count
    of the last steps without a gap: from there on each step leaves the state at the last block end that it passes. At
    `checkpoint` tokens, if not 0, a step left states of recurrent layers besides those at its end: the last step, or
    one of which they are still to be published. `encoder` tokens are read by cross-attention; `loading` tokens after
    the written ones are on their way from elsewhere. `wish` is what was said of its blocks, and `wants` the hits that
    it wants kept. `tails` are the lengths that end inside a block and are still to be published, `end_tails` those of
    them where recurrent layers publish the state; `is_delayed` says that the last step put publication off, `is_lost`
    that it holds what was given up before it was written (chapter `giving_up`), and `is_inside` that the engine trimmed
    at a count at which no recurrent state stands. Of the blocks within `folded` tokens it was asked who else has them.
    """

    states: tuple[tuple[int, ...], ...] = ()
    drafts: int = 0
    saved: int = 0
    checkpoint: int = 0
    encoder: int = 0
    loading: int = 0
    wish: Wish = UNSAID
    wants: Wants = NO_WANTS
    tails: tuple[int, ...] = ()
    end_tails: tuple[int, ...] = ()
    is_delayed: bool = False
    is_lost: bool = False
    is_inside: bool = False
    folded: int = 0


@dataclass(frozen=True, slots=True)
class StepAdded:
    """Additions to a step (`outcomes.Step`): the last `drafts` of its new tokens are drafts.

    With a `checkpoint`, recurrent layers also keep the state after so many tokens, at the last block end before the
    step's own end (MAMBA-7). For a request that is admitted, also: slots for `external` tokens that are loaded, and for
    the tokens of an `encoder`.
    """

    drafts: int = 0
    external: int = 0
    encoder: int = 0
    checkpoint: int = 0


PLAIN_CONFIG = ConfigAdded()
PLAIN_REQUEST = RunningAdded()
PLAIN_STEP = StepAdded()
"""What stands in a first reading: nothing is added."""


def named(added: ConfigAdded, at: int, prefix: Prefix, end: int) -> tuple[int, Prefix]:
    """Return what a group's block that ends after `end` tokens of a prefix is published as (PUB-1, PUB-4).

    A draft layer's data at a position depends on the token behind it too. Where keys look ahead they cover these
    tokens, and no margin is left of a hit.
    """
    return at, cut(prefix, end + added.key_lookahead)


def keyed(added: ConfigAdded, prefix: Prefix) -> int:
    """Count the tokens that keys can be made of: behind them, those that the keys look ahead at are known (PUB-4)."""
    return len(prefix[1]) - added.key_lookahead


def end_of(added: ConfigAdded, content: tuple[int, Prefix]) -> int:
    """Return the token behind which a block ends that is published as a content, or the part that is."""
    return len(content[1][1]) - added.key_lookahead


def is_published(added: ConfigAdded, published: Set[tuple[int, Prefix]], at: int, prefix: Prefix, end: int) -> bool:
    """Return whether a group's block that ends after `end` tokens of a prefix is among published contents."""
    return end <= keyed(added, prefix) and named(added, at, prefix, end) in published


def longest(
    added: ConfigAdded,
    groups: Iterable[tuple[int, Group]],
    published: Set[tuple[int, Prefix]],
    prefix: Prefix,
    eagle: bool,
    lengths: Sequence[int],
) -> int:
    """Return the longest hit of a prefix, one of some lengths, in some numbered groups, if just these are published.

    It ends where keys do, even if it needs none there (HIT-3).
    """
    numbers, those = zip(*groups, strict=True)

    def found(at: int, known: Prefix) -> bool:
        return is_published(added, published, numbers[at], prefix, len(known[1]))

    most = max(0, keyed(added, prefix))
    within = tuple(length for length in lengths if length <= most)
    return longest_hit(those, found, cut(prefix, most + 1), eagle, within)


def continues(added: ConfigAdded, prefix: Prefix, content: Prefix) -> bool:
    """Return whether a prefix goes on behind a block as a content says whose key looks ahead (PUB-4)."""
    return added.key_lookahead == 0 or cut(prefix, len(content[1])) == content
