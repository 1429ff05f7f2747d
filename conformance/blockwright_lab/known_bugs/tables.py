"""The museum's third room: what tables keep, trim, publish and tell."""

from . import places
from .known_bug import Exhibit, patch

TABLES = (
    Exhibit(
        "B13",
        "a request is forgotten before its blocks are released",
        "Ending a request removed the record from which its blocks would have been released: they were lost.",
        "NVIDIA/TensorRT-LLM#15018 (#12933)",
        "REF-1",
        places.FULL,
        (patch("running.py", "                manager.release(table)\n", "                pass\n"),),
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
            patch("group.py", "            blocks[i] = 0\n", ""),
            patch("group.py", "release(table.blocks, table.num_trimmed,", "release(table.blocks, 0,"),
        ),
    ),
    Exhibit(
        "B25a",
        "the window is cut at tokens that are not settled",
        "What was scheduled counted as computed, so that blocks were released which the running step still read, and "
        "which rejected drafts needed again.",
        "vllm-project/vllm#47728 (#47282)",
        "TRIM-2",
        places.SLIDING,
        (
            patch(
                "running.py",
                "            self._trim(tables, ask.settled)\n",
                "            self._trim(tables, ask.stop)\n",
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
        "B28a",
        "trimming stops at the first null entry",
        "The remover gave up where it met an entry that was null already; the states behind it stayed.",
        "vllm-project/vllm#55450",
        "MAMBA-1",
        places.MAMBA_NARROW,
        (
            patch(
                "group.py",
                "if stop <= start:\n            return\n        blocks = table.blocks\n",
                "if stop <= start or table.blocks[start] == 0:\n            return\n        blocks = table.blocks\n",
            ),
        ),
    ),
    Exhibit(
        "B28b",
        "a state is kept per block although nothing is cached",
        "Where nothing is cached, states at block boundaries serve nobody; they were taken and held all the same.",
        "vllm-project/vllm#55450",
        "MAMBA-2",
        places.MAMBA_UNCACHED,
        (patch("group.py", "return LAST_STATE if enable_caching else ONE_STATE", "return LAST_STATE"),),
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
        "B33a",
        "the worker is not told which entries became null",
        "The manager trimmed its table and the batch's answer did not say so: the worker kept stale ids.",
        "vllm-project/vllm#42273",
        "STEP-1",
        places.SLIDING_BATCH,
        (patch("manager.py", "done.nulled_entries = self._nulled\n", "done.nulled_entries = vec[i32]()\n"),),
    ),
    Exhibit(
        "B33b",
        "the worker is told of one group's null entries as another's",
        "What became null was told in one list, and cut at the wrong place between the groups.",
        "vllm-project/vllm#42273",
        "STEP-1",
        places.BOTH_BATCH,
        (
            patch(
                "manager.py",
                "nulled_offsets[slot] = self._nulled_ends[group]",
                "nulled_offsets[slot] = i32(len(self._nulled))",
            ),
        ),
    ),
    Exhibit(
        "B42a",
        "a state is published when it is scheduled",
        "The key became findable with the schedule, although the caller had put publication off until the data was "
        "there; an abort left a hit on a state that was never written.",
        "vllm-project/vllm#56525",
        "REF-0 keys",
        places.LATER,
        (patch("running.py", "not (ask.is_delayed or self._settles", "not (self._settles"),),
    ),
    Exhibit(
        "B58",
        "a preempted request's table is extended instead of replaced",
        "After a preemption the tracker went on appending to the blocks of the request's first life.",
        "LMCache/LMCache#1969, #2007, #2069, #2984",
        "TABLE-1",
        places.FULL,
        (
            patch("running.py", "                manager.close(tables.request_id)\n", "                pass\n"),
            patch(
                "running.py",
                "groups.append(self.managers[at].headed(",
                "groups.append(self.managers[at]._tables.get(request._request_id) or self.managers[at].headed(",
            ),
        ),
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
            ),
            patch(
                "group.py",
                "stop = min(self.first_kept(num_tokens), i64(len(blocks)))",
                "stop = min(self.first_kept(num_tokens), max(table.num_published - 1, 0))",
            ),
            patch(
                "group.py",
                "stop = min(self.first_kept(num_tokens), held)",
                "stop = min(self.first_kept(num_tokens), max(table.num_published - 1, 0))",
            ),
        ),
    ),
    Exhibit(
        "D06",
        "the states of drafts stand at the end of the table",
        "One original appends them to the table, and finds them by counting back. Here they have a place of their own, "
        "and a table holds positions only.",
        "vllm-project/vllm, MambaManager.allocate_new_blocks",
        "MAMBA-3",
        places.PLANNED_DRAFTS,
        (
            patch(
                "group.py",
                "self.block_pool.fill(table.states, 0, self.num_states)",
                "table.blocks, table.states = self.block_pool.take(self.num_states, table.blocks), vec[i32]()",
            ),
        ),
    ),
)
