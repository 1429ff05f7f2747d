"""nano-vllm's scheduler over Blockwright's manager: `nanovllm.engine.llm_engine.Scheduler` is to be this one."""

from typing import Any

from nanovllm.engine.scheduler import Scheduler as NanoScheduler
from nanovllm.engine.sequence import SequenceStatus

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright import append_output_token_ids_batch as append_to_all


class Scheduler(NanoScheduler):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        layers = KVCacheGroupSpec(["all"], FullAttentionSpec(config.kvcache_block_size, 1, 1, "bfloat16"))
        pool = KVCacheConfig(config.num_kvcache_blocks, [layers])  # block 0 is the null block
        self.block_manager, self.lease = self, 0  # nano-vllm's `preempt` has it deallocate; steps without a call
        self.manager = KVCacheManager(pool, config.num_kvcache_blocks * config.kvcache_block_size)

    def add(self, seq: Any) -> None:
        if seq.cfg_scale > 1.0:
            raise ValueError("cfg_scale: pairs of sequences are not served; use nano-vllm's own scheduler for them")
        seq.request, seq.end = Request(seq.seq_id, seq.token_ids), seq.num_tokens + seq.max_tokens
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Any], bool]:
        admitted, self.counts, budget = [], [], self.max_num_batched_tokens  # type: list[Any], list[int], int
        while self.waiting and len(admitted) < self.max_num_seqs:
            seq = self.waiting[0]
            hit, num_hit = self.manager.get_computed_blocks(seq.request)
            num_new = seq.num_tokens - num_hit
            new = self.manager.allocate_slots(seq.request, num_new, num_hit, hit) if num_new <= budget else None
            if new is None:
                break
            seq.num_cached_tokens = seq.request.num_computed_tokens = num_hit
            seq.block_table, seq.status = [*hit.ids[0], *new.ids[0]], SequenceStatus.RUNNING
            admitted.append(self.waiting.popleft())
            self.counts, budget = [*self.counts, num_new], budget - num_new
        self.running.extend(admitted)
        self.lease = 0 if admitted else self.lease - 1
        return (admitted, True) if admitted else (self.decode() if self.lease < 0 else list(self.running), False)

    def decode(self) -> list[Any]:
        scheduled, seqs = [], list(self.running)[: self.max_num_seqs]  # type: list[Any], list[Any]
        while seqs:
            step = self.manager.allocate_slots_batch([seq.request for seq in seqs], 1)
            ids, changed = list(step.new_block_ids), list(step.changed_tables)
            for at, start, end in zip(changed[::3], [0, *changed[1::3]], changed[1::3], strict=False):
                seqs[at].block_table += ids[start:end]
            scheduled, seqs = scheduled + seqs[: step.num_served], seqs[step.num_served :]
            if seqs:  # the last one makes room
                self.preempt(self.running.pop())
                seqs = [seq for seq in seqs if seq.status is SequenceStatus.RUNNING]
        if not scheduled:
            raise ValueError("num_kvcache_blocks, max_num_batched_tokens: too small for the first that waits")
        self.lease = step.lease if step.num_served == len(scheduled) else 0
        return scheduled

    def deallocate(self, seq: Any) -> None:
        self.manager.free(seq.request, preempted=not seq.is_finished)
        seq.block_table, seq.request.num_computed_tokens, seq.num_cached_tokens, self.lease = [], 0, 0, 0

    def postprocess(self, seqs: list[Any], token_ids: list[int]) -> None:
        append_to_all([seq.request for seq in seqs], token_ids, self.counts or 1)
        for seq, token in zip(seqs, token_ids, strict=True):
            seq.append_token(token)
            if seq.num_tokens == seq.end or (token == self.eos and not seq.ignore_eos):
                seq.status = SequenceStatus.FINISHED
                self.deallocate(seq)
                self.running.remove(seq)
