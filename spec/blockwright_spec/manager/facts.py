"""Part one, chapter 4: what follows from a state: who holds a block, what it is published as, how far a request is."""

from operator import add

from ..reads import Ahead, Cross, Group, Mamba, Prefix, entries, entries_ahead, num_states
from .state import Config, Content, Hit, Running, State, Table


def heads(config: Config, hit: Hit) -> tuple[Table, ...]:
    """Return the heads of a request's tables, one per group, for a hit; empty ones if nothing was found."""
    return hit.tables or ((),) * len(config.groups)


def span(config: Config, group: Group) -> int:
    """Return the positions a table entry covers: all of them for a recurrent layer that caches nothing (MAMBA-2)."""
    return config.max_model_len if isinstance(group.kind, Mamba) and not config.caching else group.block_size


def recurrent(config: Config) -> bool:
    """Return whether some group keeps a recurrent state, which cannot run ahead of the known tokens nor go back."""
    return goes_back(config) is not None


def goes_back(config: Config) -> int | None:
    """Return how many tokens every recurrent layer can take back, or None where there is no recurrent layer."""
    return min((num_states(group.kind) for group in config.groups if isinstance(group.kind, Mamba)), default=None)


def runs_ahead(config: Config) -> bool:
    """Return whether recurrent layers keep every state that accepted tokens may need (MAMBA-6)."""
    return any(isinstance(group.kind, Ahead) for group in config.groups)


def entries_of_states(config: Config, group: Group, known: int, stop: int) -> range:
    """Return the entries that a step of a layer that runs ahead may write to (MAMBA-6)."""
    return entries_ahead(group.kind, span(config, group), known, stop, stop > known or not config.caching)


def running(state: State) -> tuple[Running, ...]:
    """Return the requests that have block tables."""
    return tuple(each for each in state.requests if isinstance(each, Running))


def owned(request: Running) -> tuple[Table, ...]:
    """Return, per group, the blocks of a request: its table, and the blocks for states beside that after it."""
    states = request.states
    return tuple(map(add, request.tables, states)) if states else request.tables


def shared_tables(state: State) -> tuple[Table, ...]:
    """Return what requests own, and what is still to be released."""
    own = (table for request in running(state) for table in owned(request))
    return (*own, *(table for batch in state.batches for table in batch.tables))


def held_tables(state: State) -> tuple[Table, ...]:
    """Return all that hold blocks: requests, batches to be released, both ends of copies, and pins."""
    return (*shared_tables(state), *(tuple(ends) for _, *ends in state.copies), state.pins)


def holders(state: State, block: int) -> int:
    """Count the entries of tables, batches, copies, states beside tables and pins with a block (REF-1)."""
    return sum(table.count(block) for table in held_tables(state))


def comes_free(state: State, block: int, times: int = 1) -> bool:
    """Return whether a block is free once it is let go of so often: its holders are no more, and the pool goes on."""
    return holders(state, block) == times and block < state.config.num_blocks


def sharers(state: State, block: int) -> int:
    """Count the entries of tables and batches that hold a block: a writer must be the only one (WRITE-2)."""
    return sum(table.count(block) for table in shared_tables(state))


def resumed(prefix: Prefix, end: int) -> int:
    """Return the tokens that count as done once all up to `end` are loaded: the last known one is computed again."""
    return min(end, len(prefix[1]) - 1)


def certain(request: Running) -> int:
    """Return the end of the tokens with slots that hold for certain: where a recurrent state stopped (MAMBA-3)."""
    return request.written - request.uncertain


def in_flight(state: State, slot: int) -> tuple[int, ...]:
    """Return the numbers of the steps in flight that compute tokens of a request."""
    return tuple(at for at, step in enumerate(state.flights) if any(flight.slot == slot for flight in step))


def is_coming(state: State, slot: int) -> bool:
    """Return whether something of a request is on its way from elsewhere, though it may have ended since."""
    request = state.requests[slot]
    is_kept = any(batch.is_coming and batch.slot == slot for batch in state.batches)
    return is_kept or (isinstance(request, Running) and request.coming > 0)


def key(state: State, block: int) -> Content | None:
    """Return the content that a block is published as, or None (PUB-1); of several lengths, the longest."""
    return max(keys_of(state, block), key=lambda content: len(content[1][1]), default=None)


def keys_of(state: State, block: int) -> tuple[Content, ...]:
    """Return all that a block is published as: one thing, unless hits may end inside blocks (KEY-1)."""
    return tuple(content for other, content in state.keys if other == block)


def covers(config: Config, group: Group, slots: int) -> int:
    """Count the table entries that `slots` slots take (TABLE-1); an encoder's tokens have none of them."""
    if isinstance(group.kind, Cross):
        return 0
    return entries(span(config, group), slots)
