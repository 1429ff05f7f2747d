"""An engine with a host tier that Prometheus can watch: it serves conversations, and its metrics by HTTP.

Run it:  python examples/serve_metrics.py --port 9400 --seconds 300

Then tell Prometheus of the target 127.0.0.1:9400, and import docs/grafana.json into Grafana. The pool is small on
purpose: conversations that come back hit what is left on the device, load the rest from the host, and preempt one
another. Once the time is up, the engine stands still, says what it has counted, and serves the same numbers until it is
stopped (with --stay).
"""

import argparse
import json
import random
import threading
import time
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

try:
    import prometheus_client
    import torch
except ModuleNotFoundError:
    raise SystemExit("this needs torch and prometheus-client: pip install torch prometheus-client") from None

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.observe.metrics import Metrics, wsgi_app
from blockwright.offload import OffloadingConnector

SIZE, BLOCKS, HOST_BLOCKS, CONVERSATIONS, MOST = 16, 120, 300, 24, 640


class Engine:
    """Requests that run, by one token a step; blocks that are found on the host are loaded before."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=8, dtype="float32")
        config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_groups=[KVCacheGroupSpec(["layers"], spec)])
        self.manager = KVCacheManager(config, max_model_len=2 * MOST, track_evictions=True)
        self.connector = OffloadingConnector.build(
            self.manager, [torch.zeros(BLOCKS, SIZE, 8)], host_blocks=HOST_BLOCKS, store_on="publish"
        )
        self.metrics = Metrics(  # this one call sets up the manager, its connector and the connector's worker
            self.manager, connector=self.connector, sample=1.0, model_name="toy", registry=registry
        )
        self.hasher, self.random = Sha256Hasher(b"seed"), random.Random(0)
        self.histories = [[at] * 32 for at in range(CONVERSATIONS)]
        self.running: list[tuple[int, Request]] = []
        self.counts = dict.fromkeys(("admitted", "preempted", "prompt_tokens", "resets"), 0)
        self.waiting: list[tuple[int, Request]] = []
        self.admitted = set[str]()

    def admit(self, at: int, request: Request) -> bool:
        """Give a request its first slots; return whether it fits."""
        manager, connector = self.manager, self.connector
        hit, length = manager.get_computed_blocks(request)
        external, _ = connector.get_num_new_matched_tokens(request, length)
        new = 0 if external else request.num_tokens - length
        slots = manager.allocate_slots(request, new, length, hit, num_external_computed_tokens=external)
        if slots is None:
            return False
        self.counts["admitted"] += 1
        if request.request_id not in self.admitted:
            self.admitted.add(request.request_id)
            self.counts["prompt_tokens"] += request.num_prompt_tokens
        if external:
            connector.update_state_after_alloc(request, external)
            connector.start_step()
            (loaded,) = [each for each in connector.drain() if each.request_id == request.request_id]
            request.num_computed_tokens = loaded.num_computed_tokens
            if manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens) is None:
                self.preempt(at, request)
                return True
        request.num_computed_tokens = request.num_tokens
        self.running.append((at, request))
        return True

    def preempt(self, at: int, request: Request) -> None:
        """Take a request's blocks; it waits, and is admitted again."""
        self.manager.free(request, preempted=True)
        self.connector.request_finished(request)
        self.counts["preempted"] += 1
        request.num_computed_tokens = 0
        self.waiting.append((at, request))

    def step(self, number: int) -> None:
        """Admit a request, give each that runs one token, and end some."""
        if not self.waiting:
            at = self.random.randrange(CONVERSATIONS)
            said = [self.random.randrange(1000) for _ in range(self.random.randrange(8, 64))]
            self.waiting = [(at, Request(f"request {number}", self.histories[at] + said, SIZE, hasher=self.hasher))]
        if self.admit(*self.waiting[0]):
            del self.waiting[0]
        for _, request in self.running:
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids(self.random.randrange(1000))
        batch = self.manager.allocate_slots_batch([request for _, request in self.running], 1)
        served = [request for _, request in self.running[: batch.num_served]]
        if batch.refused is not None:
            self.preempt(*self.running.pop())  # the others that got no slots get them in the next step
        self.connector.start_step()
        for request in served:
            request.num_computed_tokens += 1
        self.connector.finish_step(served)
        self.connector.poll()  # blocks that were stored can be taken again
        for at, request in self.running[:]:
            if request.num_output_tokens > 40 and request.num_computed_tokens == request.num_tokens:
                self.manager.free(request)
                self.connector.request_finished(request)
                self.running.remove((at, request))
                self.admitted.remove(request.request_id)
                self.histories[at] = [at] * 32 if request.num_tokens > MOST else request.all_token_ids
        if number % 2000 == 1999:
            self.counts["resets"] += 1
            self.connector.reset_prefix_cache()


class Quiet(WSGIRequestHandler):
    """Answers without a line in the log."""

    def log_message(self, *said: object) -> None:
        """Say nothing."""


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape."""

    daemon_threads = True


def main() -> None:
    """Run the engine for some time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0, help="0: no server")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--stay", action="store_true", help="serve the last numbers until standard input ends")
    args = parser.parse_args()
    registry = prometheus_client.CollectorRegistry()
    engine = Engine(registry)
    if args.port:
        server = make_server("127.0.0.1", args.port, wsgi_app(registry), Server, Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    end, number = time.monotonic() + args.seconds, 0
    while time.monotonic() < end:
        engine.step(number)
        number += 1
        time.sleep(0.002)  # the model's time
    print(json.dumps({**engine.counts, **engine.metrics.totals}), flush=True)
    if args.stay:
        input()
    engine.connector.close()


if __name__ == "__main__":
    main()
