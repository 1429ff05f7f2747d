"""Property: the benchmark of the media moves what it says and judges by its target; wrong arguments end with code 2.

How: through its entry point, with few blocks.
Not covered: that targets are met (that is the benchmark's own table, on a quiet machine).
"""

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

from blockwright.bench.offload import host as offload_host
from blockwright.bench.offload.media import main


def test_the_host_tier(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(offload_host, "TENSORS", 2)
    arguments = ["host", "--blocks", "3", "--repeat", "2", "--require"]
    for target, code, verdict in ((0.0, 0, "met"), (1e9, 1, "MISSED")):
        monkeypatch.setattr(offload_host, "TARGET", target)
        assert main(arguments) == code
        out = capsys.readouterr().out
        assert verdict in out
        assert "one index_select" in out
        assert "host to device, scattered" in out
        assert "3 blocks of 2 tensors" in out


@pytest.mark.parametrize("arguments", [[], ["tape"], ["host", "--repeat", "0"], ["host", "--repeat", "many"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err
