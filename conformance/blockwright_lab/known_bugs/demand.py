"""The museum's second room: what a step takes, what was counted for it, and what a refusal leaves."""

from ..trials import call_trials
from . import places
from .known_bug import Exhibit, patch

DEMAND = (
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
                "                    free = manager.check_hit(hit.ids[at], request.keys(units))\n",
                "                    free = manager.check_hit(hit.ids[at], request.keys(units))\n"
                "                    self.block_pool.touch_entries(hit.ids[at])\n",
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
        (patch("running.py", "                    ask.demand += free\n", ""),),
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
                "                manager.fill(table, manager.reach(ask), i64(self._held[at]))\n",
                "                manager.fill(table, manager.reach(ask), i64(self._held[at]))\n"
                "                if is_new and ask.hit is not None:\n"
                "                    self.block_pool.touch_entries(ask.hit.ids[at])\n",
            ),
        ),
    ),
    Exhibit(
        "B07",
        "each group adopts its hit and takes its blocks before the next",
        "Hits were held and new blocks taken group by group: one group's new blocks were the next one's hits.",
        "vllm-project/vllm#33775",
        "TABLE-2",
        places.BOTH_TIGHT,
        (
            patch(
                "running.py",
                "                self.managers[at].adopt(hit.ids[at])\n",
                "",
            ),
            patch(
                "running.py",
                "            # law: STEP-1\n",
                "            if is_new and ask.hit is not None:\n"
                "                self.managers[at].adopt(ask.hit.ids[at])\n",
            ),
        ),
    ),
    Exhibit(
        "B08a",
        "the prediction is capped at one block",
        "What a step would take was capped by a rule that held for one case only, and more was taken than predicted.",
        "vllm-project/vllm#46892",
        "PLAN-1",
        places.PLANNED,
        (patch("group.py", "if more > 1 and self._layout == LAST_STATE:", "if more > 1:"),),
    ),
    Exhibit(
        "B08b",
        "the prediction leaves out what is loaded",
        "The demand was counted for the tokens to compute; those that come from elsewhere take blocks too.",
        "vllm-project/vllm#46892",
        "PLAN-1",
        call_trials.plans,
        (
            patch(
                "running.py",
                "manager.missing(held, manager.reach(ask)) +",
                "manager.missing(held, manager.reach(ask) - ask.external) +",
            ),
        ),
    ),
    Exhibit(
        "B08c",
        "the prediction leaves out the states of drafts",
        "A recurrent layer that keeps states of drafts took more blocks than were counted for its table.",
        "vllm-project/vllm#46892",
        "PLAN-1",
        places.PLANNED_DRAFTS,
        (patch("running.py", "manager.reach(ask)) + manager.num_states", "manager.reach(ask))"),),
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
                "            if ask.most > self.block_pool.num_blocks - 1:\n",
                "            if ask.missing > 0:\n"
                "                self._opened(request, ask)\n"
                "            if ask.most > self.block_pool.num_blocks - 1:\n",
            ),
        ),
    ),
    Exhibit(
        "B34a",
        "admission and execution use different bounds",
        "Slots for drafts were counted beyond the longest sequence the model takes.",
        "vllm-project/vllm#39734, #55818, #50169; vllm-project/vllm-ascend#9543",
        "TABLE-1",
        places.DRAFTS,
        (
            patch(
                "running.py", "ask.slots = min(ask.stop + ask.ahead, self._max_len)", "ask.slots = ask.stop + ask.ahead"
            ),
        ),
    ),
    Exhibit(
        "B34b",
        "admission asks for more than a window ever holds",
        "A request was admitted only if all its tokens fitted, although its window gives blocks back: it waited for "
        "ever in an idle pool.",
        "vllm-project/vllm#39734, #55818, #50169; vllm-project/vllm-ascend#9543",
        "LIVE-1",
        places.ADMITTED,
        (
            patch(
                "window.py",
                "        last = max(num_tokens - step, 0)\n",
                "        return (num_tokens + block_size - 1) // block_size\n",
            ),
        ),
    ),
    Exhibit(
        "B34c",
        "an encoder's table is sized by the decoder's tokens",
        "What was admitted was counted in encoder tokens, what was taken in the request's own.",
        "vllm-project/vllm#39734, #55818, #50169; vllm-project/vllm-ascend#9543",
        "CROSS-1",
        places.ENCODER,
        (
            patch("running.py", "manager.widen(table, manager.reach(ask))", "manager.widen(table, ask.slots)"),
            patch("running.py", "manager.fill(table, manager.reach(ask),", "manager.fill(table, ask.slots,"),
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
                "            self._count_running(tables, ask)\n",
                "            self._note_held(tables)\n            self._trim(tables, ask.settled)\n"
                "            self._count_running(tables, ask)\n",
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
)
