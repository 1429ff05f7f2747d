"""The common form of all trace formats: requests with prompts that are runs of named content.

A public trace does not hold token ids. Equal names mark equal stretches of two prompts. So a prompt here is a sequence
of *runs*, and a run is a number of tokens that all carry one *content* number:

    contents   7        7        9
    lengths    512      512      100
    tokens     7 7 … 7  7 7 … 7  9 9 … 9        1,124 tokens

Two prompts share their first n tokens exactly if their runs agree that far, whatever block size the replay uses:
smaller than the trace's own blocks, larger, or not a multiple.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

Runs: TypeAlias = "tuple[array[int], array[int]]"
"""The contents of runs, and their lengths."""
_MANY: Final = (1 << 61) - 1
_ITEM: Final = Struct("i").pack
# Names that are integers below this are their own numbers.
_OWN: Final = 1 << 30
# The longest prompt a loader or the generator accepts; longer counts are taken for damage.
MAX_PROMPT_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Hold one request of a trace: its prompt as runs, and when it arrived.

    Attributes:
        contents, lengths: the runs of the prompt.
        arrival: in seconds from the start of the trace.
        num_output_tokens: tokens of the answer, which are only replayed where requests overlap.
        answer: the content of the answer, by which later prompts refer to it, or -1 where none does.
        answer_ids: the token ids that the answer begins with, where later prompts say them.
        after: the number of the earlier request whose answer the client waits for before it sends this one, and then
            `delay` seconds more, but not before `arrival`; or -1. Only where requests overlap does it wait.
    """

    contents: array[int]
    lengths: array[int]
    arrival: float
    num_output_tokens: int
    answer: int = -1
    answer_ids: array[int] = field(default_factory=lambda: array("i"))
    after: int = -1
    delay: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Return the length of the prompt in tokens."""
        return sum(self.lengths)

    def token_ids(self) -> array[int]:
        """Build the prompt's token ids, four bytes each. O(tokens), at the speed of a memory copy."""
        # Bytes are repeated by copies that double, items of an array one by one.
        runs = [_ITEM(content) * length for content, length in zip(self.contents, self.lengths, strict=True)]
        return array("i", b"".join(runs))


class Head(NamedTuple):
    """What is known of a request before its prompt is read; the fields are those of a `TraceRequest`."""

    num_tokens: int
    arrival: float
    num_output_tokens: int
    after: int
    delay: float


class UnreadRequests(Sequence[TraceRequest]):
    """Requests that are read one by one, each time they are asked for: never all at once."""

    def heads(self) -> Iterator[Head | TraceRequest]:
        """Give the heads of all requests, which are read sooner than prompts."""
        return iter(self)


def heads_of(requests: Sequence[TraceRequest]) -> Iterable[Head | TraceRequest]:
    return requests.heads() if isinstance(requests, UnreadRequests) else requests


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold a whole trace.

    Attributes:
        source, format: the file or folder, and the name of its form.
        requests: in the order in which they are served.
        parse_seconds: the time that reading took.
        notes: sentences on how the file differs or leaves something out.
        labels: the field asked for, per request, or None where a request has none.
        max_tokens: of the longest prompt with its answer.
    """

    source: str
    format: str
    requests: UnreadRequests | tuple[TraceRequest, ...]
    parse_seconds: float = field(compare=False)
    notes: tuple[str, ...] = ()
    labels: tuple[str | None, ...] = ()
    _lengths: array[int] = field(init=False, repr=False, compare=False)
    max_tokens: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths, longest = array("i", bytes(4 * len(self.requests))), 0
        for at, request in enumerate(heads_of(self.requests)):
            lengths[at] = request.num_tokens
            longest = max(longest, lengths[at] + request.num_output_tokens)
        object.__setattr__(self, "_lengths", lengths)  # a request may have to be read from a file
        object.__setattr__(self, "max_tokens", longest)

    @property
    def num_tokens(self) -> int:
        """Return the prompt tokens of all requests."""
        return self.tokens_from(0)

    def tokens_from(self, first: int) -> int:
        return sum(self._lengths[first:])

    @property
    def max_prompt_tokens(self) -> int:
        """Return the length of the longest prompt."""
        return max(self._lengths)

    def num_references(self, block_size: int, first: int = 0) -> int:
        """Count the blocks of `block_size` tokens that prompts refer to from one on, partial last blocks included."""
        return sum(-(-length // block_size) for length in self._lengths[first:])


class ContentNumbers:
    """Number contents: one number for each distinct name, and a new one for content that is not shared.

    Most traces name contents by small integers, which are their own numbers and take no memory. All other numbers begin
    with `first`.
    """

    def __init__(self, first: int = _OWN) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._count = first

    def named(self, names: Iterable[Hashable], scope: Hashable = None) -> array[int]:
        """Return the numbers of `names`, in order; a name seen before in the same scope keeps its number. O(names).

        Python's hash of an integer is its remainder by 2**61 - 1, so that a file could make all its integers collide
        and a dictionary of them quadratic. Larger ones are therefore named by their bytes, with a hash that no file
        can foresee.
        """
        numbers, result = self._numbers, array("i")
        for name in names:
            if scope is None and isinstance(name, int) and 0 <= name < _OWN:
                result.append(name)
                continue
            if isinstance(name, int) and not -_MANY < name < _MANY:
                name = name.to_bytes(name.bit_length() // 8 + 1, "little", signed=True)
            name = name if scope is None else (scope, name)
            number = numbers.get(name)
            if number is None:
                number = numbers[name] = self.fresh()
            result.append(number)
        return result

    def fresh(self) -> int:
        """Return a number that no name has or will have."""
        number = self._count
        self._count += 1
        return number


def num_shared(one: Runs, other: Runs) -> int:
    """Return how many leading tokens two prompts of runs share. O(runs)."""
    shared = at = and_at = 0
    left, and_left = one[1][0] if one[1] else 0, other[1][0] if other[1] else 0
    while at < len(one[0]) and and_at < len(other[0]) and one[0][at] == other[0][and_at]:
        count = min(left, and_left)
        shared, left, and_left = shared + count, left - count, and_left - count
        if not left:
            at += 1
            left = one[1][at] if at < len(one[1]) else 0
        if not and_left:
            and_at += 1
            and_left = other[1][and_at] if and_at < len(other[1]) else 0
    return shared


def cut(runs: Runs, begin: int, end: int) -> Runs:
    """Return the runs of the tokens from `begin` up to `end`. O(runs)."""
    contents, lengths, at = array("i"), array("i"), 0
    for content, length in zip(*runs, strict=True):
        count = min(at + length, end) - max(at, begin)
        if count > 0:
            contents.append(content)
            lengths.append(count)
        at += length
    return contents, lengths


def runs_of_blocks(contents: array[int], unit: int, num_tokens: int) -> array[int]:
    """Return run lengths for contents of `unit` tokens each, of which the last may be partial."""
    return _runs(len(contents), unit, num_tokens)


@lru_cache(1 << 14)
def _runs(count: int, unit: int, num_tokens: int) -> array[int]:
    """Return run lengths. A trace has few different ones, so that its requests share them."""
    lengths = array("i", (unit,)) * count
    if count:
        lengths[-1] = num_tokens - unit * (count - 1)
    return lengths
