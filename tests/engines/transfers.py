"""vLLM's own connectors with workers that move the contents of slots as the schedulers' sides say.

`Prefill` and `Decode` are the two ends of a connector that hands requests over (NIXL by pull and push, Mooncake).
`Host` is an engine that offloads to the host (`SimpleCPUOffloadConnector`), `Store` one that saves to a Mooncake store.
What a request reads is checked as in `stub`.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.engines import stub
from tests.engines.connector import draw
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import MooncakeStoreWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

_ENGINE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "prefill"}
_MOONCAKE = _ENGINE | {"remote_bootstrap_addr": "http://127.0.0.1:1"}


class Prefill(stub.Side):
    """The end that computes prompts, and holds their blocks until the other end has them.

    Attributes:
        offered: blocks of each request that it has finished, as its connector hands them to its worker.
        sent: requests whose blocks the other end has, or never wants.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offered: dict[str, Any] = {}
        self.sent: set[str] = set()

    def _transfer(self, output: Any) -> KVConnectorOutput:
        meta = output.kv_connector_metadata
        self.offered.update(getattr(meta, "push_finished_blocks", {}))
        for name, value in meta.reqs_to_send.items():
            if isinstance(value, tuple) and value[1]:  # Mooncake: a transfer and its blocks
                self.offered[name] = value[1]
        sending = {name for name in self.sent if name in self.scheduler.requests}
        self.sent -= sending
        return KVConnectorOutput(finished_sending=sending)


class Decode(stub.Side):
    """The end that loads prompts and goes on; some loads fail, each request's once."""

    def __init__(self, peer: Prefill, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.peer = peer
        self.loading: list[tuple[int, str, Any, Any]] = []
        self.loads = 0

    def _asked(self, meta: Any) -> list[tuple[str, Any, Any, bool]]:
        """Return the loads of a step: request, blocks here, blocks there if they are known, and if it waits for it."""
        found: list[tuple[str, Any, Any, bool]] = []
        for name, value in meta.reqs_to_recv.items():
            if isinstance(value, dict):  # Mooncake: those of one engine
                found += [(each, own.local_block_ids, None, any(own.local_block_ids)) for each, own in value.items()]
            else:
                waits = any(value.local_block_ids)
                found.append((name, value.local_block_ids, value.remote.block_ids, waits))
        return found

    def _transfer(self, output: Any) -> KVConnectorOutput:
        self.steps += 1
        for name, here, there, waits in self._asked(output.kv_connector_metadata):
            if waits:
                self.loading.append((self.steps + draw(name, "time", 5), name, here, there))
            else:
                self.peer.sent.add(name)
        done = KVConnectorOutput(finished_recving=set())
        for each in [each for each in self.loading if each[0] <= self.steps]:
            _, name, here, there = each
            there = there or self.peer.offered.get(name)
            if not there:
                continue  # it is not offered yet
            self.loading.remove(each)
            if draw(name, "fails", 4) == 0:
                self.failed += 1
                if len(here) > 1:
                    done.failed_recving.add(name)
                else:
                    done.invalid_block_ids.update(here[0][draw(name, "from", len(here[0])) :])
            else:
                self.loads += 1
            self._copy(here, there, done.invalid_block_ids)
            done.finished_recving.add(name)
            self.peer.sent.add(name)
        return done

    def _copy(self, here: Sequence[Sequence[int]], there: Sequence[Sequence[int]], lost: set[int]) -> None:
        for group, (own, other) in enumerate(zip(here, there, strict=True)):
            count = min(len(own), len(other))
            for target, source in zip(own[len(own) - count :], other[len(other) - count :], strict=True):
                if target not in lost:
                    kind, held = self.peer.worker.slots[source]
                    assert kind == group
                    self.worker.slots[target] = group, dict(held)


def params(connector: str, name: str, finished: Any) -> dict[str, Any] | None:
    """Return what a router passes from the one end to the other with a request, None if it is not to be handed over."""
    if connector == "MooncakeConnector":
        return _MOONCAKE | {"transfer_id": name}
    given: dict[str, Any] | None = copy.deepcopy(finished.kv_transfer_params)
    return given


def pair(
    folder: Path, ours: bool, kinds: Sequence[Any], blocks: int, connector: str, unit: int | None = None
) -> tuple[Prefill, Decode]:
    """Return both ends, with vLLM's manager or with ours."""

    def made(role: str) -> Any:
        config = {"kv_connector": connector, "kv_role": role, "engine_id": role}
        return stub.scheduler(folder, ours, kinds, blocks, connector=config, unit=unit)

    prefill = Prefill(made("kv_producer"), kinds)
    return prefill, Decode(prefill, made("kv_consumer"), kinds)


def hand_over(
    ends: tuple[Prefill, Decode], connector: str, seed: int, steps: int, window: int = 0
) -> list[tuple[int, int]]:
    """Send random requests through both ends, abort some in either, and return the free blocks after each step."""
    # With a `window`, no prompt ends where the window of its last token starts with the last slot of a block: vLLM's
    # own manager keeps no block for that slot, on neither end, though the decoding end computes the last token again.
    prefill, decode = ends
    draws = random.Random(seed)
    prefixes = [[draws.randrange(3, 100) for _ in range(draws.randrange(20, 130))] for _ in range(4)]
    prompts: dict[str, list[int]] = {}
    aborts: dict[int, list[tuple[stub.Side, str]]] = {}
    free: list[tuple[int, int]] = []
    for number in range(steps + 400):
        if number < steps and draws.random() < 0.3:
            name = f"r{number}"
            prompts[name] = draws.choice(prefixes) + [draws.randrange(3, 100) for _ in range(draws.randrange(1, 40))]
            if window and (len(prompts[name]) - window + 1) % 16 == 0:
                prompts[name].append(3)
            asked = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
            prefill.scheduler.add_request(_request(prefill, name, prompts[name], 1, asked))
            if draw(name, "abort there", 9) == 0:
                aborts.setdefault(number + 1 + draw(name, "soon", 6), []).append((prefill, name))
        for name, finished in list(prefill.finished.items()):
            del prefill.finished[name]
            given = params(connector, name, finished)
            if str(finished.finish_reason) != "length" or given is None:
                continue
            decode.scheduler.add_request(_request(decode, name, prompts[name], 5 + draw(name, "tokens", 40), given))
            if draw(name, "abort here", 6) == 0:
                aborts.setdefault(number + draw(name, "later", 7), []).append((decode, name))
        for side, name in aborts.pop(number, ()):
            side.abort(name)
        for side in ends:
            side.step()
            side.check()
        free.append((prefill.num_free, decode.num_free))
    prefill.sent.update(prefill.scheduler.requests)  # leases that have run out
    prefill.step()
    prefill.step()
    assert not prefill.scheduler.requests
    assert not decode.scheduler.requests
    return free


def _request(side: stub.Side, name: str, tokens: list[int], most: int, given: dict[str, Any]) -> Any:
    made = stub.request(name, list(tokens), side.scheduler.hash_block_size, most)
    made.kv_transfer_params = given
    return made


class Host(stub.Side):
    """An engine whose `SimpleCPUOffloadConnector` stores blocks on the host, and loads them.

    Attributes:
        host: what the host's blocks hold.
        stored, loaded: blocks so far.
        computed: tokens so far, those computed again included.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.host: dict[int, Any] = {}
        self.stored = self.loaded = self.computed = 0
        self.ending: list[tuple[int, Callable[[KVConnectorOutput], None]]] = []

    def _transfer(self, output: Any) -> KVConnectorOutput:
        meta = output.kv_connector_metadata
        self.steps += 1
        if meta.load_event >= 0:
            self.loaded += len(meta.load_gpu_blocks)
            for target, source in zip(meta.load_gpu_blocks, meta.load_cpu_blocks, strict=True):
                self.worker.slots[target] = copy.deepcopy(self.host[source])
            names = set(meta.load_event_to_reqs[meta.load_event])
            self._later(f"load {meta.load_event}", lambda done: done.finished_recving.update(names))
        done = KVConnectorOutput(finished_recving=set())
        done.kv_connector_worker_meta = SimpleCPUOffloadWorkerMetadata({})
        for each in [each for each in self.ending if each[0] <= self.steps]:
            self.ending.remove(each)
            each[1](done)
        if meta.store_event >= 0:
            self.stored += len(meta.store_gpu_blocks)
            pairs = list(zip(meta.store_gpu_blocks, meta.store_cpu_blocks, strict=True))
            self.after = pairs
            event = meta.store_event
            self._later(
                f"store {event}",
                lambda done: done.kv_connector_worker_meta.completed_store_events.update({event: 1}),
            )
        else:
            self.after = []
        return done

    def check(self) -> None:
        """Check the manager's state: beside requests, the blocks are held that the connector's books name."""
        core = getattr(self.scheduler.kv_cache_manager, "core", None)
        if core is not None:
            books = self.scheduler.connector.scheduler_manager
            moves = [*books._store_event_to_blocks.values(), *books._abandoned_store_event_to_blocks.values()]
            moves += books._pending_finished_stores
            loads = [*books._reqs_to_load.values(), *books._abandoned_reqs_to_load.values()]
            moves += [load.transfer_meta for load in loads]
            core.check(Counter(block for move in moves for block in move.gpu_block_ids))

    def _later(self, name: str, end: Callable[[KVConnectorOutput], None]) -> None:
        self.ending.append((self.steps + 1 + draw(name, "time", 4), end))

    def step(self) -> Any:
        """Run a step, then copy to the host what it says: stores wait for the step that they are handed out with."""
        output = super().step()
        self.computed += output.total_num_scheduled_tokens
        for source, target in self.after:
            self.host[target] = copy.deepcopy(self.worker.slots[source])
        return output


class Store(stub.Side):
    """An engine whose `MooncakeStoreConnector` saves blocks, which it holds until they have been read.

    Attributes:
        saved: blocks so far.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.saved = 0
        self.saving: list[tuple[int, int, dict[int, Any]]] = []

    def step(self) -> Any:
        """Run a step, then begin its saves: what they read must stay as it is until they end."""
        output = super().step()
        books = self.scheduler.connector.connector_scheduler
        for each in output.kv_connector_metadata.requests:
            blocks = books._pinned_saves.get(each.store_job_id, ((),))[0]
            if each.can_save and all(job != each.store_job_id for _, job, _ in self.saving):
                held = {}
                for group, table in enumerate(each.block_ids):  # what lies behind the tokens is still written
                    size = self.worker.kinds[group].block_size
                    for block in table[: each.token_len_chunk // size]:
                        if block in blocks:
                            held[block] = copy.deepcopy(self.worker.slots[block])
                self.saving.append((self.steps + 1 + draw(f"{each.store_job_id}", "time", 5), each.store_job_id, held))
        return output

    def _transfer(self, output: Any) -> KVConnectorOutput:
        self.steps += 1
        ended: dict[int, int] = {}
        for each in [each for each in self.saving if each[0] <= self.steps]:
            self.saving.remove(each)
            _, job, held = each
            for block, (group, slots) in held.items():
                assert self.worker.slots[block] == (group, slots)
            self.saved += len(held)
            ended[job] = 1
        return KVConnectorOutput(
            finished_recving=set(), kv_connector_worker_meta=MooncakeStoreWorkerMetadata(completed_saves=ended)
        )

    def check(self) -> None:
        """Check the manager's state: beside requests, the blocks are held that the connector's books name."""
        core = getattr(self.scheduler.kv_cache_manager, "core", None)
        if core is not None:
            pinned = self.scheduler.connector.connector_scheduler._pinned_saves.values()
            core.check(Counter(block for blocks, _ in pinned for block in blocks))
