"""An engine on one page: continuous batching over a hybrid model, with chunked prompts, prefix hits and preemption.

Run it:  python examples/engine_loop.py

The model is a toy (random weights, two layers of attention, no positions); the loop is what an engine does. The memory
is planned once. Then, for each step: slots for all that runs, in one call; admission of what waits; the tensors that
the kernels read, in one call; the model; one token for each request.
"""

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("this needs torch: pip install torch") from None

from blockwright import FullAttentionSpec, KVCacheManager, Request, SlidingWindowSpec
from blockwright.device import InputBatch, KVCacheStorage, StepInputs, paged_attention, plan_kv_cache, write_kv

VOCAB, HEADS, SIZE, CHUNK, LENGTH, OUTPUTS = 50, 2, 8, 16, 64, 24
near = SlidingWindowSpec(block_size=4, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float64, sliding_window=8)
far = FullAttentionSpec(block_size=4, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float64)
layers = {"near": near, "far": far}
torch.manual_seed(0)
embedding, head = torch.randn(2, VOCAB, HEADS * SIZE, dtype=torch.float64)
weights = {name: torch.randn(3, HEADS * SIZE, HEADS * SIZE, dtype=torch.float64) for name in layers}


def model(tokens: torch.Tensor, inputs: StepInputs, storage: KVCacheStorage) -> torch.Tensor:
    """Return the most likely next token after each token of the step."""
    hidden = embedding[tokens]
    for name, spec in layers.items():
        group = storage.plan.config.group_of(name)
        query, keys, values = torch.matmul(hidden, weights[name]).view(3, -1, HEADS, SIZE)
        write_kv(storage.kv(name), keys, values, inputs.slot_mapping[group])
        table = inputs.block_tables[group][: inputs.num_requests]
        read = paged_attention(query, storage.kv(name), spec, table, inputs.query_start_loc, inputs.seq_lens)
        hidden = torch.nn.functional.rms_norm(hidden + read.flatten(1), hidden.shape[1:])
    return torch.argmax(hidden @ head.T, 1)


def serve(prompts: list[list[int]], available_bytes: int) -> tuple[list[list[int]], int, int]:
    """Generate OUTPUTS tokens after each prompt; return them, the tokens that were found cached, and preemptions."""
    plan = plan_kv_cache(layers, available_bytes, LENGTH, max_num_batched_tokens=CHUNK)
    manager, storage = KVCacheManager(plan.config, LENGTH), KVCacheStorage(plan)
    batch = InputBatch.for_plan(plan, max_num_requests=CHUNK, max_num_tokens=2 * CHUNK)
    requests = [Request(f"request {i}", prompt, block_size=4) for i, prompt in enumerate(prompts)]
    waiting, running, num_hits, num_preemptions = requests[:], list[Request](), 0, 0
    while waiting or running:
        counts = [min(CHUNK // len(running), each.num_tokens - each.num_computed_tokens) for each in running]
        allocation = manager.allocate_slots_batch(running, counts)
        idle = running[allocation.num_served :]  # they got no slots: they wait for the next step
        running, counts = running[: allocation.num_served], counts[: allocation.num_served]
        if idle:  # one that gives blocks back starts again later; if it was not enough, the next step preempts another
            victim = next((each for each in reversed(idle) if manager.num_blocks_held_alone(each) > 0), idle[-1])
            idle, num_preemptions = [each for each in idle if each is not victim], num_preemptions + 1
            manager.free(victim, preempted=True)
            batch.remove_request(victim.request_id)
            victim.num_computed_tokens = 0
            waiting = [victim, *waiting]
        if waiting and allocation.refused is None and len(running) < CHUNK:  # admit the first that waits, if it fits
            hit, num_hit = manager.get_computed_blocks(waiting[0])
            count = min(CHUNK, waiting[0].num_tokens - num_hit)
            if manager.allocate_slots(waiting[0], count, num_hit, hit) is not None:
                waiting[0].num_computed_tokens, num_hits = num_hit, num_hits + num_hit
                batch.add_request(waiting[0].request_id, manager.get_blocks(waiting[0].request_id))
                running, counts = [*running, waiting.pop(0)], [*counts, count]
        if not running:  # the blocks that the preempted request held alone are free now
            running = idle
            continue
        inputs = batch.step(running, counts, allocation)  # all that the kernels read
        spans = [(each, each.num_computed_tokens, count) for each, count in zip(running, counts, strict=True)]
        tokens = [token for each, begin, count in spans for token in each.all_token_ids[begin : begin + count]]
        nexts = model(torch.tensor(tokens, dtype=torch.int64), inputs, storage)[inputs.query_start_loc[1:] - 1]
        for (request, _, count), token in zip(spans, nexts.tolist(), strict=True):
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:  # not within its prompt
                request.append_output_token_ids(token)
            if request.num_output_tokens == OUTPUTS:
                manager.free(request)
                batch.remove_request(request.request_id)
                running.remove(request)
        running += idle
    return [request.output_token_ids for request in requests], num_hits, num_preemptions


if __name__ == "__main__":
    prompts = [[*range(20), 20 + i] for i in range(6)]
    plenty, tight = serve(prompts, 1 << 20), serve(prompts, 48 << 10)
    for outputs, num_hits, num_preemptions in (plenty, tight):
        print(f"{num_hits} tokens found cached, {num_preemptions} preemptions; request 0 said {outputs[0]}")
    print("the same tokens in a pool that is too small for all:", plenty[0] == tight[0])
