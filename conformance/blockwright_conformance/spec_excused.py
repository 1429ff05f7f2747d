"""Mutants of the specification that are the same, and laws that others imply; by rules that a reviewer can check.

What is the same gives the same for everything that it can be asked: in any state that can be reached, by any call. Such
a mutant is looked for nearby all the same, and must not be noticed. An implied law is another view of the others: no
mutant may break it in a step in which it breaks none of those that imply it.
"""

import re
from dataclasses import dataclass
from functools import cache

from .mutation import Mutation


@dataclass(frozen=True, slots=True)
class Excuse:
    """A rule: which mutants (a pattern that their names match from the start), and why they are the same."""

    pattern: str
    reason: str


EXCUSED: tuple[Excuse, ...] = (
    Excuse(
        r"(\S+ \S+): (.*)strict=True(.*) -> \2strict=False\3( #\d+)?$",
        "where the parts of a zip are equally long it gives the same; where they are not the right text has "
        "no outcome, and in every place it has one",
    ),
    Excuse(
        r"asks\.py going: (if refusal or not isinstance\(request, Running\) -> if refusal|return refusal or .*"
        r" -> return refusal)$",
        "`wrong` refuses first of all what does not run, so that there is a refusal wherever the second "
        "operand is asked for",
    ),
    Excuse(
        r"effects\.py stepped: waits = .* -> waits = config\.settles or step\.publication is "
        r"Publication\.LATER$",
        "a step that loads computes no token (LOAD_ALONE), so that its computed count is that of its hit, up "
        "to which all was looked at",
    ),
    Excuse(
        r"effects\.py published: return state -> pass #2$",
        "if no entry is looked at anew there is no key to add, and the request is put in its slot as it was",
    ),
    Excuse(
        r"flights\.py landed: if flight\.slot is None or not isinstance\(request, Running\) -> if "
        r"(flight\.slot is None( and .*)?|not isinstance\(request, Running\))$",
        "a flight has a slot exactly as long as its request runs: `vacated`, by which alone requests stop "
        "running, takes the slot away (`orphaned`); without a slot the request is None",
    ),
    Excuse(
        r"flights\.py settle: .* -> if any\(\(not 0 <= count <= drafts\.get\(slot, -2\) for slot, count in "
        r"rejected\)\)$",
        "no count is at least 0 and at most -1, nor at most -2",
    ),
    Excuse(
        r"plans\.py planned: held = .* -> held = tuple\(\(block for table in tables for block in table\)\)$",
        "`held` is only asked which of its blocks are in the queue, and the null block never is (NULL-1)",
    ),
    Excuse(
        r"plans\.py trimmed: .* -> return tuple\(\(NULL if dead\(.*\) else block for entry, block in "
        r"enumerate\(table\)\)\)$",
        "an entry that is null and not dead is given as it is: null",
    ),
    Excuse(
        r"plans\.py rewritten: size, end = .* -> size, end = \(span\(state\.config, group\), begin - "
        r"step\.external \+ .*\)$",
        "only admissions load, from the end of their hit on, so that whatever is written first lies behind "
        "the table: there is no entry either way",
    ),
    Excuse(
        r"plans\.py planned: whole = .* -> whole = whole_demand\(state, start, begin, step\) if is_new and "
        r"step\.whole else -1$",
        "the numbers that `whole` is compared with by `max` are counts, at least 0: the demand, and what is "
        "kept and new",
    ),
    Excuse(
        r"reads\.py (reads|writes): return range\(0\) -> return range\(-1\)$",
        "both are the empty range, and equal",
    ),
    Excuse(
        r"storage\.py config_of: .*each\.layers\[0\].* -> .*each\.layers\[-1\].*$",
        "layers of one group are of one kind (LAYOUT-2): the last is as good as the first",
    ),
    Excuse(
        r"storage\.py held: .* -> alone = most_held\(config, group, limits\.tokens, slots, -?1\) - "
        r"group\.kind\.drafts$",
        "the encoder's tokens are read by `most_held` of cross-attention alone, and here the layer is recurrent",
    ),
    Excuse(
        r"inputs\.py unfit: .* -> is_short = any\(\(lacks\(config, at, row, work\) for row, work in mine for "
        r"at in groups\)\)$",
        "a request without a row has been refused two statements before",
    ),
    Excuse(
        r"inputs\.py state_read: .* -> return states_of_drafts\(row, at, accepted - 1, (2\)\[0\]|1\)\[-1\])$",
        "the first of two blocks is the first of one, and of one it is the last",
    ),
    Excuse(
        r"inputs\.py lacks: .*own\.states_written\[0\].* -> .*own\.states_written\[-1\].*$",
        "`share` gives a tuple of one element, for its one request: the last is the first",
    ),
    Excuse(
        r"rows\.py gaps: .* -> return rows\[:max\(\(place \+ 0 .*$",
        "the last row is no free place: whether it is among those that are counted changes no count",
    ),
    Excuse(
        r"paged_tables\.py allocate: .*PagedTable\(prefix, \(\), device, 0, .* -> .*PagedTable\(prefix, \(\), "
        r"device, -?1, .*$",
        "`computed` is a ghost that `dead_entries` divides by the block size before it takes a window of at "
        "least one block away: for -1 and 1, as for 0, nothing is dead; appending takes the greater of it and"
        " what it is told",
    ),
    Excuse(
        r"paged_tables\.py append: trimmed = .* computed or 0, choice\) -> .* computed or -?1, choice\)$",
        "the same ghost: with 1 computed token, or none, no entry is behind a window of at least one block, "
        "and without a window it is not kept",
    ),
    Excuse(
        r"paged_tables\.py windowed: table = .* else 0\) -> .* else -?1\)$",
        "without a window `dead_entries` does not read `computed`, a ghost",
    ),
    Excuse(
        r"paged_tables\.py windowed: gone = .* -> gone = tuple\(\(block for block in "
        r"table\.entries\[:dead\]\)\)$",
        "there are null entries only if there is a null block, which is then not taken again, and `let_go` "
        "passes it over",
    ),
    Excuse(
        r"paged_tables\.py written_entries: stop = .* else -1$",
        "either gives no entry: the range begins at 0 at least and ends at 0, or at -1",
    ),
    Excuse(
        r"paged_tables\.py swap: if any\(\(table is not None and table\.device is to for table in tables\)\) "
        r"-> if any\(\(table\.device is to for table in tables\)\)$",
        "a swap of what has no table has been refused the statement before; the operand is for the type checker",
    ),
    Excuse(
        r"paged_effects\.py emptied: return state -> pass$",
        "no block is emptied, so that every value stays as it is",
    ),
    Excuse(
        r"paged_outcomes\.py lowest: return block -> return block \+ 1$",
        "the order of the blocks is the same: it is only asked for the least",
    ),
    Excuse(
        r"paged_outcomes\.py rank: return \(False, 0, 0\) if key is None .* -> return \(False, (0, -?1|-?1, "
        r"0)\) if key is None .*$",
        "all blocks without a key have one rank, below every rank that begins with True; which it is matters to nobody",
    ),
    Excuse(
        r"chain_calls\.py load: prepared = .* -> prepared = prepare_store\(done\.state\.tiers\[0\], "
        r"tuple\(\(key for key in keys( if sources\[key\] != -1)?\)\)\)$",
        "`prepare_store` passes over keys that are present, and takes no key that is named for another: one "
        "present in tier 0 is being read by now, or is being written, and so is not idle",
    ),
    Excuse(
        r"chain_effects\.py on_tier: raise UnexpectedRefusalError\(outcome\) -> pass$",
        "no call of a tier is refused here: it has been made sure of, or there is no outcome either way, "
        "since a refusal has no state",
    ),
    Excuse(
        r"tier_calls\.py without: .* -> .*freed=\(\*state\.freed, \*freed\)\)$",
        "what a place holds is a ghost that counts for a ready block alone (TIER-1), and what is entered anew"
        " is written before it is ready",
    ),
    Excuse(
        r"tier_state\.py places: .* -> return tuple\(\(entry\.place for key in keys for entry in "
        r"\(entry_of\(state, key\),\)\)\)$",
        "whoever asks for places names blocks that are present: evicted, prepared, read or written by a "
        "transfer (CHAIN-1)",
    ),
    Excuse(
        r"inputs\.py block_at: .* -> return next\(iter\(table\[position // size:position (\* size \+ 1|// size"
        r" \+ 2)\]\), NULL\)$",
        "only the first of the slice is taken, and it begins at the same entry and is empty only where that is missing",
    ),
    Excuse(
        r"paged_tables\.py ensure: .* -> if \(refusal := wrong_append\(state, slot, slots, 1\)\)$",
        "a table has a token at least (NO_TOKENS), so that 1 computed token is as right as 0; `ensure` does "
        "not use the count",
    ),
    Excuse(
        r"paged_tables\.py append: trimmed = .* slot, computed, choice\)$",
        "without a window the count is not read, and with one None has been refused (NOT_TOLD)",
    ),
    Excuse(
        r"inputs\.py state_read: accepted = 0 if row\.certain is None else .* -> accepted = -1 if row\.certain is None "
        r"else .*$",
        "the count is only asked whether it is above 0, and read as a number only if it is",
    ),
    Excuse(
        r"chain_effects\.py landed_load: .* -> return taken_away\(done, 0, keys\) if done\.state\.config\.frees else "
        r"done$",
        "`taken_away` passes over what is not idle, and after a load that failed none of its blocks is: it read "
        "them all, and the failure has made each doomed that was ready, or taken it away",
    ),
    Excuse(
        r"chain_state\.py held: .* -> return tuple\(\(key for key in each\.keys if key not in waits\)\)$",
        "a transfer without a source is a store, and what a store holds is read by nobody: `cancel` and "
        "`landed_promotion` use what loads hold, `reads` asks of transfers with a source alone, and `readers` counts "
        "those whose source is a tier",
    ),
    Excuse(
        r"paged_tables\.py swap: moving, counted = .* -> moving, counted = \(moved\(state, slots\), swapping\(state, "
        r"tuple\(\(\(slot, (0|-1)\) for slot in slots\)\), to, (0|-1)\)\)$",
        "per table the greater is counted of what appending touches and of what the table has beyond its full blocks: "
        "to append nothing touches the begun block alone, which it has, and to append -1 touches no more",
    ),
    Excuse(
        r"effects\.py published: if not isinstance\(request, Running\) or .* -> if not config\.caching$",
        "whoever publishes has a request that runs: `stepped`, `landed` and `finish_load` have just put it in its "
        "slot, and `publish` has refused any other; the operand is for the type checker",
    ),
    Excuse(
        r"flights\.py finish_load: part = .* else -1$",
        "with one token less than the hit that the load followed nothing is written, no entry is looked at anew, and "
        "the counts go with the request, which gives all its blocks up",
    ),
    Excuse(
        r"forks\.py wanted_states: .* else -1\)$",
        "a tuple repeated -1 times is as empty as one repeated 0 times",
    ),
)
"""All rules; the first that matches counts."""


IMPLIED: dict[str, tuple[tuple[str, ...], str]] = {
    "TABLE-2": (
        ("STEP-3", "WRITE-1", "READ-1"),
        "a block comes to a table in three ways: taken, and then STEP-3 says that it has this one holder, two "
        "entries of one request being two; for a draft's state, and then WRITE-1 says the same; or adopted with a "
        "hit, and then two entries would need two prefixes in one block, which READ-1 excludes",
    ),
    "CHAIN-3": (
        ("CHAIN-1", "TIER-3"),
        "with no transfer under way CHAIN-1 says of every block that it has no reader and is not being written, and "
        "TIER-3 that none has been found bad without a reader: what is left is ready, and nobody reads it",
    ),
    "SLOT-2": (
        ("SLOT-1", "STATE-2", "STEP-3", "WRITE-2"),
        "SLOT-1 says that a token's slot lies in the block of its entry, and STATE-2 the same of a state; by STEP-3 "
        "and WRITE-2 what is written has one holder, so that two entries, groups or requests never name one block",
    ),
}
"""Laws that no mutant breaks alone: some of which others are always broken with them, and why."""


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Give the compiled rules."""
    return tuple(re.compile(each.pattern) for each in EXCUSED)


def reason_for(mutation: Mutation) -> int | None:
    """Give the number of the rule that excuses a mutant."""
    return next((at for at, pattern in enumerate(patterns()) if pattern.match(mutation.key)), None)
