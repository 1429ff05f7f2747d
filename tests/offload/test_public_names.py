"""Property: `blockwright.offload` names all that an engine needs, and imports no library for it.

How: names are resolved; another process says what the package alone imports.
Not covered: what each name does.
"""

import subprocess
import sys

import pytest

import blockwright.offload as offload

LOADED = """
import sys, blockwright.offload
print([name for name in ("torch", "numpy", "fsspec", "valkey", "redis", "xxhash", "mooncake") if name in sys.modules])
"""


def test_every_public_name_is_there() -> None:
    assert set(offload.ON_DEMAND) <= set(offload.__all__) <= set(dir(offload))
    for name in offload.__all__:
        if name not in ("HostHandler", "HostPool", "TransferResult", "TransferSpec"):  # the last are types of tuples
            assert getattr(offload, name).__name__ == name


def test_the_host_is_there_where_torch_is() -> None:
    pytest.importorskip("torch")
    assert offload.HostPool.__module__ == "blockwright.offload.host.pool"
    assert offload.HostHandler.__name__ == "HostHandler"


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        offload.Nothing  # noqa: B018


def test_the_package_imports_no_library() -> None:
    reported = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    assert reported.stdout == "[]\n"
