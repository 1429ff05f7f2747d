"""The museum's first room: counters, the free queue, the index of published blocks."""

from ..trials import trials
from . import places
from .known_bug import Exhibit, patch

BLOCKS = (
    Exhibit(
        "B02",
        "a block repeated in one released batch is queued once per occurrence",
        "Window layers with an eager offload freed one physical block several times in a batch. All counts went down "
        "first, and then every occurrence, finding the count at zero, was appended to the free list.",
        "vllm-project/vllm#42571, #42085, #42615, #42903",
        "QUEUE-1",
        trials.pool,
        (
            patch("store.py", "count: i64 = i64(ref[block]) - 1", "count: i64 = i64(ref[block])"),
            patch(
                "store.py",
                "        tail: i64 = i64(before[0])\n",
                "        tail: i64 = i64(before[0])\n"
                "        for each in ids[start:stop]:\n            ref[each] -= 1 if each else 0\n",
            ),
        ),
    ),
    Exhibit(
        "B03",
        "the free counter grows by the length of the released batch",
        "A subclass's release appended blocks again and raised the counter by the length of its input, shared blocks "
        "and null entries included.",
        "ai-dynamo/dynamo#13398 (review)",
        "QUEUE-1",
        places.FULL,
        (patch("store.py", "self._num_free += freed", "self._num_free += stop - start"),),
    ),
    Exhibit(
        "B04a",
        "a touched block stays in the free queue",
        "With several connectors and prefix hits the queue of free blocks was corrupted: a cached block was held by a "
        "request and still waited to be taken.",
        "vllm-project/vllm-ascend#15990",
        "REF-1",
        places.FULL,
        (
            patch(
                "store.py",
                "            if ref[block] == 0:\n                following",
                "            if False:\n                following",
            ),
        ),
    ),
    Exhibit(
        "B04b",
        "touching unlinks a block that is not in the queue",
        "The other side of the same corruption: a block in use was unlinked a second time, which cut its old "
        "neighbours out of the queue.",
        "vllm-project/vllm-ascend#15990",
        "QUEUE-1",
        places.FULL,
        (
            patch(
                "store.py",
                "            if ref[block] == 0:\n                following",
                "            if True:\n                following",
            ),
        ),
    ),
    Exhibit(
        "B14",
        "a block taken from the queue keeps its identity",
        "Links and keys of released blocks stayed behind, so that chains were kept alive and blocks were still known "
        "by what they no longer held.",
        "NVIDIA/TensorRT-LLM#16037, #19242",
        "STEP-2",
        places.FULL,
        (
            patch(
                "store.py",
                "if journal is None:\n            index.drop(block)",
                "if journal is None:\n                    pass",
            ),
        ),
    ),
    Exhibit(
        "B18",
        "giving up the last reference frees nothing",
        "Whether a block could be freed was asked on one of the two paths only, so the last release on the other left "
        "it with no holder and outside the queue.",
        "LMCache/LMCache#1130, #1173",
        "REF-1",
        places.FULL,
        (patch("store.py", "if count > 0:", "if count >= 0:"),),
    ),
    Exhibit(
        "B19",
        "a block released too often is queued again",
        "Releases beyond the last were let pass by clamping the count at zero; each put the block on the free list.",
        "LMCache/LMCache#987, #993, #1365, #3381",
        "QUEUE-1",
        trials.pool,
        (
            patch("pool.py", "if times > self._ref[i64(block)]:", "if False:"),
            patch("store.py", "count: i64 = i64(ref[block]) - 1", "count: i64 = max(0, i64(ref[block]) - 1)"),
        ),
    ),
    Exhibit(
        "B20",
        "a release forgets one reference",
        "A retrieval raised a count that nobody lowered again; each such block was lost for good.",
        "LMCache/LMCache#1756, #2785, #3884",
        "REF-1",
        places.FULL,
        (patch("store.py", "while i > start:", "while i > start + 1:"),),
    ),
    Exhibit(
        "B21",
        "shared blocks are counted once per holder",
        "The size of what can be evicted was changed by every lock and unlock, not by the first and the last.",
        "sgl-project/sglang#35270",
        "QUEUE-1",
        places.FULL,
        (patch("store.py", "                self._num_free -= 1\n", "            self._num_free -= 1\n"),),
    ),
    Exhibit(
        "B54a",
        "blocks are released first block first",
        "Another path released a request's blocks in the order of its table, so that the head of a prefix was evicted "
        "before its tail.",
        "vllm-project/vllm#48489",
        "REF-0 queue",
        places.FULL,
        (
            patch(
                "store.py",
                "i -= 1\n            block: i64 = i64(ids[i])",
                "i -= 1\n            block: i64 = i64(ids[start + stop - 1 - i])",
            ),
        ),
    ),
    Exhibit(
        "B55",
        "a published block is marked but not in the index",
        "The key was stamped on the block while the table of keys was passed over: such a block is never hit.",
        "vllm-project/vllm#53498",
        "HIT-2",
        places.FULL,
        (patch("index.py", "slots[slot] = i32(block)\n            self.older", "self.older"),),
    ),
    Exhibit(
        "B56a",
        "the index is cleared, the blocks keep their keys",
        "One side of the pair was dropped and the other kept: blocks believed themselves published under keys that "
        "nobody could find.",
        "ovg-project/kvcached#362, #363",
        "KEY-1",
        places.FULL,
        (
            patch(
                "store.py",
                "            self._index = index\n            order",
                "            index.older = self._index.older\n            self._index = index\n            order",
            ),
        ),
    ),
    Exhibit(
        "B56b",
        "an evicted block stays in the index",
        "The evictor gave a block away and left its entry in the table of keys: the next lookup hits what was "
        "overwritten.",
        "vllm-project/vllm#4761, #4762, #4763, #4764",
        "KEY-1",
        places.FULL,
        (patch("index.py", "            self._close_gap(slot)\n", ""),),
    ),
    Exhibit(
        "B56c",
        "a prefix is forgotten although a second block holds it",
        "The entry of a key was removed with the first of its blocks; duplicates stayed marked and out of reach.",
        "ovg-project/kvcached#362, #363",
        "KEY-1",
        places.FULL,
        (patch("index.py", "        if older == block:", "        if oldest == block:"),),
    ),
    Exhibit(
        "B57",
        "the null block is given out as a real one",
        "Which block stands for nothing was left to chance, and real data was skipped as null.",
        "ovg-project/kvcached#398",
        "NULL-1",
        places.TIGHT,
        (patch("store.py", "block: i64 = i64(following[0])\n        while", "block: i64 = 0\n        while"),),
    ),
    Exhibit(
        "B66",
        "without caching, freed blocks go to the back of the queue",
        "A change of the release path flipped the order of reuse where prefixes are not cached, and with it the "
        "locality that block-sparse kernels relied on.",
        "vllm-project/vllm#51482 (#48017)",
        "REF-0 queue",
        places.UNCACHED,
        (patch("store.py", "if older[block] != 0:\n                following", "if True:\n                following"),),
    ),
    Exhibit(
        "B64a",
        "a prefix is announced once per block",
        "Events told of every block that was stored, so that a mirror counted duplicates and dropped the prefix with "
        "the first of them.",
        "vllm-project/vllm#44451, #57159; llm-d/llm-d-kv-cache#372",
        "EV-1",
        places.TOLD,
        (patch("journal.py", "if is_new:", "if True:"),),
    ),
    Exhibit(
        "B64b",
        "an event names the wrong parent",
        "The parent told with a stored block was not the prefix before it, so that a router could not rebuild chains.",
        "vllm-project/vllm-ascend#12252; ai-dynamo/dynamo#8012",
        "EV-1",
        places.TOLD,
        (patch("journal.py", "index * keys.units - 1) if", "(index + 1) * keys.units - 1) if"),),
    ),
    Exhibit(
        "B64c",
        "a removal is announced although another block holds the prefix",
        "The mirror forgets what can still be found.",
        "vllm-project/vllm#44451; ai-dynamo/dynamo#8012",
        "EV-1",
        places.TOLD,
        (patch("journal.py", "if was_last:", "if True:"),),
    ),
    Exhibit(
        "B65",
        "the statistics are never drained",
        "Counts that were read were not set back, so that each report repeated all earlier ones.",
        "vllm-project/vllm#47715, #47381",
        "STAT-1",
        places.TOLD,
        (patch("manager.py", "        self._num_hits = 0\n", ""),),
    ),
)
