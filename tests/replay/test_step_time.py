"""A step takes the time that a rule, a table or an accelerator says, by hand; what is none of these is refused.

How: rules with one term each; points of a table, between and beyond them; the parameters of models as their makers
publish them; an accelerator with round numbers, bound by memory and by operations.

Not covered: what a step holds (test_timed.py, and beside vLLM's scheduler tests/engines/test_planner.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.replay.groups import model_of
from blockwright.replay.step_time import Accelerator, Model, Roofline, Step, parse_step_time

STEP = Step(tokens=100, requests=4, context=3000, pairs=50_000, loaded=7)
LLAMA = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
MIXTRAL = LLAMA | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip


def rule(text: str) -> float:
    def unasked() -> Model:
        raise AssertionError("it needs no model")

    return parse_step_time(text, unasked)(STEP)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("base=2s", 2),
        ("base=8ms,tokens=50us", 0.013),
        ("requests=1ms,context=2us", 0.010),
        ("pairs=20ns,loaded=1.5ms", 0.0115),
        (f"{__name__}:own", 100),
    ],
)
def test_rules(text: str, seconds: float) -> None:
    assert rule(text) == pytest.approx(seconds)


def own(step: Step) -> float:
    return float(step.tokens)


def test_a_table_is_linear_between_its_points_and_beyond_them(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("tokens,seconds\n50,1\n150,2\n250,6\n")
    assert rule(str(path)) == 1.5
    assert parse_step_time(str(path), dict)(STEP._replace(tokens=350)) == 10  # type: ignore[arg-type]
    path.write_text("requests,context,seconds\n2,1000,1\n2,5000,3\n6,1000,5\n6,5000,7\n")
    assert rule(str(path)) == 4
    path.write_text("context,seconds\n1000,0.5\n")
    assert rule(str(path)) == 0.5
    path.write_text("tokens,seconds\n200,1\n300,3\n")
    assert 0 < rule(str(path)) < 0.01  # noise leads below zero


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "its columns must be seconds and some of tokens, requests"),
        ("seconds\n1\n", "its columns must be"),
        ("batch,seconds\n1,1\n", "its columns must be"),
        ("tokens\n1\n", "'seconds'"),
        ("tokens,seconds\n1\n", "float"),
        ("tokens,seconds\n1,0\n", "seconds must be above 0"),
        ("tokens,seconds\n1,nan\n", "seconds must be above 0"),
        ("tokens,seconds\n1,1\n1,2\n", "it needs a row for each combination of tokens, once"),
        ("tokens,context,seconds\n1,1,1\n2,2,2\n", "it needs a row for each combination of tokens, context, once"),
    ],
)
def test_bad_tables(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "times.csv").write_text(content)
    with pytest.raises(InvalidArgumentError, match=f"is no table of step times: .*{why}"):
        rule(str(tmp_path / "times.csv"))


@pytest.mark.parametrize(
    "text",
    ["base=8", "base=-1ms", "base=1ms,", "speed=3ms", "base=0ms", "h100*0", "H100*2", "h100*x", "absent.csv", "x"],
)
def test_bad_rules(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--step-time: "):
        rule(text)


@pytest.mark.parametrize(
    ("config", "total", "active", "token"),
    [(LLAMA, 8.03, 8.03, 131_072), (MIXTRAL, 46.7, 12.9, 131_072), (DEEPSEEK, 671, 37.4, 70_272)],
    ids=["Llama 3 8B", "Mixtral 8x7B", "DeepSeek V3"],
)
def test_parameters_as_published(
    tmp_path: Path, config: dict[str, object], total: float, active: float, token: int
) -> None:
    """In billions, those that embed included; and the bytes of a token in the cache."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = model_of(str(tmp_path), None)
    assert (model.layers + 2 * model.head) / 1e9 == pytest.approx(total, rel=0.002)
    assert (model.active + 2 * model.head) / 1e9 == pytest.approx(active, rel=0.002)
    assert sum(size for size, _ in model.windows) == token
    (tmp_path / "config.json").write_text(json.dumps(config).replace("vocab", "words"))
    with pytest.raises(InvalidArgumentError, match=r"--step-time: .* does not say the sizes .*'vocab_size'"):
        model_of(str(tmp_path), None)


def test_the_roofline_is_the_longer_of_operations_and_memory() -> None:
    kind = Accelerator({2: 1000.0, 1: 2000.0}, 100.0, 10.0)
    model = Model(40, 40, 0, 0, 10, 2, ((3, float("inf")), (1, 50)), 2)
    few, many = Step(2, 2, 200, 200), Step(1000, 1, 1000, 500_500)
    # Weights of 50 parameters, keys and values of 200 tokens in one kind of layers and of 2 times 50 in the other.
    assert Roofline(kind, model)(few) == (50 * 2 + 200 * 3 + 100) / 100
    assert Roofline(kind, model)(many) == (2 * (40 * 1000 + 10) + 2 * 500_500) / 1000
    assert Roofline(kind, model._replace(width=1))(many) == Roofline(kind, model)(many) / 2
    assert Roofline(kind, model, parallel=2, part=0.25)(many) == 2 * Roofline(kind, model)(many)
    assert Roofline(kind, model)(few._replace(loaded=5)) == Roofline(kind, model)(few) + 5 * 4 / 10
    # Of four experts of 8 parameters each, a token passes one: two tokens read 1 - (3/4)^2 of all.
    experts = Model(40, 16, 4, 1, 0, 0, (), 2)
    assert Roofline(kind, experts)(Step(2, 2, 0, 0)) == pytest.approx((8 + 32 * 7 / 16) * 2 / 100)
