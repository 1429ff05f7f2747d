"""The museum's second room: what a step takes, keeps, trims and tells."""

from . import places
from .exhibit import Exhibit, patch

TABLES = (
    Exhibit(
        "B05a",
        "hits are held before the capacity is checked",
        "A request that did not fit was refused after its hits had been touched; the references leaked.",
        "vllm-project/vllm#11562",
        "REFUSE-1",
        places.TIGHT,
        (
            patch(
                "running.py",
                "free_hits = manager.check_hit(hit.ids[0], request.keys(units))",
                "pool.touch_entries(hit.ids[0])",
            ),
            patch("group.py", "self.block_pool.touch_entries(ids)", "pass"),
        ),
    ),
    Exhibit(
        "B05b",
        "hits that are free now are not part of the demand",
        "The first remedy for that leak counted new blocks only: adopting a free hit takes a block from the queue too.",
        "vllm-project/vllm#11565",
        "NULL-1",
        places.TIGHT,
        (patch("running.py", "manager.missing(held, slots) + free_hits >", "manager.missing(held, slots) >"),),
    ),
    Exhibit(
        "B06",
        "new blocks are taken before the hits are held",
        "A hit that was an eviction candidate was evicted to serve the very request that had hit it.",
        "vllm-project/vllm#10507 (review)",
        "READ-1",
        places.TIGHT,
        (
            patch("group.py", "self.block_pool.touch_entries(ids)", "pass"),
            patch(
                "running.py",
                "        manager.grow(table, slots)\n",
                "        manager.grow(table, slots)\n"
                "        if hit is not None:\n            pool.touch_entries(hit.ids[0])\n",
            ),
        ),
    ),
    Exhibit(
        "B08",
        "the prediction is capped at one block",
        "What a step would take was capped by a rule that held for one case only, and more was taken than predicted.",
        "vllm-project/vllm#46892",
        "NULL-1",
        places.FULL,
        (patch("group.py", "if more > 1 and self._layout == LAST_STATE:", "if more > 1:"),),
    ),
    Exhibit(
        "B09",
        "a request that could not be scheduled keeps its table",
        "The table was made before the check, so that a request that did not fit was known as running.",
        "vllm-project/vllm#18411; neuralmagic/vllm#92",
        "REFUSE-1",
        places.FULL,
        (
            patch(
                "running.py",
                "            if manager.missing(held, slots) + free_hits",
                "            table = manager.open(request.request_id)\n            self._running[request.request_id] = "
                "RequestTables(request.request_id, request._uid, self._owner, 0, [table])\n"
                "            if manager.missing(held, slots) + free_hits",
            ),
        ),
    ),
    Exhibit(
        "B13",
        "a request is forgotten before its blocks are released",
        "Ending a request removed the record from which its blocks would have been released: they were lost.",
        "NVIDIA/TensorRT-LLM#15018 (#12933)",
        "REF-1",
        places.FULL,
        (patch("manager.py", "            manager.release(table)\n", ""),),
    ),
    Exhibit(
        "B17",
        "a lookup holds what it finds",
        "Lookups pinned their hits; where the engine then decided otherwise, nobody let go of them.",
        "LMCache/LMCache#1034",
        "LOOKUP-1",
        places.FULL,
        (
            patch(
                "manager.py",
                "        return KVCacheBlocks(self.block_pool, ids), num_computed",
                "        for each in ids:\n            self.block_pool.touch_entries(each)\n"
                "        return KVCacheBlocks(self.block_pool, ids), num_computed",
            ),
        ),
    ),
    Exhibit(
        "B22",
        "two paths release the same entry",
        "The window's path released a block that the end of the request released again.",
        "sgl-project/sglang-jax#982 (sgl-project/sglang#12224)",
        "REF-1",
        places.SLIDING,
        (
            patch("group.py", "                blocks[i] = 0\n", ""),
            patch("group.py", "release(table.blocks, table.num_trimmed,", "release(table.blocks, 0,"),
        ),
    ),
    Exhibit(
        "B25",
        "the window is cut at tokens that are not settled",
        "What was scheduled counted as computed, so that blocks were released which the running step still read, and "
        "which rejected drafts needed again.",
        "vllm-project/vllm#47728 (#47282)",
        "TRIM-2",
        places.SLIDING,
        (
            patch(
                "running.py",
                "manager.trim(table, computed, self._nulled)",
                "manager.trim(table, written, self._nulled)",
            ),
        ),
    ),
    Exhibit(
        "B26",
        "the window's edge is off by one",
        "The first position to keep was computed from the wrong length.",
        "sgl-project/sglang#8649",
        "TRIM-2",
        places.SLIDING_UNCACHED,
        (patch("window.py", "first = num_tokens - self._window + 1", "first = num_tokens - self._window + 2"),),
    ),
    Exhibit(
        "B28",
        "trimming stops at the first null entry",
        "The remover gave up where it met an entry that was null already; the states behind it stayed.",
        "vllm-project/vllm#55450",
        "MAMBA-1",
        places.MAMBA_NARROW,
        (
            patch(
                "group.py",
                "if stop <= start:\n            return nulled",
                "if stop <= start or blocks[start] == 0:\n            return nulled",
            ),
            patch(
                "group.py",
                "        start = table.num_trimmed\n",
                "        start = table.num_trimmed\n        blocks = table.blocks\n",
            ),
        ),
    ),
    Exhibit(
        "B29",
        "what the window has freed is published all the same",
        "At its end a request was entered in the cache from its first token on, across the hole its window had left.",
        "sgl-project/sglang#31486",
        "KEY-1",
        places.SLIDING_LATER,
        (patch("store.py", "if block != 0 and older[block] == 0:", "if older[block] == 0:"),),
    ),
    Exhibit(
        "B32",
        "a release walks past its boundary",
        "Trimming released one block more than it took out of the table.",
        "sgl-project/sglang#24153, #27038",
        "REF-1",
        places.SLIDING,
        (
            patch(
                "group.py",
                "self.block_pool.release(blocks, start, stop)",
                "self.block_pool.release(blocks, start, min(stop + 1, len(blocks)))",
            ),
        ),
    ),
    Exhibit(
        "B33",
        "the worker is not told which entries became null",
        "The manager trimmed its table and the batch's answer did not say so: the worker kept stale ids.",
        "vllm-project/vllm#42273",
        "STEP-1",
        places.SLIDING_BATCH,
        (patch("manager.py", "        nulled = self._nulled\n", "        nulled = vec[i32]()\n"),),
    ),
    Exhibit(
        "B34",
        "admission and execution use different bounds",
        "Slots for drafts were counted beyond the longest sequence the model takes.",
        "vllm-project/vllm#39734, #55818, #50169; vllm-project/vllm-ascend#9543",
        "TABLE-1",
        places.DRAFTS,
        (patch("running.py", "slots = min(written + ahead, self._max_len)", "slots = written + ahead", 2),),
    ),
    Exhibit(
        "B42",
        "a state is published when it is scheduled",
        "The key became findable with the schedule, although the caller had put publication off until the data was "
        "there; an abort left a hit on a state that was never written.",
        "vllm-project/vllm#56525",
        "REF-0 keys",
        places.LATER,
        (patch("running.py", "if self.enable_caching and not delay:", "if self.enable_caching:"),),
    ),
    Exhibit(
        "B58",
        "a preempted request's table is extended instead of replaced",
        "After a preemption the tracker went on appending to the blocks of the request's first life.",
        "LMCache/LMCache#1969, #2007, #2069, #2984",
        "TABLE-1",
        places.FULL,
        (
            patch("manager.py", "        manager.close(tables.request_id)\n", ""),
            patch("group.py", "table = GroupTable(vec", "table = self._tables.get(request_id) or GroupTable(vec"),
        ),
    ),
    Exhibit(
        "D01",
        "a refused step has trimmed the table",
        "One original trims first and then finds that the step does not fit. Here a refusal changes nothing.",
        "vllm-project/vllm, KVCacheManager.allocate_slots",
        "REFUSE-1",
        places.SLIDING,
        (
            patch(
                "running.py",
                "if missing > pool._num_free + manager.trim_gain(table, computed):\n",
                "self._nulled = manager.trim(table, computed, self._nulled)\n"
                "                if missing > pool._num_free:\n",
            ),
        ),
    ),
    Exhibit(
        "D02",
        "fewer than no blocks are missing",
        "The number of blocks to allocate could be -1; in a sum over groups it hides another group's shortage.",
        "vllm-project/vllm, SingleTypeKVCacheManager.get_num_blocks_to_allocate",
        "DEMAND-1",
        places.TOLD,
        (patch("group.py", "        if held * self._block_size >= num_tokens:\n            return 0\n", ""),),
    ),
    Exhibit(
        "D03",
        "trimming keeps the last published block",
        "One original kept it to find a parent hash. Here a request keeps the keys of what was trimmed.",
        "vllm-project/vllm, ChunkedLocalAttentionManager.remove_skipped_blocks",
        "TRIM-1",
        places.CHUNKED,
        (
            patch(
                "group.py",
                "stop = min(self.first_kept(num_tokens), i64(len(table.blocks)))",
                "stop = min(self.first_kept(num_tokens), max(table.num_published - 1, 0))",
                2,
            ),
        ),
    ),
)
