"""A whole vLLM in a process of its own, which lives on: `store_engine.py MODELS CONFIG`, the latter of its connector.

For each line that it reads it serves the same prompts, and writes a JSON object of their tokens and of how many came
from the tiers. At ``forget`` it first forgets all that it has outside of the shared store.
"""

import json
import sys
from pathlib import Path

from tests.engines import served

from blockwright.engines.vllm import offload


def main(models: str, config: str) -> None:
    llm = served.started(Path(models), "llama", True, {"kv_transfer_config": json.loads(config)})
    total = 0
    for line in sys.stdin:
        if line.strip() == "forget":
            assert llm.reset_prefix_cache(reset_connector=True)
        found = served.Served()
        served.generate(rounds=1)(llm, found)
        for tier in offload._shared.values():  # the threads write on when no step runs any more
            for future, *_ in tier._moving:
                future.result()
        before, total = total, served.counted(llm)["vllm:external_prefix_cache_hits"]
        print(json.dumps({"tokens": found.tokens, "external": total - before}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
