"""Property: a Prometheus server that watches a running engine sees counters that never fall, and the engine's own sums.

How: examples/serve_metrics.py runs with a host tier, preemptions and resets; Debian's Prometheus scrapes it every
second. Then the server is asked: no counter was reset, no rate is negative, the last numbers are what the engine says
that it counted, and every query of docs/grafana.json returns numbers. promtool reads the exposition.
PROMETHEUS_SECONDS says how long (`make test-prometheus SECONDS=300`); PROMETHEUS_SCREENSHOT names a picture to take of
the server's own page by chromium.
Not covered: Grafana itself.
"""

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
for program in ("prometheus", "promtool"):
    if shutil.which(program) is None:
        pytest.skip(f"no {program}: apt-get install prometheus", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("PROMETHEUS_SECONDS", "8"))
PICTURE = os.environ.get("PROMETHEUS_SCREENSHOT")
SOURCES = "vllm:prompt_tokens_by_source_total"
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs: [{{job_name: engine, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def until(is_so: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"not within two minutes: {what}")


class Watched:
    """An engine that has run, and the server that has watched it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        port, own = free_port(), free_port()
        self.metrics, self.server = f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.1:{own}"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(port=port))
        command = [sys.executable, str(ROOT / "examples/serve_metrics.py"), f"--port={port}", f"--seconds={SECONDS}"]
        piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        engine = stack.enter_context(subprocess.Popen([*command, "--stay"], **piped))
        stack.callback(engine.kill)
        storage = ["--storage.tsdb.path", str(folder / "data"), f"--web.listen-address=127.0.0.1:{own}"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = stack.enter_context(subprocess.Popen(["prometheus", f"--config.file={config}", *storage], **quiet))
        stack.callback(server.kill)
        until(lambda: bool(fetched(f"{self.server}/-/ready")), "the server is ready")
        assert engine.stdout is not None
        self.said: dict[str, int] = json.loads(engine.stdout.readline())  # it stands still from now on
        until(lambda: self.number(f"sum({SOURCES})") == self.said["prompt_tokens"], "the last numbers are scraped")

    def asked(self, path: str, **given: object) -> Any:
        return json.loads(fetched(f"{self.server}/api/v1/{path}?{urllib.parse.urlencode(given)}"))["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.asked("query", query=expression)["result"]
        return found

    def number(self, expression: str) -> float:
        (found,) = self.query(expression) or [{"value": (0, "NaN")}]
        return float(found["value"][1])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(tmp_path_factory.mktemp("prometheus"), stack)


def test_no_counter_falls_and_no_rate_is_negative(watched: Watched) -> None:
    kinds = watched.asked("metadata")
    names = [f"{name}_{end}" for name in kinds for end in ("bucket", "count", "sum")] + list(kinds)
    counters = [
        each
        for each in names
        if each.rsplit("_", 1)[0] in kinds or kinds[each][0]["type"] == "counter"
        if watched.query(f'{{__name__="{each}"}}')
    ]
    assert SOURCES in counters
    assert len(counters) > 15
    span = f"{int(SECONDS) + 60}s"
    for name in counters:
        falls = watched.query(f"resets({name}[{span}]) > 0")
        negative = watched.query(f"min_over_time(rate({name}[5s])[{span}:1s]) < 0")
        assert (name, falls, negative) == (name, [], [])


def test_sums_are_what_the_engine_counted(watched: Watched) -> None:
    said = watched.said
    assert min(said[name] for name in ("admitted", "preempted", "hits", "external_hits", "evicted")) > 0
    assert watched.number(f"sum({SOURCES})") == said["prompt_tokens"]
    assert watched.number("sum(vllm:num_preemptions_total)") == said["preempted"]
    assert watched.number("sum(vllm:prompt_tokens_cached_by_source_total)") == watched.number(
        f'sum({SOURCES}{{source!="local_compute"}})'
    )
    assert watched.number("vllm:prefix_cache_queries_total") == said["prompt_tokens"]
    assert watched.number("vllm:kv_block_lifetime_seconds_count") > 0
    assert watched.number("vllm:kv_offload_load_bytes_total") > 0
    assert watched.number('blockwright:kv_transfer_bytes_total{source="CPU",target="GPU"}') > 0


def test_every_query_of_the_dashboard_returns_numbers(watched: Watched) -> None:
    board = json.loads((ROOT / "docs/grafana.json").read_text())
    models = watched.asked("label/model_name/values", **{"match[]": "vllm:kv_cache_usage_perc"})
    assert models == ["toy"]
    expressions = [
        target["expr"].replace("$model", models[0]) for panel in board["panels"] for target in panel["targets"]
    ]
    for expression in expressions:
        values = [float(each["value"][1]) for each in watched.query(expression)]
        assert (expression, bool(values), all(map(math.isfinite, values))) == (expression, True, True)
    if PICTURE:
        queries = [(f"g{at}.expr", each) for at, each in enumerate(expressions[3:5])]
        page = urllib.parse.urlencode([*queries, ("g0.tab", 0), ("g1.tab", 0), ("g0.range_input", "6m")])
        browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1500"]
        shot = [f"--screenshot={PICTURE}", "--virtual-time-budget=15000", f"{watched.server}/graph?{page}"]
        subprocess.run([*browser, *shot], check=True, capture_output=True, timeout=300)


def test_promtool_reads_the_exposition(watched: Watched) -> None:
    """It parses. The one thing that promtool advises against are colons, which vLLM's names have."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=fetched(watched.metrics), capture_output=True, timeout=60, check=False
    )
    advice = [line for line in done.stderr.decode().splitlines() if "should not contain ':'" not in line]
    assert (done.returncode in (0, 3), advice) == (True, [])
