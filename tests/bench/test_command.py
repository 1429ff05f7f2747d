"""Property: `blockwright bench` measures the paths it is asked for, and says what is wrong with bad arguments.

Tested through the command's entry point, one repetition of quick paths; verdicts on made-up timings.
Not covered: that targets are met (that is the benchmark's own table, on a quiet machine).
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright import build_info
from blockwright.bench import paths, report, scaling
from blockwright.bench.loop_paths import PARTS
from blockwright.bench.measure import Timing
from blockwright.bench.path import MANAGER, PAGING
from blockwright.bench.paths import all_paths
from blockwright.bench.peers import vllm_paging as vllm_paging_peer
from blockwright.cli import main

PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or Path(__file__).resolve().parents[2] / ".peers")


def test_the_table_and_the_data_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main(["bench", "--only", "release", "append", "--repeat", "2", "--json", str(file)]) == 0
    data = json.loads(file.read_text(encoding="utf-8"))
    assert [path["name"] for path in data["paths"]] == ["release", "append"]
    assert data["configuration"]["repeat"] == 2
    out = capsys.readouterr().out
    for path in data["paths"]:
        assert 0 < path["ours"]["low"] <= path["ours"]["median"] <= path["ours"]["high"]
        assert (path["peer"], path["ratio"], path["met"]) == (None, None, None)
        assert f"[{path['name']}]" in out
    assert data["configuration"]["python"] in out
    assert "peers.fetch" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "lokup"], "--only: nothing is named 'lokup'; choose from decode, "),
        (["--repeat", "0"], "--repeat: at least 1"),
        (["--repeat", "many"], "--repeat: invalid int value: 'many'"),
        (["--peer-path", "/no/such/folder"], "peer_path: /no/such/folder holds no unpacked vllm"),
        (["--floor", "/no/such/floor.c"], "floor: /no/such/floor.c is not there"),
        (["--require"], "--require: the targets are ratios over a peer; give --peer-path"),
        (["--json", "/no/such/folder/out.json"], "--json: the folder of /no/such/folder/out.json is not there"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not (PEERS / "vllm").is_dir(), reason="the peer's files are not there: make bench-peers")
@pytest.mark.skipif(build_info().kind != "compiled", reason="targets are those of the compiled core")
@pytest.mark.parametrize(("target", "code", "verdict"), [(0.001, 0, "met"), (1e9, 1, "MISSED")])
def test_a_missed_target_fails_the_command_only_if_required(
    target: float, code: int, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = next(path for path in all_paths() if path.name == "release")
    monkeypatch.setattr(paths, "all_paths", lambda: [replace(release, target=target)])
    arguments = ["bench", "--peer-path", str(PEERS), "--repeat", "1"]
    assert main(arguments) == 0
    assert verdict in capsys.readouterr().out
    assert main([*arguments, "--require"]) == code


def test_a_system_is_measured_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paging = [path.name for path in all_paths() if path.system == PAGING]
    file = tmp_path / "bench.json"
    assert len(paging) == 16
    assert main(["bench", "--only", PAGING, "release", "--repeat", "1", "--json", str(file)]) == 0
    data = json.loads(file.read_text(encoding="utf-8"))
    assert [path["name"] for path in data["paths"]] == ["release", *paging]
    out = capsys.readouterr().out
    assert [title in out for title in report.TITLES.values()] == [
        system in (MANAGER, PAGING) for system in report.TITLES
    ]


def test_only_the_peers_of_the_chosen_paths_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, folder in (("release", tmp_path), ("paging-fork", tmp_path / vllm_paging_peer.PUBLISHED.folder)):
        assert main(["bench", "--only", name, "--peer-path", str(tmp_path)]) == 2
        assert f"peer_path: {folder} holds no unpacked vllm" in capsys.readouterr().err


def test_a_ratio_meets_its_target_exactly_from_the_target_on() -> None:
    path = next(path for path in all_paths() if path.name == "lookup")
    assert path.target is not None
    peer = Timing(path.target * 2.0, 0.0, 0.0)
    assert report.Row(path, Timing(2.0, 0.0, 0.0), peer, None).met is True
    assert report.Row(path, Timing(2.01, 0.0, 0.0), peer, None).met is False
    assert report.Row(path, Timing(2.0, 0.0, 0.0), None, None).met is None


def test_a_path_is_timed_in_turn_with_its_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main(["bench", "--only", "lookup-2", "--repeat", "1", "--json", str(file)]) == 0
    (path,) = json.loads(file.read_text(encoding="utf-8"))["paths"]
    growth = path["growth"]
    assert growth["value"] == path["ours"]["median"] / path["base"]["median"] > 0
    assert growth["target"] == (1.5 if build_info().kind == "compiled" else None)
    assert f"{growth['name']}: {growth['value']:.2f}" in capsys.readouterr().out


def test_growth_over_the_base_is_judged_by_its_own_target() -> None:
    path = next(path for path in all_paths() if path.name == "lookup-6")

    def growth(ours: float, target: float | None) -> report.Verdict:
        row = report.Row(
            replace(path, growth=("of it", target)), Timing(ours, 0.0, 0.0), None, None, Timing(2.0, 0.0, 0.0)
        )
        assert row.growth is not None
        return row.growth

    assert (growth(3.0, 1.5).name, growth(3.0, 1.5).value, growth(3.0, 1.5).met) == ("lookup-6: of it", 1.5, True)
    assert growth(3.01, 1.5).met is False
    assert growth(3.01, None).met is None
    assert report.Row(path, Timing(3.0, 0.0, 0.0), None, None).growth is None


def test_a_limit_is_met_exactly_up_to_the_limit() -> None:
    path = next(path for path in all_paths() if path.name == "step-8k")
    assert path.limit == 100_000

    def limit(ours: float) -> report.Verdict:
        row = report.Row(path, Timing(ours, 0.0, 0.0), None, None)
        assert row.verdicts == [row.limit]
        return row.verdicts[0]

    assert (limit(1e5).name, limit(1e5).value, limit(1e5).met) == ("step-8k: us per step", 100.0, True)
    assert limit(100_100.0).met is False
    assert report.Row(replace(path, limit=None), Timing(1.0, 0.0, 0.0), None, None).verdicts == []


def test_only_a_whole_step_has_a_limit() -> None:
    assert [path.name for path in all_paths() if path.limit is not None] == ["step-8k"]


def test_paths_whose_packages_are_not_there_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = next(path for path in all_paths() if path.name == "release")
    needy = replace(release, name="needy", needs=("no_such_package", "json"))
    monkeypatch.setattr(paths, "all_paths", lambda: [release, needy])
    assert main(["bench", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert "[release]" in out
    assert "[needy]" not in out
    assert "left out: needy: pip install no_such_package\n" in out
    assert main(["bench", "--only", "needy"]) == 2
    assert "--only: some paths need packages that are not installed, needy: pip install no_" in capsys.readouterr().err


def test_only_paths_with_a_base_say_how_they_grow() -> None:
    growths = {path.name: path.growth[1] for path in all_paths() if path.base is not None}
    many = {"lookup-64": None, "prefill-64": 1.5, "miss-64": 1.5}
    assert growths == {
        "decode-flight": None,
        "lookup-2": 1.5,
        "lookup-6": 1.5,
        **many,
        "step-64k": 1.25,
    }


def test_every_target_of_the_paths_is_the_stated_one() -> None:
    targets = {path.name: path.target for path in all_paths() if path.name != "hash-numpy"}
    assert targets == {
        "decode": 40,
        "decode-batch": 150,
        "decode-groups": 60,
        "decode-flight": None,
        "lookup-2": None,
        **{f"{name}-64": None for name in ("lookup", "prefill", "miss")},
        "lookup-6": None,
        "lookup": 50,
        "adopt": 25,
        "prefill": 25,
        "release": 50,
        "churn": 20,
        "churn-shares": 15,
        "hash-list": 12,
        "hash-array": 30,
        "hash-sha256": 4,
        "append": None,
        "step-8k": 25,
        "step-64k": None,
        "step-worker": None,
        "loop-whole": 40,
        **{f"loop-{part}": 10 for part in PARTS},
        **{f"paging-{name}": 10 for name in ("append", "fork", "write", "free", "swap", "swap-one")},
        **{f"paging-{name}-caching": 10 for name in ("append", "fork", "write", "free", "swap", "swap-one")},
        "offload-life": 10,
        **{f"offload-{name}": None for name in ("store", "evict", "touch", "lookup", "load")},
        **dict.fromkeys(["paging-step", "paging-step-caching", "paging-allocate", "paging-allocate-caching"]),
    }


def test_a_pool_is_filled_and_measured() -> None:
    scale = scaling.measure(1_000, None)
    assert scale.num_blocks == 1_000
    for times in (scale.in_order, scale.scattered):
        assert sorted(times) == sorted(scaling.PATHS)
        assert all(time > 0 for time in times.values())
    assert 0 < scale.bytes_per_block < 1_000
    assert scale.floor_in_order == scale.floor_scattered == {}


def test_growth_is_judged_by_plain_c_where_that_grows_more() -> None:
    def scale(num_blocks: int, time: float, floor: float, size: float) -> scaling.Scale:
        times = dict.fromkeys(scaling.PATHS, time)
        plain = dict.fromkeys(times, floor) if floor else {}
        return scaling.Scale(num_blocks, times, dict.fromkeys(times, 9 * time), {}, plain, {}, size, 0.0)

    def verdicts(floors: tuple[float, float, float]) -> list[report.Verdict]:
        sizes = zip((1_000, 50_000, 4_000_000), (2.0, 3.0, 9.0), floors, (500.0, 90.0, 96.1), strict=True)
        return report.scaling_verdicts([scale(*size) for size in sizes])

    paths = len(scaling.PATHS)
    grown, memory = verdicts((0.0, 0.0, 0.0))[:-1], verdicts((0.0, 0.0, 0.0))[-1]
    assert [verdict.value for verdict in grown] == [1.5] * (2 * paths) + [4.5] * (2 * paths)
    assert [verdict.met for verdict in grown] == [True] * (2 * paths) + [False] * (2 * paths)
    assert (memory.value, memory.met) == (96.1, False)
    # Plain C was measured in order only, and grows as much there.
    assert [verdict.met for verdict in verdicts((1.0, 1.0, 4.5))[2 * paths : -1]] == [True] * paths + [False] * paths
