"""The museum's seventh room: block tables, their forks, copies, windows and swaps."""

from . import paged_places as places
from .known_bug import Exhibit, patch

SHARE = "        self.pool.touch_entries(ids)\n"
ENDS = "self._ends[block] += 1\n"
LEAVE = "            origin.release_one(before)\n"
GIVE = "            pool.release_one(block._mark)\n"
CANDIDATE = "return mark == 0 or self.pool.is_free(mark)"
FILE = "paging/pool_allocator.py"

PAGED = (
    Exhibit(
        "B01c",
        "a fork of a table holds each block twice",
        "A fork counted a recycled block of a window once per table entry, and the counters never came back to zero.",
        "vllm-project/vllm#3347 (#1556)",
        "PAGE-1",
        places.FORKS,
        (patch(FILE, SHARE, SHARE + SHARE),),
    ),
    Exhibit(
        "B01d",
        "whoever writes to a shared block gives up two holds",
        "The path of copy-on-write took a reference off the old block, and freeing the table took off another.",
        "vllm-project/vllm#3347 (#1556)",
        "PAGE-1",
        places.NAIVE,
        (patch("store.py", ENDS, ENDS + "        self._ref[block] -= 1\n"),),
    ),
    Exhibit(
        "B02b",
        "a block that stands twice in one batch is let go once",
        "One batch of released blocks named the same block several times, and the free list and the counters parted.",
        "vllm-project/vllm#42571, #42085, #42615, #42903",
        "PAGE-1",
        places.SWAPS,
        (patch(FILE, LEAVE, "            if place == 0:\n                origin.release_one(before)\n"),),
    ),
    Exhibit(
        "B22b",
        "two paths release what a swap leaves behind",
        "Both the swap and the end of the sequence gave the same block back.",
        "sgl-project/sglang-jax#982 (sgl-project/sglang#12224)",
        "PAGE-1",
        places.SWAPS,
        (patch(FILE, LEAVE, LEAVE + LEAVE),),
    ),
    Exhibit(
        "B23",
        "swapping in counts known content that is free as nothing",
        "The demand of a swap-in left out cached blocks though they were free: adopting them takes them as well.",
        "vllm-project/vllm#6849",
        "PAGE-13",
        places.RETURNS,
        (patch(FILE, CANDIDATE, "return mark == 0"),),
    ),
    Exhibit(
        "B24a",
        "blocks of the host are not given back",
        "Ids of the host stayed taken after a group had come back, until no group could leave any more.",
        "vllm-project/vllm#546",
        "PAGE-1",
        places.SWAPS,
        (patch(FILE, LEAVE, "            if origin.first_id == 0:\n                origin.release_one(before)\n"),),
    ),
    Exhibit(
        "B24b",
        "a swapped-out group never resumes",
        "What a group holds on the host was counted against the GPU, so that it never fitted there again.",
        "vllm-project/vllm#546",
        "LIVE-1",
        places.comes_back,
        (
            patch(
                "paging/block_manager.py",
                "        touched += allocator.get_num_full_blocks_touched(self._blocks_of(seqs), target)\n",
                "        touched += 2 * len(self._blocks_of(seqs))\n",
            ),
        ),
    ),
    Exhibit(
        "B51b",
        "a block that gives way to known content is freed though a copy to it is in flight",
        "What was inserted was found to be known, and its own block freed while a copy to it had not been run.",
        "sgl-project/sglang#35769",
        "PAGE-1",
        places.FORKS,
        (patch("paging/prefix_caching.py", GIVE, GIVE + GIVE),),
    ),
    Exhibit(
        "B56d",
        "the index keeps a block that was evicted",
        "The evictor dropped a block and the index did not: its old content was still found.",
        "ovg-project/kvcached#362, #363; vllm-project/vllm#4761",
        "PAGE-5",
        places.EVICTIONS,
        (patch("store.py", "            index.drop(block)\n        else", "            pass\n        else"),),
    ),
    Exhibit(
        "D07",
        "the null block is not counted before it is taken",
        "Whether slots can be appended left out the null block, which the window then took: yes, and out of blocks.",
        "a choice of vLLM V0 that we decided otherwise",
        "PAGE-13",
        places.appends_under_a_window,
        (patch("paging/block_manager.py", "return 1 if self.sliding_window is not None and", "return 0 if self and"),),
    ),
    Exhibit(
        "D10",
        "a chunk of a prompt marks all of it as computed",
        "Marking a step's blocks took no heed of how long its chunk was, so that all blocks of a prompt counted as "
        "cached after the first chunk; only the prompt's own sequence was kept from seeing it.",
        "a choice of vLLM V0 that we decided otherwise",
        "PAGE-16",
        places.chunks_of_a_prompt,
        (
            patch(
                "paging/block_manager.py",
                '        require_count("token_chunk_size", token_chunk_size)\n',
                "        self.block_allocator.mark_blocks_as_computed([])\n",
            ),
        ),
    ),
    Exhibit(
        "D11",
        "a block that is free counts as computed",
        "What nobody held any more was taken to be computed, also where a sequence ended amid its prompt.",
        "a choice of vLLM V0 that we decided otherwise",
        "PAGE-16",
        places.CHUNKS,
        (patch("paging/device_pool.py", "and self.is_whole(mark)", "and (self.is_whole(mark) or self.is_free(mark))"),),
    ),
    Exhibit(
        "D12",
        "a block with data gives way to one that is not computed",
        "A block that filled was exchanged for the known one of its content, which its own sequence was to compute in "
        "later steps: what had been computed was gone.",
        "a choice of vLLM V0 that we decided otherwise",
        "PAGE-17",
        places.CHUNKS,
        (patch(FILE, "        if self.pool.is_computed(mark):\n", "        if mark:\n"),),
    ),
    Exhibit(
        "D08",
        "an access of a free block has no effect",
        "The time of a block in the evictor was refreshed, its place in the heap was not.",
        "a choice of vLLM V0 that we decided otherwise",
        "PAGE-14",
        places.ACCESS,
        (
            patch("access_order.py", "= now\n        self._settle(block)\n", "= now\n"),
            patch("store.py", "True, order.is_sound())", "True, True)"),  # nor did anyone check the heap
        ),
    ),
)
"""Block tables."""
