"""Property: a constructor that is called with a name it does not have says which class it is and what was meant.

How: every class that a package exports and that callers may make, found by reflection, gets one unknown name, each of
its own names with a letter too few, and no argument where it needs some; so do class methods that make an object. The
error is one of the project's and a `TypeError`, and names the class and the nearest argument. Both builds agree.
Not covered: results, which no caller makes; an argument that is given twice, for which Python answers.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from tests.core.calls.test_arguments import PACKAGES, UNMADE

import blockwright
from blockwright.errors import BlockwrightError, InvalidCallError

INTERNAL = {"i64", "i32", "u8", "vec"}


def made() -> Iterator[tuple[str, Callable[..., Any], list[str], list[str]]]:
    """Yield what makes an object: its name, itself, the names of its arguments, and those without a default."""
    for package in PACKAGES:
        for name in sys.modules[package].__all__:
            found = getattr(sys.modules[package], name)
            if not isinstance(found, type) or not found.__module__.startswith("blockwright"):
                continue
            if issubclass(found, (BaseException, tuple, Enum)) or getattr(found, "_is_protocol", False):
                continue
            if (
                name in {*UNMADE, "KVCacheBlock", "KVCacheBlocks"}
                or inspect.getattr_static(found, "__init__") is object.__init__
            ):
                continue
            methods = {each: getattr(found, each) for each in ("build", "of", "for_plan") if hasattr(found, each)}
            for title, maker in {name: found, **{f"{name}.{each}": method for each, method in methods.items()}}.items():
                shown = known(maker)
                if shown is not None:
                    yield title, maker, [*shown], [each for each, one in shown.items() if one.default is one.empty]


def known(maker: Any) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of what a caller may call; None where that is for this package alone."""
    try:
        shown = inspect.signature(maker).parameters
    except ValueError:
        return None
    kinds = {each.kind for each in shown.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    source = inspect.signature(getattr(maker, "__init__", maker)).parameters.values()
    words = {word for each in source for word in re.findall(r"\w+", str(each.annotation))}
    return None if words & INTERNAL else dict(shown)


MADE = {title: (maker, names, needed) for title, maker, names, needed in made()}
MOST_USED = {"KVCacheManager", "Request", "KVCacheConfig", "KVCacheGroupSpec", "FullAttentionSpec", "MambaSpec"}
MOST_USED |= {"Sha256Hasher", "SipHasher", "BlockPool", "OffloadingConnector.build", "OffloadChain", "CPUBackend"}


def test_the_classes_that_every_engine_makes_are_among_them() -> None:
    assert MADE.keys() >= MOST_USED, MOST_USED - MADE.keys()


@pytest.mark.parametrize("title", MADE)
def test_an_unknown_name_is_refused_by_the_class(title: str) -> None:
    maker, names, _ = MADE[title]
    with pytest.raises(InvalidCallError, match=f"^{title}: has no argument 'qqq'; it takes {', '.join(names[:1])}"):
        maker(**dict.fromkeys(names), qqq=1)


@pytest.mark.parametrize("title", MADE)
def test_the_nearest_name_is_offered(title: str) -> None:
    maker, names, _ = MADE[title]
    for name in names:
        if len(name) > 3 and name[:-1] not in names:
            with pytest.raises(InvalidCallError, match=f"^{title}: has no argument {name[:-1]!r}; did you mean"):
                maker(**{name[:-1]: 1})


@pytest.mark.parametrize("title", [title for title in MADE if MADE[title][2]])
def test_what_is_missing_is_named(title: str) -> None:
    maker, _, needed = MADE[title]
    with pytest.raises(InvalidCallError, match=f"^{title}: needs {', '.join(needed)}; it takes") as caught:
        maker()
    assert isinstance(caught.value, BlockwrightError)
    assert isinstance(caught.value, TypeError)


def test_an_error_keeps_no_half_made_object() -> None:
    """Whoever shows a traceback with its locals would read fields that are not there."""
    wrong: Any = {"block_sizes": 4}
    with pytest.raises(InvalidCallError, match="did you mean 'block_size'") as caught:
        blockwright.Request("r", [1], **wrong)
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb) if frame.f_code.co_name in ("misused", "refuse")]
    assert frames
    assert not any(isinstance(each, blockwright.Request) for frame in frames for each in frame.f_locals.values())


def test_too_many_by_position() -> None:
    config: Any = None
    with pytest.raises(InvalidCallError, match="takes 3 arguments by position, not 4; pass by name: use_eagle"):
        blockwright.KVCacheManager(config, 9, True, True)  # type: ignore[call-arg]
    with pytest.raises(InvalidCallError, match="takes 3 arguments by position, not 4"):
        blockwright.KVCacheConfig(4, [], {}, 5)  # type: ignore[call-arg]
