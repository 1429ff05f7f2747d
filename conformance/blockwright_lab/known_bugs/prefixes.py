"""The museum's fourth room: what a hit is, and what its key stands for."""

from ..trials import trials
from . import places
from .known_bug import Exhibit, patch

PREFIXES = (
    Exhibit(
        "B27",
        "dropping the draft margin cuts a window's hit short",
        "The last block of a hit was dropped for the draft head without asking for one block more beforehand, so that "
        "what remained did not cover the window.",
        "vllm-project/vllm#17398",
        "HIT-1",
        places.SLIDING_EAGLE,
        (patch("window.py", "end - i < run + margin", "end - i < run"),),
    ),
    Exhibit(
        "B31",
        "a block wider than the window is not needed",
        "The margin was the window, not the block that holds it: a hit without the window's block was taken.",
        "sgl-project/sglang#29860",
        "HIT-1",
        places.SLIDING_WIDE,
        (patch("window.py", "(window - 1 + block_size - 1) // block_size", "(window - 1) // block_size"),),
    ),
    Exhibit(
        "B36",
        "the draft margin is dropped twice",
        "Each round of the search dropped the last block again, down to no hit at all.",
        "vllm-project/vllm#32802, #33270, #39171",
        "HIT-2",
        places.EAGLE,
        (
            patch(
                "window.py",
                "min(length // probe.block_size, max(probe.run_end - probe.margin, 0))",
                "max(min(length // probe.block_size, probe.run_end) - probe.margin, 0)",
            ),
        ),
    ),
    Exhibit(
        "B37a",
        "a recurrent layer's hit grows by the draft margin",
        "The search for a state was given one block more than the others asked for, and returned a longer hit.",
        "vllm-project/vllm#46281, #45614, #47861 (#43559); vllm-project/vllm-ascend#12038",
        "HIT-3",
        places.MAMBA_EAGLE,
        (
            patch("window.py", "min(max_length // block_size, keys", "min(max_length // block_size + margin, keys"),
            patch("window.py", "last_run(length, 1, 0)", "last_run(length + probe.block_size * probe.margin, 1, 0)"),
        ),
    ),
    Exhibit(
        "B37b",
        "the groups are not asked again",
        "One group shortened the hit after another had agreed to it; the shorter one was never held against the first.",
        "vllm-project/vllm#46281, #45614, #47861 (#43559); vllm-project/vllm-ascend#12038",
        "HIT-1",
        places.TURNED,
        (patch("window.py", "if length == before:", "if True:"),),
    ),
    Exhibit(
        "B39",
        "only as much of a window is published as a resend needs",
        "Of a window layer exactly the blocks were kept that the same prompt would hit; a sibling that parts from it "
        "earlier found nothing.",
        "vllm-project/vllm#57610, #57613",
        "PUB-2",
        places.SLIDING,
        (
            patch(
                "group.py",
                "        if self._layout != ROW:\n            if num_tokens %",
                "        if isinstance(self.rule, SlidingRule):\n"
                "            start = max(start, stop - self.rule.hit_run)\n"
                "        if self._layout != ROW:\n            if num_tokens %",
            ),
        ),
    ),
    Exhibit(
        "B40",
        "a state is published as if it stood at the block's end",
        "A state after fewer or more tokens was hashed as that of a full block: a hit resumed from the wrong position.",
        "vllm-project/vllm#34587, #51094",
        "PUB-1",
        places.MAMBA,
        (
            patch(
                "group.py",
                "if num_tokens % self._block_size != 0 or num_tokens != stopped:",
                "if stopped < 0 or table.blocks[stop - 1] == 0:",
            ),
            patch(
                "group.py",
                "self._layout == LAST_STATE and num_tokens % self._block_size == 0",
                "self._layout == LAST_STATE",
            ),
        ),
    ),
    Exhibit(
        "B41",
        "a state is published at the end of another group's block",
        "Where a state may be published was asked of the smallest block of all groups: a state inside a larger block "
        "passed for that at its end.",
        "vllm-project/vllm#54076, #53142; wtdcode/vllm-backport#77",
        "PUB-1",
        places.UNEQUAL,
        (
            patch(
                "group.py",
                "if num_tokens % self._block_size != 0 or num_tokens != stopped:",
                "if num_tokens % self.least != 0 or num_tokens != stopped or table.blocks[stop - 1] == 0:",
            ),
            patch(
                "running.py",
                "        if manager.publishes(table, count) and",
                "        manager.least = self._least_size\n        if manager.publishes(table, count) and",
            ),
            patch(
                "group.py",
                "LAST_STATE and num_tokens % self._block_size == 0",
                "LAST_STATE and num_tokens % getattr(self, 'least', 1) == 0",
            ),
        ),
    ),
    Exhibit(
        "B44",
        "keys are made of blocks as wide as one rank's",
        "With a block's tokens shared by ranks, keys and events used the layer's own block size.",
        "vllm-project/vllm#26296, #26539, #50118",
        "PUB-1",
        places.SPLIT,
        (patch("running.py", "request, manager._block_size // request._block_size, count", "request, 1, count"),),
    ),
    Exhibit(
        "B45",
        "a block is found by the key of another unit",
        "A coarse block i was given the i-th fine hash, which covers only a part of it.",
        "ovg-project/kvcached#451; vllm-project/vllm#29143",
        "PUB-1",
        places.FINE,
        (
            patch("request.py", "BlockKeys(self._words, units, self)", "BlockKeys(self._words, 1, self)"),
            patch("store.py", "at: i64 = 2 * ((i + 1) * units - 1)", "at: i64 = 2 * i"),
        ),
    ),
    Exhibit(
        "B46",
        "a hit covers the whole prompt",
        "With every token cached none was left to compute, and there were no logits to sample from.",
        "vllm-project/vllm#11186",
        "HIT-3",
        places.FULL,
        (patch("manager.py", "max_length: i64 = request.num_tokens - 1", "max_length: i64 = request.num_tokens"),),
    ),
    Exhibit(
        "B60a",
        "the hash has a constant seed",
        "Keys could be foreseen by anyone, and prompts be built whose keys collide.",
        "CVE-2025-25183 (GHSA-rm76-4mrf-v9r8); vllm-project/vllm#12621",
        "HASH-2",
        trials.keys,
        (patch("block_hash.py", "os.urandom(16) if key is None", "bytes(16) if key is None"),),
    ),
    Exhibit(
        "B60b",
        "the hash is 16 bits wide",
        "A short or polynomial hash without any comparison serves another prompt's blocks.",
        "NVIDIA/Megatron-LM#4158; openvinotoolkit/openvino.genai#3722",
        "HASH-1",
        trials.keys,
        (
            patch(
                "block_hash.py",
                "return first - ((first >> 63) & 1) * (m + 1), second - ((second >> 63) & 1) * (m + 1)",
                "return first & 0xFFFF, 0",
            ),
        ),
    ),
    Exhibit(
        "B60c",
        "equal keys are taken for equal tokens",
        "A hit was believed without comparing what it holds; with a hash that can be collided it is another's.",
        "CVE-2025-25183; vllm-project/vllm#54727",
        "HIT-1",
        places.COLLIDING,
        (patch("journal.py", "contents is None or contents[block] == keys.content(index, block_size)", "True"),),
    ),
    Exhibit(
        "B60d",
        "a weak hash is accepted without a comparison",
        "Nothing kept a fast, weak hash from being used where tokens are not verified.",
        "CVE-2025-25183; vllm-project/vllm#54727",
        "HASH-3",
        trials.keys,
        (patch("pool.py", "if not request.hasher.is_collision_resistant and", "if False and"),),
    ),
    Exhibit(
        "B61a",
        "the salt is no part of the key",
        "Tenants shared each other's prefixes, and could tell by the time to the first token what others had asked.",
        "CVE-2025-46570; vllm-project/vllm#17045, #16016",
        "HASH-1",
        places.SALTED,
        (patch("request.py", 'b"" if self.cache_salt is None else _tagged(b"S", self.cache_salt)', 'b""'),),
    ),
    Exhibit(
        "B61b",
        "the salt applies only after the first block",
        "The first block's key came without the salt, so that its hit was visible to every tenant.",
        "CVE-2025-46570; vllm-project/vllm#17045",
        "HASH-1",
        places.SALTED,
        (
            patch("request.py", 'b"" if self.cache_salt is None else _tagged(b"S", self.cache_salt)', 'b""'),
            patch("request.py", "if i < in_prompt and not self._mm_items:", "if False:"),
            patch(
                "request.py",
                '        data = b""\n        start = int(index',
                '        data = b"" if index == 0 else (self.cache_salt or "").encode()\n        start = int(index',
            ),
        ),
    ),
    Exhibit(
        "B62",
        "adapter and salt share an untagged tuple",
        "Extra keys were put side by side without saying which is which: an adapter's name passed for a salt.",
        "vllm-project/vllm#44701",
        "HASH-1",
        trials.keys,
        (patch("request.py", '_tagged(b"S", self.cache_salt)', '_tagged(b"L", self.cache_salt)'),),
    ),
    Exhibit(
        "B63a",
        "multimodal items are no part of the key",
        "Two prompts with the same placeholder tokens and other images were taken for one.",
        "LMCache/LMCache#3301, #4086; sgl-project/sglang#2151",
        "HASH-1",
        trials.keys,
        (patch("request.py", "if i < in_prompt and not self._mm_items:", "if i < in_prompt:"),),
    ),
    Exhibit(
        "B63b",
        "the identity of a multimodal item is cut short",
        "Identifiers were truncated before they were hashed; those with a common beginning were equal.",
        "LMCache/LMCache#4783",
        "HASH-1",
        trials.keys,
        (patch("request.py", '_tagged(b"M", item.identifier)', '_tagged(b"M", item.identifier[:64])'),),
    ),
    Exhibit(
        "D05",
        "a window of one token asks for a block",
        "A token that sees only itself reads nothing before it: everything before it is a hit.",
        "chapter `reads` of the specification: a window of one token reads nothing before it",
        "HIT-2",
        places.SLIDING_NARROW,
        (
            patch(
                "window.py",
                "(window - 1 + block_size - 1) // block_size",
                "max(1, (window - 1 + block_size - 1) // block_size)",
            ),
        ),
    ),
)
