"""Part three, chapter 12: parts of blocks: what of a hit that ends inside a block the tiers hold, and bring back.

Where the device has hits that end inside blocks (chapter `units` of part one), tiers that held whole blocks alone would
lose the end of every prompt. So they hold parts as well. A *part* is a block like any other to a tier: a place with the
bytes of one block, found under a key. Its key names the prefix up to an end inside the block, and only the tokens up to
that end are of use in it. What lies behind the end is of no one, and may be written while the part is being copied.

The device publishes many parts of a block. In a tier each would be another copy of that block. So of attention only
the longest goes there of each of these: of the prompt, and of all that a request has computed as it ends. A longer part
serves a shorter hit of the same tokens, and so does the whole block (PART-1). A recurrent state is of one length, and
serves no other: the state at the end of the prompt goes to the tiers, and that before its last token, from which the
same prompt goes on. It is read from the copy that the device makes of it, since the next step writes over the state
itself.

A whole block never replaces its parts, nor a part its block: they have different keys, and the tier evicts each by its
own use. A hit of the device that ends inside a block does not keep a load from bringing more: that begins with the
block (LOAD-2). Of a load that came in part, all from the start of the first block that is missing is computed.
"""

from dataclasses import dataclass

from ..law import listed

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Brought:
    """The last block that a load brings for one group: what its key names, and what of that the hit is.

    `size` are the tokens of a block of the group, of which a recurrent layer (`is_state`) has the state alone.
    """

    named: Tokens
    hit: Tokens
    size: int
    is_state: bool = False


@dataclass(frozen=True, slots=True)
class Resent:
    """A prompt that is sent again, or one that goes on from it or from its answer.

    Its hit up to there on the device, and that of the tiers, once the device has lost all of it.
    """

    on_device: int
    in_tiers: int


def law_part_has_what_is_read(brought: Brought) -> bool:
    """PART-1: the block that a hit ends in is brought as it is, or as a longer part; a state as it is."""
    start = (len(brought.hit) - 1) // brought.size * brought.size
    if brought.is_state:
        return brought.named == brought.hit
    is_same = brought.named[: len(brought.hit)] == brought.hit
    return is_same and len(brought.named) <= start + brought.size


def law_prompt_comes_back(resent: Resent) -> bool:
    """PART-2: a prompt whose blocks have landed in the tiers hits as much there as it would on the device."""
    return resent.in_tiers >= resent.on_device


PART_LAWS = (
    listed(law_part_has_what_is_read, "vLLM #50507: the end of a prompt; known bugs E181 to E184"),
    listed(law_prompt_comes_back, "vLLM #50507: 784 of 896 tokens; known bugs E185 to E188"),
)
"""The laws of parts."""
