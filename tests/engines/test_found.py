"""What was found in vLLM 0.32 that only its schedulers can show, with either manager: scripts over their own API.

0.33 has mended both. The scripts about its manager are in `blockwright_lab.peers.confirm`.
"""

from pathlib import Path
from typing import Any

import pytest

OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 24},
}


def _step(made: Any, worker: Any) -> None:
    """Run a step; blocks that are stored on the host are there at once."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
    from vllm.v1.outputs import KVConnectorOutput

    output = made.schedule()
    result = worker.run(output)
    stored = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(output.kv_connector_metadata.store_jobs, 1))
    result.kv_connector_output = KVConnectorOutput(kv_connector_worker_meta=stored)
    made.update_from_output(output, result)


@pytest.mark.parametrize("ours", [False, True], ids=["vLLM's manager", "Blockwright's"])
def test_a_reset_of_running_requests_ends_the_offloading_connector(ours: bool, models_folder: Path) -> None:
    """The request that the reset preempts is loaded in the next step: a load, where it asserts that all are stores."""
    from tests.engines import stub

    made = stub.scheduler(models_folder, ours, [stub.full()], 60, connector=OFFLOADING)
    worker = stub.Worker([stub.full()], 0, 1, made)
    made.add_request(stub.request("r", list(range(3, 90)), 16, 40))
    for _ in range(6):
        _step(made, worker)
    assert made.reset_prefix_cache(reset_running_requests=True)
    with pytest.raises(AssertionError):
        _step(made, worker)
    with pytest.raises(RuntimeError, match="requests waiting for remote KV transfer"):  # and so does `sleep()`
        made.reset_prefix_cache(reset_running_requests=True)


@pytest.mark.parametrize("ours", [False, True], ids=["vLLM's manager", "Blockwright's"])
def test_drafts_beyond_the_end_of_a_turn_end_the_session(ours: bool, models_folder: Path) -> None:
    """Without steps in flight they are counted as computed, so that a short turn has fewer tokens than that."""
    from tests.engines import stub

    made = stub.scheduler(models_folder, ours, [stub.full()], 60, drafts=3)
    side = stub.Side(made, [stub.full()], drafts=3)
    for number in range(8):
        name = f"s{number}"
        made.add_request(stub.request(name, list(range(3 + number, 40)), 16, 3, resumable=True))
        made.add_request(stub.request(name, [5], 16, 3, resumable=True))

    def steps() -> None:
        for _ in range(20):
            side.step()

    with pytest.raises(AssertionError):
        steps()
