"""An engine in a process of its own, with a host tier and a Mooncake store: `mooncake_engine.py MASTER MODEL`.

It reads the name of a pass, serves twenty prompts, each of which it loads as far as it can and computes the rest, and
writes how many tokens it loaded, and how many slots hold other numbers than their prefix decides.
"""

import os
import sys
import traceback
from random import Random

import torch

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.offload import (
    CacheIdentity,
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    HostHandler,
    HostPool,
    LRUOffloadingManager,
    MooncakeStore,
    OffloadChain,
    OffloadingConnector,
    OffloadingWorker,
    SharedLoadStoreSpec,
    SharedStoreManager,
    StoreHandler,
)

PROMPTS, LENGTH = 20, 33


def main(master: str, model: str) -> None:
    device = torch.zeros((40, 4, 256), dtype=torch.float32)
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=128, dtype="float32")
    config = KVCacheConfig(num_blocks=40, kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
    pool = HostPool([device], num_blocks=16)
    store = MooncakeStore(master, CacheIdentity(model, "4, 256", "float32", 4, b"seed"), lookup_timeout=5.0, failures=1)
    near, far = HostHandler([device], pool), StoreHandler(pool, store)
    worker = OffloadingWorker()
    for upper, lower, handler in (
        (GPULoadStoreSpec, CPULoadStoreSpec, near),
        (CPULoadStoreSpec, SharedLoadStoreSpec, far),
    ):
        worker.register_handler(upper, lower, handler)
        worker.register_handler(lower, upper, handler)
    manager = KVCacheManager(config, max_model_len=64)
    chain = OffloadChain([LRUOffloadingManager(CPUBackend(4, 16)), SharedStoreManager(store, 4)], write="through")
    connector = OffloadingConnector(manager, chain, worker, store_on="publish")
    for line in sys.stdin:
        loaded = wrong = 0
        for at in range(PROMPTS):
            random = Random(at)
            tokens = [random.randrange(100) for _ in range(LENGTH)]
            request = Request(f"{line}{at}", tokens, block_size=4, hasher=Sha256Hasher(b"seed"))
            external, _ = connector.get_num_new_matched_tokens(request, 0)
            if external:
                assert manager.allocate_slots(request, 0, 0, num_external_computed_tokens=external) is not None
                connector.update_state_after_alloc(request, external)
                connector.start_step()
                request.num_computed_tokens = connector.drain()[0].num_computed_tokens
                loaded += request.num_computed_tokens
            begin = request.num_computed_tokens
            assert manager.allocate_slots(request, LENGTH - begin) is not None
            connector.start_step()
            table = manager.get_block_ids(request.request_id)[0]
            for position in range(LENGTH):
                slot, number = (
                    device[table[position // 4], position % 4],
                    float(hash(tuple(tokens[: position + 1])) % 2**20),
                )
                if position < begin:
                    wrong += bool((slot != number).any())
                else:
                    slot[:] = number
            request.num_computed_tokens = LENGTH
            connector.finish_step([request])
            manager.free(request)
            connector.request_finished(request)
            connector.drain()
            manager.reset_prefix_cache()
        connector.check()
        print(loaded, wrong, flush=True)
    worker.close()
    store.close()


try:
    main(*sys.argv[1:])
except BaseException:
    traceback.print_exc()
finally:
    os._exit(0)  # the worker's threads would wait for the end of their handlers
