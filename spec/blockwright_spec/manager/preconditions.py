"""Part one, chapter 12: what may be asked of a step, whatever the pool holds, and the request as the step finds it."""

from dataclasses import replace

from ..reads import Group, Mamba, Prefix, dead
from .chapters import adopted
from .facts import certain, goes_back, heads, is_coming, recurrent, resumed, runs_ahead, span
from .hits import sound
from .keys import aligned, num_adopted
from .outcomes import Reason, Refusal, Step
from .state import NULL, Config, Hit, Running, State, Table, Waiting


def misuse(config: Config, prefix: Prefix, length: int, begin: int, step: Step) -> Refusal | None:
    """Refuse a step from token `begin` on that no state of the pool could serve."""
    first, known = begin + step.coming(), len(prefix[1])
    if min(step.new, step.ahead(), step.uncertain(), step.coming(), step.beside(), step.inside(), step.reserve) < 0:
        return Refusal(Reason.NEGATIVE)
    is_inside = any(length % each.block_size for each in config.groups)
    if step.new == 0 and step.coming() == 0 and (length == 0 or is_inside):
        return Refusal(Reason.NO_TOKENS)
    if reason := step.mismatch(config, known, begin):
        return Refusal(reason)
    if first + step.new > config.max_model_len:
        return Refusal(Reason.TOO_LONG)
    if reason := step.refusal(config, known, begin):
        return Refusal(reason)
    return check_states(config, known, first, step)


def check_states(config: Config, known: int, first: int, step: Step) -> Refusal | None:
    """Refuse to run a recurrent state beyond the drafts that it can be taken back from (MAMBA-3).

    With steps in flight, one token may be unknown that is no draft: the one that the step before will give. Layers that
    run ahead keep the states of them all (MAMBA-6).
    """
    most, certain = goes_back(config), step.new - step.uncertain()
    is_certain = first + certain <= known or runs_ahead(config) or (config.overlaps and certain == 1)
    if most is None or (max(step.uncertain(), step.ahead()) <= most and is_certain):
        return None
    return Refusal(Reason.STATE_DRAFTED)


def is_empty(config: Config, request: Running, place: int) -> bool:
    """Return whether the entries of a state inside are not there yet: layers that run ahead may have drafts there."""
    groups = zip(config.groups, request.tables, strict=True)
    return all(len(table) < place // each.block_size for each, table in groups if isinstance(each.kind, Mamba))


def awaited(config: Config, request: Running) -> int:
    """Return the tokens after which a step left a state inside that is still to be published, or 0 (MAMBA-7)."""
    inside, groups = request.inside, zip(config.groups, request.published, strict=True)
    is_awaited = any(looked * each.block_size < inside for each, looked in groups if isinstance(each.kind, Mamba))
    return inside if is_awaited else 0


def kept_inside(config: Config, request: Running, settled: int) -> int:
    """Return the tokens after which a state inside is kept for its publication once some are settled, or 0 (MAMBA-7).

    It is kept while the request goes on in the block behind it. After that it is given up: publication that is put off,
    or a key that looks far ahead, would have a state pile up for each further block (MAMBA-1).
    """
    sizes = tuple(group.block_size for group in config.groups if isinstance(group.kind, Mamba))
    inside = awaited(config, request)
    return inside if inside and settled <= inside + min(sizes) else 0


def trim_end(config: Config, request: Running, settled: int) -> int:
    """Return the tokens that tables are trimmed for: none beyond a state that is still to be published (MAMBA-7)."""
    return min(settled, kept_inside(config, request, settled) or settled)


def trim_table(config: Config, group: Group, table: Table, settled: int) -> Table:
    """Replace the dead entries of a table by the null block (TRIM-1)."""
    kind, size = group.kind, span(config, group)
    return tuple(NULL if block == NULL or dead(kind, size, settled, at) else block for at, block in enumerate(table))


def trim_tables(config: Config, tables: tuple[Table, ...], settled: int) -> tuple[Table, ...]:
    """Trim the table of every group (TRIM-1)."""
    return tuple(trim_table(config, group, table, settled) for group, table in zip(config.groups, tables, strict=True))


def start_of(state: State, slot: int, hit: Hit, step: Step) -> Running | Refusal:
    """Return a waiting request as it starts on the blocks of its hit, or refuse.

    Of the hit before a load it holds the blocks that tokens after the load read: the load comes whole, or is given up.
    """
    config, request = state.config, state.requests[slot]
    if not isinstance(request, Waiting):
        return Refusal(Reason.NOT_WAITING)
    if refusal := misuse(config, request.prefix, hit.length, hit.length, step):
        return refusal
    if config.overlaps and step.new > 0 and not state.flights:
        return Refusal(Reason.NO_STEP)
    if step.coming() > 0 and is_coming(state, slot):
        return Refusal(Reason.LOADING)
    if refusal := wrong_hit(state, request.prefix, hit, step):
        return refusal
    hit, step = adopted(config, hit, step)
    tables = heads(config, hit)
    looked, length = tuple(hit.length // group.block_size for group in config.groups), hit.length
    end = resumed(request.prefix, length + step.coming()) if step.coming() else length
    kept = trim_tables(config, tables, end)
    saved = length if runs_ahead(config) else 0
    here = (length, length, length, kept, looked, end)
    start = Running(request.prefix, *here, beside=step.beside(), saved=saved)
    request = replace(request, hit=replace(request.hit, tables=tables))
    for chapter in config.chapters:
        start = chapter.start(state, request, start, step.coming())
    return start


def wrong_hit(state: State, prefix: Prefix, hit: Hit, step: Step) -> Refusal | None:
    """Refuse a hit that is none, or is none any more, or of which a chapter refuses what is adopted."""
    config, tables = state.config, heads(state.config, hit)
    counts = tuple(num_adopted(config, at, hit.length) for at in range(len(tables)))
    if hit.length % aligned(config) or counts != tuple(map(len, tables)):
        return Refusal(Reason.HIT_LENGTH)
    if not sound(state, prefix, hit):
        return Refusal(Reason.HIT_STALE)
    hit, _ = adopted(config, hit, step)
    refusals = (chapter.refuse(state, hit) for chapter in config.chapters)
    return next((refusal for refusal in refusals if refusal), None)


def wrong(state: State, slot: int, computed: int, step: Step) -> Refusal | None:
    """Refuse a step that a running request cannot ask for; `computed` is the engine's own count.

    It may take drafts back, but nothing that is certain; what is in flight is counted in full.
    """
    config, request = state.config, state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if refusal := misuse(config, request.prefix, 0, computed, step):
        return refusal
    if step.beside() + step.coming() > 0:
        return Refusal(Reason.RUNS)
    if request.coming > 0:
        return Refusal(Reason.LOADING)
    if computed > request.written:
        return Refusal(Reason.UNWRITTEN)
    if request.is_lost:
        return Refusal(Reason.GIVEN_UP)
    if step.inside() and not is_empty(config, request, step.inside()):
        return Refusal(Reason.NO_CHECKPOINT)
    if computed < (request.written if config.overlaps else max(certain(request), request.settled)):
        return Refusal(Reason.WENT_BACK)
    return check_overlap(state, slot, request) if config.overlaps else None


def check_overlap(state: State, slot: int, request: Running) -> Refusal | None:
    """Refuse a second step for a request in the open one, or one before its drafts are settled and known (MAMBA-3)."""
    if not state.flights:
        return Refusal(Reason.NO_STEP)
    if any(flight.slot == slot for flight in state.flights[-1]):
        return Refusal(Reason.REPEATED)
    is_open = any(flight.slot == slot and flight.uncertain for step in state.flights for flight in step)
    is_unknown = request.uncertain > 0 and request.computed < request.written
    return Refusal(Reason.DRAFTS_IN_FLIGHT) if recurrent(state.config) and (is_open or is_unknown) else None


def request_from(state: State, slot: int, computed: int, step: Step) -> Running | Refusal:
    """Return a running request as it goes on from `computed` tokens, or refuse; all before them is done by then.

    With steps in flight it goes on from what it was given slots for, and is told what is done by `settle`.
    """
    request, refusal = state.requests[slot], wrong(state, slot, computed, step)
    if refusal or not isinstance(request, Running):
        return refusal or Refusal(Reason.NOT_RUNNING)
    return request if state.config.overlaps else replace(request, settled=computed)
