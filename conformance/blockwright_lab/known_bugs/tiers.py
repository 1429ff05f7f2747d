"""The museum's eighth room: what one tier below the device reads, evicts, frees and tells."""

from . import offload_places as places
from .known_bug import Exhibit, patch

TIER = "offload/tiers/manager.py"
LRU = "offload/tiers/lru.py"

CLAMP = patch(TIER, "            readers[slot] -= 1\n", "            readers[slot] = max(0, readers[slot] - 1)\n")
UNCOUNTED = patch(TIER, "            if readers[slot] == 0:\n                break\n", "")

TIERS = (
    Exhibit(
        "B18b",
        "a failed block outlives its last reader",
        "Whether a block could go was asked on one of the two paths only: when the last reader ended on the other, it "
        "stayed, found by nobody and freed by nobody.",
        "LMCache/LMCache#1130, #1173",
        "TIER-3",
        places.TIER,
        (patch(TIER, "            if state[slot] != READY:\n                all_stay = False\n", ""),),
    ),
    Exhibit(
        "B18c",
        "a block is gone and its place is not free",
        "The path that dropped the last reference took the entry out of the index and never returned its memory.",
        "LMCache/LMCache#1130, #1173",
        "TIER-2",
        places.TIER,
        (
            patch(
                "offload/tiers/books.py",
                "            packed.return_places(entries.places_of(slots))\n",
                "            if is_evicted:\n                packed.return_places(entries.places_of(slots))\n",
            ),
        ),
    ),
    Exhibit(
        "B19b",
        "a reader that ends twice is clamped at zero",
        "Unpinning once too often was let pass by clamping the count, so that nobody learned of it.",
        "LMCache/LMCache#987, #993, #1365, #3381",
        "REFUSE-2",
        places.TIER,
        (UNCOUNTED, CLAMP),
    ),
    Exhibit(
        "B50a",
        "a block of the host is evicted while it is loaded back",
        "Whoever made room did not ask who was reading: the page was given to other content before the copy had ended.",
        "sgl-project/sglang#26728, #27631, #31427",
        "TIER-6",
        places.TIER,
        (patch(LRU, "readers[slot] == 0 and", "(call > 0 or readers[slot] == 0) and"),),
    ),
    Exhibit(
        "B51c",
        "a block that is known frees the place that a copy is writing",
        "What was inserted was found to be known already, and the place freed to which the first copy was in flight.",
        "sgl-project/sglang#35769",
        "TIER-2",
        places.TIER,
        (
            patch(
                TIER,
                "            if index.count == count:\n                continue\n",
                "            if index.count == count:\n"
                "                if entries.state[slot] == WRITING and self._packed is not None:\n"
                "                    self._packed.return_places(entries.places_of(vec[i32]([i32(slot)])))\n"
                "                continue\n",
            ),
        ),
    ),
    Exhibit(
        "B64d",
        "a block is announced before it is written",
        "The event went out with the allocation, so that an index of events knew what nobody could retrieve yet.",
        "vllm-project/vllm#44451, #57159",
        "TIER-5",
        places.TIER,
        (
            patch(
                TIER,
                "        return PrepareStoreOutput(new, self._place",
                "        self._tell(new, False)\n        return PrepareStoreOutput(new, self._place",
            ),
        ),
    ),
    Exhibit(
        "B64e",
        "an eviction is not announced",
        "Blocks left the tier and no event said so: whoever replayed the events went on to expect them there.",
        "llm-d/llm-d-kv-cache#372, ai-dynamo/dynamo#8012",
        "TIER-5",
        places.TIER,
        (patch(TIER, "            self._tell(evicted, True)\n", ""),),
    ),
    Exhibit(
        "B64f",
        "what is known is announced again",
        "Every block that a call named was announced, those too that had been there before.",
        "vllm-project/vllm#44451, vllm-project/vllm-ascend#12252",
        "EV-1",
        places.TIER,
        (patch(TIER, "i64(slot)] for slot in written]", "i64(slot)] for slot in slots]"),),
    ),
    Exhibit(
        "D09",
        "a store evicts what it names itself",
        "One original evicts the least recently used block even if the same call names it as one to be kept. Here a "
        "call's own blocks are not evicted by it.",
        "vllm-project/vllm, LRUOffloadingManager.prepare_store",
        "STORE-1",
        places.TIER,
        (patch(LRU, " and named[slot] != call:", ":"),),
    ),
)
"""One tier."""
