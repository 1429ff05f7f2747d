"""The museum's ninth room: chains of tiers and their transfers, the connector, and what leaves the process."""

from . import offload_places as places
from .known_bug import Exhibit, patch
from .tiers import CLAMP, TIER, UNCOUNTED

MOVES = "offload/tiers/moves.py"
JOBS = "offload/tiers/transfers.py"
CHAIN = "offload/tiers/chain.py"
STORES = "offload/stores.py"

LANDED = "        self.tiers[0].complete_load(job.hashes, success)\n"
DOWN = "        self.tiers[job.below].complete_store(job.hashes, success)\n        self.tiers[job.above]"
PINNED = (
    "            for block in set(device_ids):\n                self.readers[block] = self.readers.get(block, 0) + 1\n"
)

CHAINS = (
    Exhibit(
        "B12",
        "a block's tier is changed before what it held is released",
        "Its tag said the new tier when it was unlinked, so that the old one's list and counter stayed as they were.",
        "NVIDIA/TensorRT-LLM#12834 (#11879)",
        "CHAIN-1",
        places.BACK,
        (patch(MOVES, DOWN, DOWN.replace("job.above", "job.below")),),
    ),
    Exhibit(
        "B17b",
        "a lookup pins what it finds on the host",
        "Lookups pinned their hits; where the engine decided not to load, nobody unpinned them, and nothing could be "
        "evicted any more.",
        "LMCache/LMCache#1034",
        "CHAIN-3",
        places.NEAR,
        (
            patch(
                CHAIN,
                "        return len(self._sources(keys_of(block_hashes)))\n",
                "        keys = keys_of(block_hashes)\n"
                "        self.tiers[0].prepare_load(keys[: self.tiers[0].lookup(keys)])\n"
                "        return len(self._sources(keys))\n",
            ),
        ),
    ),
    Exhibit(
        "B19c",
        "two paths unpin the same block",
        "Both the end of a transfer and the end of its request unpinned; the second took the pin of another reader.",
        "LMCache/LMCache#987, #993, #1365, #3381",
        "CHAIN-1",
        places.SHARED,
        (UNCOUNTED, CLAMP, patch(MOVES, LANDED, LANDED + "        if success:\n    " + LANDED)),
    ),
    Exhibit(
        "B20b",
        "a retrieval is not followed by a release",
        "The count that a load had raised was lowered on failure only; each block that was ever loaded stayed pinned.",
        "LMCache/LMCache#1756, #2785, #3884",
        "CHAIN-3",
        places.NEAR,
        (patch(MOVES, LANDED, "        if not success:\n    " + LANDED),),
    ),
    Exhibit(
        "B47b",
        "blocks are stored before their load has completed",
        "A request whose blocks were still being loaded counted as computed, and what lay in them was stored.",
        "vllm-project/vllm#35092 (#34526)",
        "CHAIN-2",
        places.NEAR,
        (
            patch(
                CHAIN,
                "        self._jobs.check_unwritten(blocks)\n        if self._most",
                "        if self._most",
            ),
        ),
    ),
    Exhibit(
        "B49a",
        "a store does not pin the blocks that it reads",
        "The allocator was not told which blocks a store was still reading, and gave them to another request.",
        "vllm-project/vllm#46951, #48596",
        "CHAIN-1",
        places.NEAR,
        (patch(JOBS, PINNED, "            pass\n"),),
    ),
    Exhibit(
        "B49b",
        "a load overwrites what a store is still reading",
        "Stores and loads were queued apart, and the load was begun although its blocks were the source of a store.",
        "vllm-project/vllm#46951, #48596",
        "CHAIN-4",
        places.OVER,
        (patch(JOBS, "if job.kind != LOAD or len(self.readers) == 0:", "if True:"),),
    ),
    Exhibit(
        "B50b",
        "a load's blocks are released when it is handed out",
        "The host's pages were unlocked when the copy was queued and not when it was acknowledged.",
        "sgl-project/sglang#26728, #31427, bytedance-iaas/sglang#638",
        "CHAIN-1",
        places.NEAR,
        (
            patch(
                CHAIN,
                "            job.is_started = True\n",
                "            job.is_started = True\n"
                "            if job.kind == LOAD:\n                self.tiers[0].complete_load(job.hashes)\n",
            ),
            patch(MOVES, LANDED, ""),
        ),
    ),
    Exhibit(
        "B52a",
        "a write-back that failed counts as done",
        "The result of the copy was ignored: the tier below listed blocks of which nothing had arrived.",
        "sgl-project/sglang#27108, #28468",
        "CHAIN-7",
        places.BELOW,
        (patch(MOVES, DOWN, DOWN.replace("(job.hashes, success)", "(job.hashes)")),),
    ),
    Exhibit(
        "B52b",
        "a block is dropped although its write-back failed",
        "The upper tier let go of what it believed to be backed up; the block was nowhere.",
        "sgl-project/sglang#27108, #28468",
        "CHAIN-8",
        places.BACK,
        (
            patch(
                MOVES,
                "        if not success:\n            return\n        if self._through:\n",
                "        if self._through:\n",
            ),
        ),
    ),
    Exhibit(
        "B59d",
        "a failed load is held against one of several sharers",
        "What could not be read was invalidated for the request that met it; another one that shared it went on.",
        "vllm-project/vllm#37827, #45497 (#45474)",
        "CHAIN-7",
        places.SHARED,
        (
            patch(
                TIER,
                "            if state[slot] == READY and not success:\n",
                "            if state[slot] == READY and not success and entries.readers[slot] == 0:\n",
            ),
        ),
    ),
)
"""Chains of tiers."""

ENGINES = (
    Exhibit(
        "B48",
        "a store reads before the step that writes has run",
        "What was scheduled was stored: the copy read blocks that the step had not written yet.",
        "vllm-project/vllm#45704, #46278 (#31341)",
        "CHAIN-6",
        places.not_yet_computed,
        (
            patch(
                STORES,
                "manager.num_settled(name) if manager.overlap_steps else request.num_computed_tokens",
                "request.num_tokens",
            ),
        ),
    ),
    Exhibit(
        "B49c",
        "a request's blocks are reused while their store is in flight",
        "The request ended, its blocks went to another one, and the store read what that one wrote.",
        "vllm-project/vllm#46951, #48596",
        "CHAIN-6",
        places.reused,
        (patch(STORES, "        self._manager.block_pool.touch(held)\n", "        held = []\n"),),
    ),
    Exhibit(
        "B49d",
        "a step does not wait for the copies of what it overwrites",
        "Blocks that were evicted were still being copied to the host when the next step wrote to them.",
        "vllm-project/vllm#46951, #48596",
        "CHAIN-6",
        places.evicted,
        (patch("offload/connector.py", "        self._desk.run_first(self._stores.copies)\n", ""),),
    ),
    Exhibit(
        "B59e",
        "a load of two groups that failed is taken for a success",
        "The blocks of only one group were marked as invalid, and the others were read as they were.",
        "vllm-project/vllm#37827, #45497 (#45474)",
        "CHAIN-6",
        places.failed_load,
        (patch("offload/loads.py", "load.num_tokens if load.success else 0)", "load.num_tokens)"),),
    ),
    Exhibit(
        "D14",
        "a load is offered that no pool could hold",
        "All blocks of a load are taken at once, those of a window too that computing would have given back. Whether "
        "there are as many was not asked: the offer was made again in every step, and the request starved.",
        "vllm-project/vllm, OffloadingConnectorScheduler.get_num_new_matched_tokens",
        "LIVE-1",
        places.too_large,
        (patch("offload/hits.py", "key=lambda each: not fits(each)", "key=lambda each: False"),),
    ),
    Exhibit(
        "B63c",
        "caches of two data types share their blocks",
        "The name under which blocks were kept did not say how their bytes were to be read.",
        "LMCache/LMCache#3301, #4086, #4783",
        "HASH-1",
        places.names,
        (patch("offload/identity.py", "[self.model, self.layout, self.dtype, self", "[self.model, self.layout, self"),),
    ),
    Exhibit(
        "B63d",
        "blocks of two groups share one key",
        "The key named the prefix and not the group whose data it was, so that one group was given the other's.",
        "LMCache/LMCache#3301, #4086, #4783",
        "HASH-1",
        places.names,
        (patch("offload/hits.py", 'return digest + group.to_bytes(4, "little")', "return digest"),),
    ),
    Exhibit(
        "B63e",
        "what else identifies a cache is left out",
        "The part of a tensor-parallel group, or a scale, was not part of the name.",
        "LMCache/LMCache#3301, #4086, #4783",
        "HASH-1",
        places.names,
        (patch("offload/identity.py", "            fields += [name, value]\n", "            pass\n"),),
    ),
)
"""The connector, and names of what leaves the process."""

OFFLOAD = (*CHAINS, *ENGINES)
"""All of the room."""
