"""Property: a word that says off turns nothing on, whichever variable it is given to, and an unknown word is an error.

How: each word for each variable that is a switch, in a process of its own where it is read at import or by a build.
Not covered: what the switches do (the build's own tests, tests/engines).
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import blockwright_vllm
from blockwright import _switch

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = r"='maybe': takes 1, true, yes or on, and 0, false, no, off or nothing"


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, in the root of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKWRIGHT_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=kept | changes, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("word", [*_switch.ON, "True", "YES", " on "])
def test_words_for_on(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_VLLM", word)
    assert _switch.is_on("BLOCKWRIGHT_VLLM")


@pytest.mark.parametrize("word", [*_switch.OFF, "False", "NO", " ", None])
def test_words_for_off(word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOCKWRIGHT_VLLM", raising=False)
    if word is not None:
        monkeypatch.setenv("BLOCKWRIGHT_VLLM", word)
    assert not _switch.is_on("BLOCKWRIGHT_VLLM")
    blockwright_vllm.register()  # would ask for vLLM, or replace its manager


def test_an_unknown_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_VLLM", "maybe")
    for ask in (lambda: _switch.is_on("BLOCKWRIGHT_VLLM"), blockwright_vllm.register):
        with pytest.raises(ValueError, match=f"BLOCKWRIGHT_VLLM{UNKNOWN}"):
            ask()


def test_the_plug_in_knows_the_same_words_when_nothing_can_be_imported() -> None:
    assert blockwright_vllm.OFF == _switch.OFF


def test_the_core_that_is_imported_goes_by_the_word() -> None:
    code = "import blockwright; print(blockwright.build_info().why)"
    for word in ("true", "Yes"):
        assert run(code, BLOCKWRIGHT_PURE_PYTHON=word).stdout == "BLOCKWRIGHT_PURE_PYTHON=1 is set\n"
    for word in ("false", "0"):
        assert run(code, BLOCKWRIGHT_PURE_PYTHON=word).stdout == run(code).stdout
    assert "ValueError: BLOCKWRIGHT_PURE_PYTHON='maybe': takes 1" in run(code, BLOCKWRIGHT_PURE_PYTHON="maybe").stderr


@pytest.mark.parametrize("name", ["PGO", "DEVELOPMENT", "PURE_PYTHON", "REQUIRE_COMPILED"])
def test_a_build_goes_by_the_word(name: str) -> None:
    code = "import runpy, sys; sys.argv = ['setup.py', 'egg_info', '--help']; found = runpy.run_path('setup.py'); "
    code += "print([found[name] for name in ('PROFILE_GUIDED', 'DEVELOPMENT', 'PURE', 'REQUIRED')].count(True))"
    counts = [run(code, **{f"BLOCKWRIGHT_{name}": word}).stdout.split()[-1:] for word in ("true", "off", "")]
    assert counts == [["2" if name == "PGO" else "1"], ["0"], ["0"]]
    done = run(code, **{f"BLOCKWRIGHT_{name}": "maybe"})
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        1,
        [f"error: BLOCKWRIGHT_{name}{UNKNOWN}"],
    )


def test_a_build_without_the_interpreters_lock_is_refused_by_name() -> None:
    code = "import runpy, sys, sysconfig; sys.argv = ['setup.py', 'build_ext']; "
    code += "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; runpy.run_path('setup.py')"
    done = run(code)
    assert done.returncode == 1
    assert "free-threaded CPython (3.13t, 3.14t) is not supported" in done.stderr.splitlines()[-1]


def test_no_switch_is_read_another_way() -> None:
    """A variable of this project that is compared with a word, or only looked for, is none of these switches."""
    found = []
    for folder in ("impl", "spec", "conformance", "tests", "benchmarks", "native"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare):
                    text = ast.unparse(node)
                    if "environ" in text and "BLOCKWRIGHT_" in text:
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {text}")
    assert found == ["impl/blockwright_vllm/__init__.py:" + found[0].split(":", 1)[1]]
