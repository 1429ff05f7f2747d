"""`blockwright replay` reports what the replay counted, in a table, as JSON and as a picture, and refuses bad input.

How: the command is called in this process on small traces and on a generated workload; its JSON is compared with a
replay through the library. Every bad argument and bad trace must give exit code 2 and one line that names it.

Not covered: the counts themselves (tests/replay); progress on a terminal (test_terminal.py).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from blockwright import FullAttentionSpec, build_info
from blockwright.cli import main
from blockwright.observe import Fact
from blockwright.observe.timeline import write_timeline
from blockwright.replay.command import register
from blockwright.replay.simulate import replay
from blockwright.replay.workload import WorkloadOptions, generate_workload

DATA = Path(__file__).parents[1] / "replay/data"
SMALL = ["--conversations", "12", "--turns", "3", "--seed", "5"]
BELOW = ["--host-blocks", "9", "--disk-blocks", "99"]


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["replay", *argv, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    data: dict[str, Any] = json.loads(out)
    return data


def test_json_of_a_generated_workload(capsys: pytest.CaptureFixture[str]) -> None:
    data = report(capsys, *SMALL, "--blocks", "150")
    trace = generate_workload(WorkloadOptions(conversations=12, turns=3, seed=5))
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype="uint8")
    pool = replay(trace, spec, [150]).pools[0]
    assert 0 < pool.hit_rate < 1
    assert pool.evictions > 0
    expected: dict[str, object] = {
        "build": build_info().kind,
        "trace": "generated (seed 5)",
        "format": "generated",
        "kind": "full",
        "spec": {"block_size": 16},
        "requests": len(trace.requests),
        "references": trace.num_references(16),
        "input_tokens": trace.num_tokens,
        "blocks": 150,
        "hit_rate": pool.hit_rate,
        "token_hit_rate": pool.token_hit_rate,
        "hit_blocks": pool.hit_blocks,
        "evictions": pool.evictions,
        "refused": pool.refused,
        "mean_used": pool.mean_used,
        "peak_used": pool.peak_used,
        "checks": 0,
        "curve": [],
    }
    assert {name: data[name] for name in expected} == expected
    parts = ("parse_seconds", "prepare_seconds", "replay_seconds", "check_seconds")
    assert 0 < sum(data[part] for part in parts) <= data["seconds"]
    assert data["requests_per_second"] == pytest.approx(data["requests"] / data["replay_seconds"])


def test_json_of_a_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main(["replay", *SMALL, "--curve", "150:600:x2", "--json", str(path)]) == 0
    assert capsys.readouterr().out.count("\n") >= 4
    data = json.loads(path.read_text())
    assert [point["blocks"] for point in data["curve"]] == [150, 300, 600]
    assert data["blocks"] == 600
    assert data["hit_rate"] == data["curve"][-1]["hit_rate"]
    assert data["curve"][0]["evictions"] > data["curve"][-1]["evictions"]
    both = report(capsys, *SMALL, "--curve", "150:600:x2", "--blocks", "300")
    assert both["blocks"] == 300
    assert [point["hit_rate"] for point in both["curve"]] == [point["hit_rate"] for point in data["curve"]]


@pytest.mark.parametrize(
    ("argv", "spec"),
    [
        (["--groups", "full"], {}),
        (["--groups", "sliding:1:40:3"], {"sliding_window": 40, "sink_len": 3}),
        (["--groups", "chunked:1:64"], {"attention_chunk_size": 64}),
        (["--groups", "mamba"], {}),
        (["--groups", "full:1,sliding:2:40", "--keep", "age"], {}),
        (["--groups", "full,chunked:1:64,mamba", "--keep", "wanted"], {}),
    ],
)
def test_every_kind_replays_and_checks_itself(
    capsys: pytest.CaptureFixture[str], argv: list[str], spec: dict[str, int]
) -> None:
    data = report(capsys, *SMALL, *argv, "--blocks", "300", "--check-every", "5", "--step-tokens", "48")
    assert data["spec"] == {"block_size": 16} | spec
    assert data["checks"] == -(-data["requests"] // 5)
    assert data["hit_rate"] > 0.1


SPELLINGS = {
    "--kind sliding --window 64 --sinks 4": "--groups sliding:1:64:4",
    "--kind chunked --chunk 64": "--groups chunked:1:64",
    "--concurrency 4 --prefill-speed 2000 --decode-speed 25": "--concurrency 4 --step-time base=40ms,tokens=500us",
    "--concurrency 4 --decode-speed 25": "--concurrency 4 --step-time base=40ms,tokens=100us",
}


@pytest.mark.parametrize("words", SPELLINGS)
def test_kinds_and_speeds_are_other_words_for_groups_and_step_times(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    one, other = (report(capsys, *SMALL, *each.split()) for each in (words, SPELLINGS[words]))
    for name in ("hit_blocks", "evictions", "mean_used", "groups", "kind", "timed"):
        assert one.get(name) == other.get(name)


def test_the_table_shows_every_pool(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(DATA / "mooncake.jsonl"), "--block-size", "512", "--curve", "2,5", "--check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "mooncake.jsonl, read as mooncake: 3 requests, 7 references to blocks of 512 tokens; full" in out
    # Two usable blocks hold only the last prompt; five hold all, and the second prompt finds two blocks of the first.
    assert "0.00%" in out
    assert "28.57%" in out
    assert "2 self-checks (all passed)" in out


@pytest.mark.parametrize("name", ["mooncake.jsonl", "azure.csv", "bailian.jsonl", "weka"])
def test_every_format_replays(capsys: pytest.CaptureFixture[str], name: str) -> None:
    data = report(capsys, str(DATA / name), "--limit", "2")
    assert data["format"] == name.split(".")[0]
    assert data["requests"] == 2


def test_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra 'plots')")
    for name, magic in (("curve.png", b"\x89PNG"), ("curve.svg", b"<?xml")):
        assert main(["replay", *SMALL, "--curve", "50,100", "--plot", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(magic)
    assert main(["replay", *SMALL, "--curve", "50,100", "--plot", str(tmp_path / "curve.nonsense")]) == 2
    assert "--plot: cannot write" in capsys.readouterr().err


def test_plot_without_the_library_names_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert main(["replay", *SMALL, "--curve", "50", "--plot", "curve.png"]) == 2
    assert capsys.readouterr().err == (
        "blockwright: error: --plot: needs matplotlib; install it with: pip install matplotlib\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["absent.jsonl"], "absent.jsonl: no such file; check the path"),
        (["--format", "tea", "t.jsonl"], "argument --format: invalid choice: 'tea'"),
        (["--format", "azure"], "--format: only with a TRACE file"),
        (["--unit", "16"], "--unit: only with a TRACE file"),
        (["--blocks", "0"], "argument --blocks: must be a whole number from 1 to 1073741823, not '0'"),
        (["--blocks", "-4"], "argument --blocks: must be a whole number from 1 to 1073741823, not '-4'"),
        (["--blocks", "many"], "argument --blocks: must be a whole number from 1 to 1073741823, not 'many'"),
        (["--blocks", "1073741824"], "argument --blocks: must be a whole number from 1 to 1073741823"),
        (["--block-size", "0"], "argument --block-size: must be a whole number from 1"),
        (["--limit", "0"], "argument --limit: must be a whole number from 1"),
        (["--check-every", "0"], "argument --check-every: must be a whole number from 1"),
        (["--step-tokens", "0"], "argument --step-tokens: must be a whole number from 1"),
        (["--groups", "chunked:1:24"], "block_size: must divide attention_chunk_size 24, 16 does not"),
        (["--groups", "sliding:1:0"], "--groups: 'sliding:1:0' is no group"),
        (["--groups", "chunked:1:64:4"], "--groups: 'chunked:1:64:4' is no group"),
        (["--curve", "9:5:1"], "argument --curve: the range '9:5:1' ends before it begins"),
        (["--plot", "curve.png"], "--plot: draws a curve; add --curve SIZES"),
        (["--json", "no/such/folder/report.json"], "--json: there is no folder no/such/folder; make it first"),
        (["--curve", "5", "--plot", "no/such/curve.png"], "--plot: there is no folder no/such; make it first"),
        (["--json", "."], "--json: "),
        (["--turns", "0"], "argument --turns: must be a whole number from 1"),
        (["--turns", "2000000"], "turns: must be from 1 to 1000000, not 2000000"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["t.jsonl", "--turns", "3"], "--turns: only without a TRACE file"),
        (["a.jsonl", "b.jsonl"], "unrecognized arguments: b.jsonl"),
        (["--shares", "0.1"], "--shares: are of tenants; add --tenants RULE"),
        (["--tenants", "dealt:0"], "--tenants: expected dealt:N with N up to 10000, not 'dealt:0'"),
        (["--tenants", "user"], "--tenants: expected dealt:N with N up to 10000, not 'user'"),
        (["--tenants", "dealt:2", "--shares", "ann=0.5"], "no tenant of that name: ann=0.5"),
        (["--tenants", "dealt:2", "--shares", "tenant 0=half"], "--shares: 'half' is no part of the pool"),
        (["--tenants", "dealt:2", "--shares", "-0.1"], "--shares: no part within 0..1, or no tenant of that name"),
        (["--tenants", "dealt:2", "--shares", "0.6"], "shares: the floors sum to "),
        (["--tenants", "dealt:2", "--bound"], "--bound: is of all requests of one tenant, one after another"),
        (["--hints", "oracle:2"], "--hints: expected none, oracle or oracle:ERROR within 0..1, not 'oracle:2'"),
        (["--hints", "oracle:0.2:x"], "--hints: expected none, oracle"),
        (["--hints", "oracle", "--policy", "lru"], "--policy: with hints the client decides"),
        (
            ["--policy", "mru"],
            "--policy: expected lru, adaptive, t-lru, least_frequently_used or module:factory, not",
        ),
        (["--policy", "builtins:object"], "--policy: must make something with a method choose(candidates) or ending("),
        (["--groups", "full,sliding"], "--groups: 'sliding' is no group; write full:1, mamba:3, sliding:5:1024"),
        (["--groups", "absent.json"], "--groups: absent.json does not say which layers the model has"),
        (["--hints", "oracle", "--groups", "mamba"], "--hints: are of layers that keep all blocks"),
        (
            ["--step-time", "h100", "--concurrency", "2"],
            "--step-time: an accelerator's needs --groups MODEL/config.json",
        ),
        (["--price", "-3", "--concurrency", "2"], "--price: must be at least 0 and finite, not -3.0"),
        ([*BELOW, "--disk-speed", "5GiB", "--concurrency", "2"], "--disk-speed: 5GiB needs --groups MODEL/config.json"),
        ([*BELOW, "--disk-speed", "500"], "--disk-speed: is of requests that overlap; add --concurrency N"),
        (
            [*BELOW, "--disk-speed", "x", "--concurrency", "2"],
            "--disk-speed: expected tokens a second, or memory as 5GiB",
        ),
        ([*BELOW, "--store-speed", "5"], "--store-speed: only with --store-blocks N; give it, or leave it out"),
        (
            ["--fail", "2@x", "--concurrency", "2"],
            "--fail: expected 2@300, 2@300+60, router@300 or router@300+5, not '2@x'",
        ),
        (["--fail", "0@1", "--concurrency", "2"], "fails: no engine is left for a request; let one of them come back"),
        (["--fail", "3@1", "--concurrency", "2", "--engines", "3"], "fails: there is no engine 3"),
        (["--warmup", "100000"], "skip: leaves no request to count"),
        (["--concurrency", "0"], "concurrency: must be at least 1 and finite, not 0"),
        (["--arrivals", "2"], "--arrivals: is of requests that overlap; add --concurrency N"),
        (["--concurrency", "2", "--bound"], "--bound: is of all requests of one tenant, one after another"),
        (["--policy", "lru,t-lru", "--timeline", "t.json"], "--timeline: is of one pool alone"),
        (["--keep", "wanted"], "keep_wanted: needs enable_caching and a group of layers with windows"),
        (["--engines", "2"], "--engines, --sweep, --price: are of requests that overlap; add --concurrency N"),
        (["--concurrency", "2", "--engines", "0"], "argument --engines: must be a whole number from 1"),
        (["--concurrency", "2", "--engines", "99999"], "engines: must be from 1 to 10,000, not 99999"),
        (["--concurrency", "2", "--router", "best"], "--router: expected round, load, prefix, cost or module:factory"),
        (["--concurrency", "2", "--sweep", "turns=3"], "--sweep: expected NAME=VALUES with engines, router, blocks"),
        (["--concurrency", "2", "--sweep", "engines=4..2"], "--sweep: engines the range '4..2' ends before it begins"),
        (["--concurrency", "2", "--ttft", "-1"], "ttft: must be at least 0 and finite, not -1.0"),
        (["--window", "64"], "--window: not with --kind full; leave it out"),
        (["--kind", "sliding"], "--kind sliding: needs --window TOKENS"),
        (
            ["--kind", "mamba", "--groups", "full:2"],
            "--groups: stands for all groups; leave --kind and its lengths out",
        ),
        (["--concurrency", "2", "--decode-speed", "0"], "--decode-speed: must be above 0 and finite, not 0.0"),
        (["--prefill-speed", "5"], "--step-time: is of requests that overlap; add --concurrency N"),
        (["--memory", "4GiB"], "--memory: needs --groups MODEL/config.json, and no number of blocks beside it"),
        (["--memory", "many"], "argument --memory: needs sizes with a unit, as 64GiB, or 0, not 'many'"),
        (["--hint-guard", "2"], "argument --hint-guard: must be a part from 0 to 1, not '2'"),
    ],
)
def test_bad_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [] if "jsonl" in argv[0] or argv[0] == "--format" else SMALL[:2]
    assert main(["replay", *argv, *small]) == (3 if argv[-1] == "." else 2)  # 3: it could not be written
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_bad_trace_line_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text((DATA / "mooncake.jsonl").read_text()[:-20])
    assert main(["replay", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{path}, line 3: truncated or malformed JSON" in err
    assert main(["replay", str(path), "--limit", "2"]) == 0


def test_the_arguments_are_those_of_the_workload() -> None:
    import argparse

    subparsers = argparse.ArgumentParser().add_subparsers()
    register(subparsers)
    args = subparsers.choices["replay"].parse_args([])
    assert set(WorkloadOptions.__dataclass_fields__) <= set(vars(args))


def test_tenants_are_dealt_out_or_named_by_a_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A tenant that has all of the pool as its share loses nothing to others; those have what is left."""
    path, lines = tmp_path / "trace.jsonl", []
    for at in range(60):
        user, ids = ("ann", [at % 3, 7 + at % 3]) if at % 2 else ("bob", [100 + 2 * at, 101 + 2 * at])
        lines.append(
            {"timestamp": at, "input_length": 40, "output_length": 1, "hash_ids": [*ids, 1000 + at], "user": user}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    small = [str(path), "--unit", "16", "--blocks", "12", "--tenants", "user"]
    alone, kept = report(capsys, *small)["tenants"], report(capsys, *small, "--shares", "ann=1")["tenants"]
    assert alone["bob"] == kept["bob"] == 0
    assert alone["ann"] < kept["ann"] == pytest.approx((30 - 3) * 2 / (30 * 3))
    dealt = report(capsys, *SMALL, "--blocks", "150", "--tenants", "dealt:4", "--shares", "0.25")
    assert list(dealt["tenants"]) == [f"tenant {number}" for number in range(4)]
    assert any(rate > 0 for rate in dealt["tenants"].values())
    path.write_text(path.read_text().replace('"user": "bob"', '"group": 1'))
    assert list(report(capsys, *small)["tenants"]) == ["ann"]
    path.write_text(path.read_text().replace('"user": "ann"', '"user": null'))
    assert main(["replay", *small]) == 2
    assert "has no column 'user'; name another with --tenants" in capsys.readouterr().err


def test_seeds_are_means_and_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--conversations", "12", "--blocks", "150", "--concurrency", "4", "--engines", "1,2", "--ttft", "9")
    each = [report(capsys, *load, "--seed", str(seed))["curve"] for seed in (5, 6, 7)]
    data = report(capsys, *load, "--seed", "5", "--seeds", "3")
    for at, way in enumerate(data["curve"]):
        assert way["hit_rate"] == pytest.approx(sum(curve[at]["hit_rate"] for curve in each) / 3)
        assert way["evictions"] == round(sum(curve[at]["evictions"] for curve in each) / 3)
        assert way["timed"]["first_token"][2] == max(curve[at]["timed"]["first_token"][2] for curve in each)
        assert way["refused"] == max(curve[at]["refused"] for curve in each)
    assert data["trace"] == "generated (seed 5) and 2 more"
    trace = str(DATA / "mooncake.jsonl")
    for wrong in ((trace,), (*SMALL, "--timeline", "timeline.json")):
        assert main(["replay", *wrong, "--seeds", "2"]) == 2
        assert "--seeds: are of the generated workload" in capsys.readouterr().err


def test_names_in_files_are_written_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of tenants, of fields and of files, on stdout and in errors."""
    odd, path = "\x1b[2J\u202e", tmp_path / "trace \x1b[2J.jsonl"
    row = {"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1], "user": odd}
    path.write_text(json.dumps(row) + "\n")
    assert main(["replay", str(path), "--unit", "16", "--tenants", "user"]) == 0
    assert main(["replay", str(path), "--tenants", odd]) == 2
    assert main(["replay", str(path), "--unit", odd]) == 2
    timeline = tmp_path / "out.json"
    write_timeline([Fact(0.0, "admit", odd)], timeline)
    assert main(["view", str(timeline), "--request", odd]) == 0
    said = capsys.readouterr()
    assert r"\x1b[2J" in said.out
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))


def test_a_policy_that_chooses_replays_as_plain_lru_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "first_to_go.py").write_text(
        "class First:\n    def choose(self, candidates):\n        return next(iter(candidates))\n"
    )
    monkeypatch.chdir(tmp_path)
    size = ("--curve", "150,300")
    mine = report(capsys, *SMALL, *size, "--policy", "first_to_go:First", "--check")
    assert mine["policy"] == "first_to_go:First"
    assert mine["curve"][0]["evictions"] > 0
    plain = report(capsys, *SMALL, *size)["curve"]
    assert [each["hit_rate"] for each in mine["curve"]] == [each["hit_rate"] for each in plain]
    drawn = [report(capsys, *SMALL, *size, "--hints", hints)["hit_rate"] for hints in ("oracle:0.5", "oracle:0.5:0")]
    assert drawn[0] == drawn[1]


def test_ways_are_replayed_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each as it is alone; and what does not hit is lost to something."""
    hosts = ("--curve", "100,200", "--host-blocks", "50,400")
    ways = report(capsys, *SMALL, *hosts, "--policy", "lru,t-lru", "--bound")["curve"]
    assert [(way["policy"], way["offload"]["host_blocks"], way["blocks"]) for way in ways] == [
        (policy, host, size) for policy in ("lru", "t-lru") for host in (50, 400) for size in (100, 200)
    ]
    alone = report(capsys, *SMALL, "--blocks", "200", "--host-blocks", "400", "--policy", "t-lru")
    assert (alone["hit_blocks"], alone["offload"]) == (ways[-1]["hit_blocks"], ways[-1]["offload"])
    for way in ways:
        assert way["hit_rate"] <= way["bound"]
        assert way["hit_rate"] + way["lost_to_order"] + way["lost_to_size"] + way["new"] == pytest.approx(1)
    rules = report(
        capsys, *SMALL, "--groups", "full:1,sliding:2:40", "--keep", "wanted,age", "--blocks", "400", "--bound"
    )
    assert [way["policy"] for way in rules["curve"]] == ["lru, keep wanted", "lru, keep age"]
    assert all(way["bound"] is None and way["hit_rate"] <= rules["unbounded"] for way in rules["curve"])
    timed = report(capsys, *SMALL, *hosts, "--concurrency", "4", "--step-time", "base=50ms", "--arrivals", "1")
    assert all(way["timed"]["seconds"] > 0 for way in timed["curve"])
    if importlib.util.find_spec("matplotlib"):
        saved = ["--json", str(tmp_path / "r.json")]
        for more in (
            hosts,
            (*hosts, "--bound", "--policy", "lru,t-lru"),
            ("--blocks", "9", "--host-blocks", "5,9", "--bound"),
        ):
            assert main(["replay", *SMALL, *more, *saved, "--plot", str(tmp_path / "plot.svg")]) == 0
        assert main(["replay", *SMALL, *hosts, "--plot", str(tmp_path / "plot.svg"), "--beside", saved[1]]) == 0
        assert "of these on the device" in (tmp_path / "plot.svg").read_text()


def test_a_host_tier(capsys: pytest.CaptureFixture[str]) -> None:
    data = report(capsys, *SMALL, "--blocks", "120", "--host-blocks", "300", "--store-on", "evict")
    tier = data["offload"]
    assert tier["device_hit_blocks"] + tier["host_hit_blocks"] == data["hit_blocks"]
    assert tier["host_hit_blocks"] > 0
    assert (tier["store_on"], tier["on_load"], tier["host_blocks"]) == ("evict", "free", 300)
    assert report(capsys, *SMALL, "--blocks", "120")["offload"] is None
    assert main(["replay", *SMALL, "--curve", "120,200", "--host-blocks", "300", "--on-load", "free"]) == 0
    out = capsys.readouterr().out
    for name in ("device hits", "host hits", "stored", "loaded", "no room"):
        assert name.split()[0] in out
    for option, value in (("--store-on", "evict"), ("--disk-blocks", "20"), ("--store-blocks", "20")):
        assert main(["replay", *SMALL, option, value]) == 2
        assert f"{option}: only with --host-blocks" in capsys.readouterr().err
    below = ("--host-blocks", "50", "--disk-blocks", "60,90", "--store-blocks", "2000")
    data = report(capsys, *SMALL, "--blocks", "120", *below)
    assert [way["offload"]["disk_blocks"] for way in data["curve"]] == [60, 90]
    assert main(["replay", *SMALL, "--blocks", "120", *below]) == 0
    out = capsys.readouterr().out
    for name in ("disk blocks", "store blocks", "from disk", "from store"):
        assert name in out


def test_a_sweep_ends_in_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In memory as in blocks: 16 tokens of this model take 64 KiB, and one block of the device is the null one."""
    model = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(model))
    timing = "--concurrency 4 --step-time base=5ms,tokens=100us --arrivals 4 --ttft 0.3"
    load = (*SMALL, *"--limit 16 --think 2".split(), *timing.split())
    axes = ("--sweep", "engines=1..2", "host=0,32MiB", "router=round,prefix", "--price", "2")
    sizes = ("--groups", str(tmp_path), "--memory", "14MiB")
    data = report(capsys, *load, *sizes, *axes)
    assert {(way["blocks"], way["offload"]["host_blocks"]) for way in data["curve"]} == {(223, 0), (223, 512)}
    assert [way["engines"] for way in data["curve"]].count(1) == 2  # one router is as good as another there
    assert len(data["curve"]) == 2 * (1 + 2)
    for way in data["curve"]:
        tokens, hours = data["input_tokens"] + way["timed"]["output_tokens"], way["timed"]["seconds"] / 3600
        assert way["cost_per_million_tokens"] == pytest.approx(2 * way["engines"] * hours / tokens * 1e6)
    kept = [way for way in data["curve"] if way["timed"]["first_token"][2] < 0.3]
    least = min(way["engines"] for way in kept)
    assert data["answer"].startswith(f"{least} engine{'s' * (least > 1)} with ")
    assert "keep P95 TTFT below 0.3 s; " in data["answer"].replace("keeps", "keep")
    plain = ("--blocks", "223", "--host-blocks", "512", "--engines", "2")
    (way,) = [each for each in data["curve"] if (each["engines"], each["router"]) == (2, "round")][1:]
    assert report(capsys, *load, *plain)["timed"] == way["timed"]
    assert main(["replay", *load, *sizes, *axes]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"\n{data['answer']}\n")
    if importlib.util.find_spec("matplotlib"):
        assert main(["replay", *load, "--engines", "1,2", "--blocks", "223", "--plot", str(tmp_path / "plot.svg")]) == 0
        assert "the limit" in (tmp_path / "plot.svg").read_text()
        capsys.readouterr()
    for name in ("engines", "router", "goodput", "cost", "223 (14MiB)", "512 (32MiB)"):
        assert name in out
    apart = ("--sweep", "engines=3,2+1", "disk=0,64MiB", "--host", "8MiB", "--transfer-speed", "100000")
    data = report(capsys, *load, *sizes, *apart)
    assert [(way["engines"], way["prefill"]) for way in data["curve"]] == [(3, 0), (3, 1)] * 2
    assert {way["offload"]["disk_blocks"] for way in data["curve"]} == {0, 1024}
    assert "3 engines" in data["answer"]
    assert main(["replay", *load, *sizes, *apart]) == 0
    assert "3 (1 for prompts)" in capsys.readouterr().out
