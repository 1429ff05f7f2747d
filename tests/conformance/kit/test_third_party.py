"""Property: a manager of another make is tested in one line, on what it declares; expected failures are strict.

How: a sound manager, and one that does not trim, go through small scopes by `run_conformance`, the pytest plugin and
`blockwright conform`, with lists of expected failures that fit, lack one, or hold one too many; others are refused.
A manager that declares too little for any scope fails in all three ways, and so do factories that make no adapter.
Not covered: whole profiles; parallel workers of pytest.
"""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright_conformance import ConformanceError, run_conformance
from blockwright_conformance.capabilities import Capabilities, Deviation, Standing, expected_of, judged
from blockwright_conformance.gates import GateResult
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.fitting import fitting, lacking, lengths_of, met
from blockwright_conformance.kv_cache.gate import judged as explored
from blockwright_conformance.kv_cache.scopes import FOR_OTHERS, LAYERS, large_scopes

FAULTY = """
from blockwright_conformance.capabilities import Capabilities
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter

class Faulty(BlockwrightAdapter):
    capabilities = Capabilities(*map(frozenset, ({"full", "sliding"}, {"chunks", "later", "trim"}, {"caching"})))

    def trim(self, name, end):
        pass


class Idle:
    # Hands out the same three blocks whatever it is asked, and declares no feature, so that no scope is run.

    capabilities = Capabilities(kinds=frozenset({"full"}))

    def __init__(self, config):
        pass

    def allocate(self, name, computed, step, length, hit_of):
        return ((1, 2, 3),)


class Locked(Faulty):
    # Cannot be copied where several requests run; other scopes are well.

    def copy(self):
        if len(self.requests) > 1:
            raise TypeError("cannot pickle '_thread.lock' object")
        return super().copy()


def nothing(config):
    return None


def unkind(config):
    raise OSError("no memory")
"""
LISTED = """
[[deviation]]
name = "no-trim"
law = "REF-0"
pattern = "^sliding .*: tables: expected"
standing = "choice"
reason = "We trim with the next step."
"""
STALE = LISTED.replace("no-trim", "no-hits").replace("^sliding", "nothing like it")
NO_TRIM = Deviation("no-trim", "REF-0", "tables: expected", Standing.CHOICE, "We trim with the next step.")
SMALL = "sliding 3, block 2: put off"


class Faulty(BlockwrightAdapter):
    """A manager that does not trim."""

    def trim(self, name: str, end: int) -> None:
        pass


def test_a_sound_manager_passes_and_says_what_was_left_out() -> None:
    can = Capabilities(frozenset({"full"}), frozenset({"chunks", "later", "trim"}), frozenset({"caching"}))
    report = run_conformance(BlockwrightAdapter, can, scope="1: put off")
    assert [each.scope for each in report.scopes] == ["full, block 1: put off"]
    assert report.transitions == 1691
    assert report.left_out["mamba, block 1: put off"] == ["kind mamba"]


def test_a_difference_raises_with_the_calls_and_the_law() -> None:
    with pytest.raises(ConformanceError) as caught:
        run_conformance(Faulty, scope=SMALL)
    text = str(caught.value)
    assert text.startswith(f"{SMALL}: REF-0: tables: expected")
    assert "(breaks TRIM-1)" in text
    assert "\n# TRIM-1: " in text
    assert "\n    adapter = Faulty(Config(groups=(Group(kind=Sliding(window=3), block_size=2),)," in text
    assert "\n    assert shown.tables == " in text


NAMES = ("Full", "Sliding", "Config", "Step", "Group", "adapter", "shown", "suppress", "print", "Adapter", "Mine")


def test_counterexamples_run_as_they_are_printed_whatever_the_class_is_called() -> None:
    module = ModuleType("odd_names_of_managers")
    for name in NAMES:
        setattr(module, name, type(name, (Faulty,), {"__module__": module.__name__}))
    held: Any = type("Unheld", (Faulty,), {"__module__": module.__name__})
    module.held_by_another_name, module.part = held, partial(Faulty)  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    (scope,) = [each for each in FOR_OTHERS["pr"] if each.name == SMALL]
    for name in (*NAMES, "held_by_another_name", "part"):
        text = explored(scope, getattr(module, name)).script
        names: dict[str, Any] = {}
        exec(text, names)
        with pytest.raises(AssertionError):
            names["test_counterexample"]()
        assert f"from {module.__name__} import {name}" in text
    del sys.modules[module.__name__]


def test_a_copy_that_fails_is_told_with_the_scope_and_the_remedy() -> None:
    class Locked(Faulty):
        def copy(self) -> Any:
            raise TypeError("cannot pickle '_thread.lock' object")

    with pytest.raises(
        InvalidArgumentError, match=f"{SMALL}: copy\\(\\) of Locked raised TypeError: cannot pickle .*; make"
    ):
        run_conformance(Locked, scope=SMALL)


def test_an_error_of_its_own_breaks_no_law_that_it_does_not_show() -> None:
    class Stumbling(Faulty):
        def allocate(self, *arguments: Any) -> Any:
            super().allocate(*arguments)
            raise KeyError("dictionary is empty")

    (scope,) = [each for each in FOR_OTHERS["pr"] if each.name == "full, block 1: put off"]
    assert explored(scope, Stumbling).detail == "KeyError: 'dictionary is empty'"


def test_expected_failures_are_strict_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_conformance(Faulty, expected_failures=[NO_TRIM], scope=SMALL)
    assert [known.name for known, _ in report.verdict.known] == ["no-trim"]
    few = tuple(each for each in FOR_OTHERS["pr"] if each.name == "full, block 1: put off")
    monkeypatch.setitem(FOR_OTHERS, "quick", few)
    with pytest.raises(ConformanceError, match="expected failure no-trim did not show"):
        run_conformance(Faulty, expected_failures=[NO_TRIM], profile="quick")
    run_conformance(Faulty, profile="quick")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"profile": "long"}, "profile: expected one of quick"),
        ({"scope": "no such scope"}, "scope: no scope of profile pr"),
        ({"capabilities": Capabilities()}, "scope: no scope of profile pr can be run: the manager declares too little"),
        ({"expected_failures": "/no/such/file"}, "expected failures: cannot read"),
    ],
)
def test_wrong_arguments_are_told(arguments: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        run_conformance(BlockwrightAdapter, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("deviation = 1", "in double brackets"),
        ("[[deviations]]", "expected tables"),
        ("not toml", "is not TOML"),
        ("[[deviation]]\nname = 'x'", "deviation 1: law, pattern, standing, reason missing"),
        (LISTED.replace('"choice"', '"fine"'), "standing: expected one of bug, documented, choice"),
        (LISTED.replace('"choice"', '"bug"'), "name the script that confirms the bug"),
        (LISTED.replace("^sliding", "("), "deviation 1: "),
        (LISTED + "colour = 'red'", "unknown colour"),
        (LISTED + LISTED, "two deviations are named no-trim"),
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "expected.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        expected_of(file)


def test_a_manager_is_put_through_what_it_can_do() -> None:
    everything, scopes = fitting(FOR_OTHERS["pr"], None), FOR_OTHERS["pr"]
    assert everything == list(scopes)
    can = Capabilities(frozenset({"full"}), frozenset({"chunks", "batch"}), frozenset({"caching"}))
    assert [each.name for each in fitting(scopes, can) if "explain" in each.calls or "plan" in each.calls] == []
    assert "full, block 1: batches" in {each.name for each in fitting(scopes, can)}
    life = next(each for each in scopes if "life" in each.name)
    assert lacking(life, can) == ["call preempt", "call reset", "call trim"]
    walks = Capabilities(frozenset({"full"}), frozenset({"chunks"}), frozenset({"caching"}))
    assert {each.calls for each in fitting(large_scopes(), walks)} == {frozenset({"chunks"})}


def test_scopes_follow_from_what_is_declared() -> None:
    """However little is declared, each kind is met at both sizes, and no two scopes ask the same."""
    for kind in LAYERS:
        for calls in (frozenset[str](), frozenset({"chunks", "preempt"})):
            few = {"uncached", "encoder"} if kind == "cross" else {"caching", "empty hits"}
            kinds = {kind, "full"} if kind == "cross" else {kind}
            can = Capabilities(frozenset(kinds), calls, frozenset(few | {"groups", "block sizes"}))
            for profile in FOR_OTHERS:
                scopes = fitting(FOR_OTHERS[profile], can)
                rows = {each.name: each for each in met(scopes, can) if each.name != "feature empty hits"}
                assert [name for name, each in rows.items() if each.missing] == [], profile
                assert "blocks of 1, 2" in (how := rows[f"kind {kind}"].how)
                assert kind not in ("sliding", "sinks") or "window below, at, above a block; alone, with" in how
                assert len({replace(each, name="") for each in scopes}) == len(scopes)
            bound = replace(can, lengths={"block size": {2}, "window": {1, 2}}, absent={"window": "short"})
            scopes = fitting(FOR_OTHERS["quick"], bound)
            rows = {each.name: each for each in met(scopes, bound)}
            assert (rows[f"kind {kind}"].missing, lengths_of(scopes)["block size"]) == ("", [2])


@pytest.mark.parametrize(
    ("what", "names", "fault"),
    [
        ("kinds", {"full", "slidng"}, "'slidng' is none of the kinds .did you mean 'sliding'"),
        ("calls", {"chunk"}, "did you mean 'chunks'"),
        ("features", {"cacheing"}, "did you mean 'caching'"),
        ("calls", {"zzz"}, "'zzz' is none of the calls .known: abort, adopt, "),
        ("kinds", "full", "expected a set of names, not the text 'full'"),
        ("ways", {"forget"}, "did you mean 'forgets'"),
        ("lengths", {"block": {1}}, "did you mean 'block size'"),
        ("lengths", {"block size": {16}}, "no scope has a block size in .16. .known: 1, 2"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(what: str, names: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        run_conformance(BlockwrightAdapter, Capabilities(**{what: names}))


def test_rows_of_a_report_are_judged() -> None:
    row = GateResult("lockstep", SMALL, "sliding 3", 1, 1, 1, 0.1, "REF-0", "tables: expected x", "calls")
    (known,) = judged([row], (NO_TRIM,), is_whole=True)
    assert (known.violations, known.detail) == (0, "expected, no-trim: We trim with the next step.")
    assert judged([row], (), is_whole=True) == [row]
    assert [each.law for each in judged([], (NO_TRIM,), is_whole=True)] == ["XPASS-1"]
    assert judged([], (NO_TRIM,), is_whole=False) == []


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python beside a faulty manager and lists of expected failures."""
    for name, text in (("faulty.py", FAULTY), ("listed.toml", LISTED), ("stale.toml", LISTED + STALE)):
        (folder / name).write_text(text, encoding="utf-8")
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=folder, check=False)


def conform(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is installed: unlike `python -m`, it does not have the working folder on its path."""
    code = "import sys; from blockwright.cli import main; sys.path.remove(''); sys.exit(main(sys.argv[1:]))"
    return run(folder, "-c", code, "conform", *options)


def run_kit(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the kit on the faulty manager."""
    plugin = ("-p", "blockwright_conformance.pytest_plugin", "-p", "no:cacheprovider")
    return run(folder, "-m", "pytest", *plugin, "--pyargs", "blockwright_conformance", "-q", *options)


def test_pytest_runs_a_test_for_each_scope(tmp_path: Path) -> None:
    options = ("--blockwright-impl", "faulty:Faulty", "--blockwright-scope", "3, block 2: put off")
    done = run_kit(tmp_path, *options)
    assert done.returncode == 1, done.stderr
    assert "adapter.trim('r0', " in done.stdout
    assert f"test_scope[{SMALL}]" in done.stdout
    done = run_kit(tmp_path, *options, "--blockwright-expected", "listed.toml", "-rx")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout
    assert "no-trim: We trim with the next step." in done.stdout


def test_pytest_fails_an_expected_failure_that_does_not_show(tmp_path: Path) -> None:
    few = (
        "from blockwright_conformance.kv_cache.scopes import FOR_OTHERS\n"
        f"FOR_OTHERS['quick'] = tuple(each for each in FOR_OTHERS['pr'] if each.name == {SMALL!r})\n"
    )
    (tmp_path / "few.py").write_text(few, encoding="utf-8")
    options = ("-p", "few", "--blockwright-impl", "faulty:Faulty", "--blockwright-profile", "quick")
    done = run_kit(tmp_path, *options, "--blockwright-expected", "listed.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 xfailed" in done.stdout
    done = run_kit(tmp_path, *options, "--blockwright-expected", "stale.toml")
    assert (done.returncode, "no-hits" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--blockwright-impl", "nothing"), "--blockwright-impl: expected module:factory"),
        (("--blockwright-profile", "long"), "--blockwright-profile: expected one of"),
        (("--blockwright-scope", "no such scope"), "--blockwright-scope: no scope"),
        (("--blockwright-expected", "nothing.toml", "--blockwright-scope", SMALL), "cannot read nothing.toml"),
    ],
)
def test_pytest_tells_wrong_options(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = run_kit(tmp_path, *options)
    assert (done.returncode != 0, words in done.stdout + done.stderr) == (True, True)


def test_conform_takes_a_list_of_expected_failures(tmp_path: Path) -> None:
    command = ("--gate", "lockstep", "--scope", SMALL, "--impl", "faulty:Faulty")
    done = conform(tmp_path, *command)
    assert done.returncode == 1, done.stderr
    assert f"# {SMALL}: REF-0: tables: expected" in done.stdout
    assert "adapter.trim('r0', " in done.stdout
    done = conform(tmp_path, *command, "--expected", "listed.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "expected, no-trim: We trim with the next step." in done.stdout
    done = conform(tmp_path, *command, "--expected", "nothing.toml")
    assert (done.returncode, "--expected: " in done.stderr) == (2, True)


def test_a_scope_that_ends_with_an_error_is_a_row_beside_the_others(tmp_path: Path) -> None:
    command = ("--impl", "faulty:Locked", "--gate", "lockstep", "--scope", "block 1: ", "--jobs", "1")
    done = conform(tmp_path, *command, "--profile", "quick", "--json", "report.json")
    assert done.returncode == 1
    assert "full, block 1: alone, without preempt: copy() of Locked raised TypeError: cannot pickle" in done.stderr
    rows = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["gates"]
    laws = {row["scope"]: row["law"] for row in rows}
    assert laws["full, block 1: parting, without preempt"] is None
    assert laws["full, block 1: alone, without preempt"] == "RAISED-1"


def test_declared_calls_are_met_by_what_happens(tmp_path: Path) -> None:
    command = ("--impl", "faulty:Faulty", "--gate", "lockstep", "--scope", "full, block 1: put off")
    done = conform(tmp_path, *command, "--json", "report.json")
    assert done.returncode == 0, done.stdout
    found = {each["name"]: each for each in json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["met"]}
    assert [found[f"call {name}"]["scopes"] for name in ("later", "trim")] == [1, 1]


def test_conform_fails_a_manager_that_no_scope_is_run_on(tmp_path: Path) -> None:
    done = conform(tmp_path, "--impl", "faulty:Idle", "--json", "report.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no scope was run: the manager declares too little; the nearest scope, " in done.stdout
    assert "scopes left out" in done.stdout
    assert "feature uncached" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["violations"] == 1
    assert {each.name for each in FOR_OTHERS["pr"]} <= report["left_out"].keys()
    assert report["left_out"]["mamba, block 1: put off"] == ["kind mamba", "feature caching"]
    one = conform(tmp_path, "--impl", "faulty:Idle", "--gate", "machine", "--profile", "quick")
    assert one.returncode == 1
    assert "no scope was run" in one.stdout


def test_pytest_fails_a_manager_that_no_scope_is_run_on(tmp_path: Path) -> None:
    done = run_kit(tmp_path, "--blockwright-impl", "faulty:Idle")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no scope was run: the manager declares too little" in done.stdout
    assert "  feature caching\n" in done.stdout
    assert f"1 failed, 1 passed, {len(FOR_OTHERS['pr'])} skipped" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--impl", "faulty:nothing"), "faulty:nothing: the factory returned 'NoneType', which has no errors, "),
        (("--impl", "faulty:unkind"), "the factory raised OSError when it was called with a Config: no memory"),
        (("--impl", "faulty:dict"), "--impl: 'faulty' has no factory 'dict'"),
        (("--impl", "faulty:Faulty", "--gate", "contracts"), "contracts would not run the manager that --impl names"),
        (("--expected", "listed.toml"), "--expected: is of the manager that --impl names"),
    ],
)
def test_conform_tells_wrong_arguments_in_one_line(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = conform(tmp_path, *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
