"""The museum's fifth room: what is in flight, what is loaded, who is admitted."""

from . import places
from .known_bug import Exhibit, patch

TIME = (
    Exhibit(
        "B25b",
        "the window is cut at tokens that are in flight",
        "With a step in flight the window moved on with the engine's count, and blocks were free that the step reads.",
        "vllm-project/vllm#47728 (#47282)",
        "FLIGHT-1",
        places.FLYING_SLIDING,
        (patch("running.py", "tables.num_settled if self._overlaps else ask.begin", "ask.begin"),),
    ),
    Exhibit(
        "B25c",
        "rejected drafts count as settled",
        "What was rejected stayed in the count by which the window moves on.",
        "vllm-project/vllm#47728 (#47282)",
        "SETTLE-1",
        places.FLYING_DRAFTS,
        (patch("timed.py", "tables.num_settled += new - back", "tables.num_settled += new"),),
    ),
    Exhibit(
        "B35a",
        "loads on their way leave nothing to the head of the queue",
        "Requests that waited for their data held the blocks that the next request to run needed: no part of the pool "
        "was kept back from them.",
        "vllm-project/vllm#45387, #45414, #45406",
        "PLAN-2",
        places.ADMITTED,
        (patch("running.py", "spare = self._watermark + ask.reserve", "spare = self._watermark"),),
    ),
    Exhibit(
        "B35b",
        "what is reserved is kept back from the only request",
        "A reserve for others was asked of a request that found the pool idle, and it waited for ever.",
        "vllm-project/vllm#45387, #45414, #45406",
        "LIVE-1",
        places.ADMITTED,
        (patch("running.py", "            spare = 0\n", "            pass\n"),),
    ),
    Exhibit(
        "B42b",
        "a block is published before its step is settled",
        "Publication was to wait until the data is there, and did not: an abort or an overlap left a hit on what was "
        "never written.",
        "vllm-project/vllm#56525",
        "PUB-3",
        places.SETTLING,
        (patch("running.py", "ask.is_delayed or self._settles or", "ask.is_delayed or"),),
    ),
    Exhibit(
        "D15",
        "a recurrent state is found in the step that writes it",
        "States were published with the step that was to write them, like blocks of attention; a request that was "
        "admitted to the same step read its state while another wrote it.",
        "ours, before its first release; vLLM keeps MambaManager.cached_blocks_this_step for it",
        "MAMBA-5",
        places.MAMBA,
        (patch("running.py", "min(ask.stop, known), NOT_RUN)", "min(ask.stop, known), ask.certain)"),),
    ),
    Exhibit(
        "B47",
        "blocks are published before their load has ended",
        "What was still on its way could be found, and was handed on as if it were there.",
        "vllm-project/vllm#35092 (#34526)",
        "LOAD-1",
        places.LOADING,
        (patch("running.py", "self._settles or ask.external > 0)", "self._settles)"),),
    ),
    Exhibit(
        "B53a",
        "blocks that a step still writes are free",
        "A request that ended or was preempted gave its blocks back at once, and the step in flight wrote into those "
        "of the next.",
        "vllm-project/vllm#45357",
        "FLIGHT-1",
        places.FLYING,
        (
            patch(
                "running.py",
                "in_flight = len(self._steps) > 0 and tables.last_step >= self._steps[0].number",
                "in_flight = False",
            ),
        ),
    ),
    Exhibit(
        "B53b",
        "blocks wait for the first step in flight, not for the last",
        "With two steps in flight blocks were back with the end of the first, while the second still used them.",
        "vllm-project/vllm#45357",
        "FENCE-1",
        places.FLYING_FAR,
        (patch("running.py", "self._steps[int(tables.last_step - self._steps[0].number)]", "self._steps[0]"),),
    ),
    Exhibit(
        "B54b",
        "a deferred path releases the groups in another order",
        "Blocks that had waited for a step were queued with the last group first; so reuse depended on the path.",
        "vllm-project/vllm#48489",
        "REF-0 queue",
        places.FLYING_BOTH,
        (patch("running.py", "for blocks in batch:", "for blocks in batch[::-1]:"),),
    ),
    Exhibit(
        "B59a",
        "what did not come is published",
        "After a failed load the blocks that it was to fill stayed findable for others.",
        "vllm-project/vllm#37827, #45497 (#45474)",
        "PUB-1",
        places.LOADING,
        (
            patch(
                "timed.py",
                "stop = tables.num_written + count",
                "stop = tables.num_written + tables.num_loading",
            ),
        ),
    ),
    Exhibit(
        "B59b",
        "only the first group hears of a failed load",
        "With several groups the failure was dealt with in one of them.",
        "vllm-project/vllm#37827, #45497 (#45474)",
        "PUB-1",
        places.LOADING_BOTH,
        (
            patch(
                "timed.py",
                "        stop = tables.num_written + count\n",
                "        stop = tables.num_written + count\n"
                "        everything = tables.num_written + tables.num_loading\n",
            ),
            patch(
                "timed.py",
                "self._publish(manager, table, request, stop, stop)",
                "end = stop if manager is self.managers[0] else everything\n"
                "                self._publish(manager, table, request, end, end)",
            ),
        ),
    ),
    Exhibit(
        "B59c",
        "the blocks of a load that nobody waits for never return",
        "The request had ended before its load; the end of the load found no request, and nothing was given back.",
        "vllm-project/vllm#37827, #45497 (#45474)",
        "FENCE-1",
        places.LOADING,
        (
            patch(
                "timed.py",
                "                self._return(batch)\n            except",
                "                pass\n            except",
            ),
        ),
    ),
    Exhibit(
        "D13a",
        "whoever holds a block shares a prefix",
        "Common prefix blocks were told by the reference count, which blocks of an aborted step, of a load and of a "
        "connector have too: what one of the running requests does not hold was named as common to all.",
        "vllm-project/vllm, FullAttentionManager.get_num_common_prefix_blocks",
        "COMMON-1",
        places.FLYING,
        (
            patch(
                "store.py", "return self.num_sharers(block) - self.num_apart(block)", "return self.num_sharers(block)"
            ),
        ),
    ),
    Exhibit(
        "D13b",
        "what a connector holds is taken for a leak",
        "The self-check counted tables alone, and raised a false alarm while a store held the blocks that it read.",
        "ours, before its first release: KVCacheManager.check",
        "REF-1",
        places.PINNED,
        (
            patch(
                "pool.py",
                "            self.set_apart(ids, 1)\n            self.touch_entries(ids)",
                "            self.touch_entries(ids)",
            ),
        ),
    ),
    Exhibit(
        "D16",
        "a load publishes what it had not to bring",
        "Of a window's layer a connector loads what the tokens after the load read. All blocks before the end of what "
        "came were published, and a later request read blocks that nobody had written.",
        "ours, before its first release: KVCacheManager.finish_load",
        "PUB-1",
        places.LOADING_BOTH,
        (
            patch(
                "timed.py",
                "            self._trim(tables, tables.num_written + tables.num_loading)\n",
                "            asked = tables.num_written + tables.num_loading\n",
            ),
            patch(
                "timed.py",
                "            if not is_whole:\n",
                "            self._trim(tables, asked)\n            if not is_whole:\n",
            ),
        ),
    ),
)
