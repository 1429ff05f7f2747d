"""Property: the checker of traces judges each step as the page of the block machine does, and a trace is what happened.

How: steps are drawn, legal and illegal, for a small machine; page and checker judge each. A manager is traced
from the middle of a run on, with a sliding window; so are managers with a fault, each found at its first wrong step.
Not covered: `prefix_match_unit`, which is not traced.
"""

import random
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import blockwright
from blockwright.errors import InvalidArgumentError
from blockwright_conformance.trace import Checker, Step, check
from blockwright_lab.known_bugs.changes import Change
from blockwright_lab.known_bugs.variants import variant
from blockwright_spec import block_machine as page
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sinks, Sliding

STEPS: Any = (*page.STEPS, page.drop, page.drop)


@pytest.mark.parametrize("kind", [Full(), Sliding(1), Sliding(3), Sinks(1, 3), Chunked(4), Mamba(), Cross()])
@pytest.mark.parametrize("seed", range(6))
def test_the_checker_judges_as_the_page_does(seed: int, kind: Any) -> None:
    draw, now = random.Random(seed), page.pool(4, {name: page.Table(kind, 2) for name in (1, 2)})
    checker = Checker(4, [Group(kind, 2)])
    for number in range(400):
        step, block, entry = draw.choice(STEPS), draw.randint(1, 3), draw.randint(0, 4)
        done, stop, verb = draw.randint(0, 3 + number // 40), draw.randint(0, 4 + number // 40), step.__name__
        holder = draw.randint(0 if verb in ("hold", "drop") else 1, 2)  # a pin is of nobody
        places = [place for place, held in now.held.items() if place[0] == holder and held == block]
        place = places[0] if verb == "drop" and places else (holder, entry if verb == "null" else 10 + number)
        lost, dead = now.held.get(place, 0), Step(number, "null", holder, 0, entry, entry + 1)
        told = {"advance": [Step(number, verb, holder, 0, done, stop)]}
        told["null"] = [dead, Step(number, "drop", holder, lost)][: 1 + (lost > 0)]
        asked: dict[str, Any] = {"write": (block, number), "advance": (holder, done, stop)}
        asked |= {"drop": (place,), "null": (place,), "publish": (block,), "forget": (block,)}
        after = step(now, *asked.get(verb, (place, block)))
        judged = [checker.judge(each) for each in told.get(verb, [Step(number, verb, holder, block)])]
        is_well = after is not None and page.law_null_entry_is_dead(after)
        assert (not any(judged)) == is_well, (verb, place, block, done, stop, judged)
        if after is not None and not is_well:
            return  # the page lets tokens go on to what a recurrent layer has jumped over, and that breaks BLOCK-4
        now = now if after is None else after
        keyed = sum(each.key is not None for each in now.blocks)
        assert not checker.judge(Step(number, "end", 0, len(now.free), 0, keyed))


def traced(package: Any, path: Path) -> None:
    """Run requests that share prefixes, grow, forget and are evicted, and trace all but the first."""
    spec: dict[str, Any] = {"block_size": 4, "num_kv_heads": 1, "head_size": 8, "dtype": "float16"}
    kinds = package.FullAttentionSpec(**spec), package.SlidingWindowSpec(**spec, sliding_window=6)
    groups = [package.KVCacheGroupSpec([str(at)], kind) for at, kind in enumerate(kinds)]
    manager = package.KVCacheManager(package.KVCacheConfig(32, groups), 64, keep_wanted=False)
    running: list[Any] = []
    with ExitStack() as stack:
        for number in range(12):
            request = package.Request(f"r{number}", [number % 2] * 9, block_size=4)
            hit, length = manager.get_computed_blocks(request)
            for new in [9 - length, *[1] * 9]:
                assert manager.allocate_slots(request, new, length, hit) is not None
                request.num_computed_tokens += new + length
                hit, length = None, 0
                request.append_output_token_ids([number])
            running += [request, request.fork(f"f{number}")]
            assert manager.fork(request, running[-1]) is not None
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
            manager.take_copies()
            if number == 1:
                stack.callback(package.observe.trace(manager, path).close)
            while number > 1 and len(running) > 4:
                manager.free(running.pop(0))


def test_a_run_is_found_sound_and_a_bad_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    traced(blockwright, path)
    assert check(path) == 0
    assert "no violation\nThe trace is whole" in capsys.readouterr().out
    data = path.read_bytes()
    path.write_bytes(data[:-13])
    assert check(path) == 0
    assert "It is cut off" in capsys.readouterr().out
    for changed, why in (b"no trace", "is no trace"), (data.replace(b": [1, ", b": [0, ", 1), "with that version"):
        path.write_bytes(changed)
        with pytest.raises(InvalidArgumentError, match=why):
            check(path)


RELEASE = "state.pool._release(blocks, 0, i64(len(blocks)))"
FAULTS: dict[str, tuple[Any, ...]] = {
    "a block is free while a request holds it": ("BLOCK-3", "_let_go_by_age", "count > 0", "count > 1"),
    "an evicted block can be found": ("BLOCK-3", "_evict", "self._forget_key(block, PASSED if passes else EVICTED)"),
    "an entry is released twice": ("does not hold it", "let_go", RELEASE, RELEASE, "before"),
    "a shared block is written to": ("2 tables use it", "act", "tables.is_forked", "False"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_wrong_step_of_a_fault_is_named(fault: str, tmp_path: Path, capsys: Any) -> None:
    why, *change = FAULTS[fault]
    with suppress(AssertionError, IndexError):  # of a pool that is broken by then
        traced(variant(Change(*change)), tmp_path / "trace")
    assert check(tmp_path / "trace") == 1
    assert why in capsys.readouterr().out
