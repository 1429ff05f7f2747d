"""The groups of layers of a replay: as people write them, ``full:1,sliding:5:1024``, or from a model's config.json.

The sizes of their elements do not matter to a replay, only which tokens share a block and which are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from blockwright import kinds
from blockwright.errors import InvalidArgumentError
from blockwright.replay.step_time import Model

_GROUP: Final = re.compile(
    r"(full|sliding|chunked|mamba)(?::([1-9][0-9]?))?(?::([1-9][0-9]{0,8}))?(?::([1-9][0-9]{0,8}))?"
)
_NEEDS_SIZE: Final = ("sliding", "chunked")

# What models call their layers; those without a cache are nothing.
_LAYER: Final = {
    "full_attention": "full", "attention": "full", "full": "full", "global": "full", "*": "full",
    "sliding_attention": "sliding", "sliding": "sliding", "local": "sliding", "chunked_attention": "chunked",
    "linear_attention": "mamba", "mamba": "mamba", "mamba2": "mamba", "recurrent": "mamba", "conv": "mamba",
    "M": "mamba", "-": "", "E": "", "mlp": "", "moe": "",
}  # fmt: skip
_LISTS: Final = ("layer_types", "layers_block_type", "block_types", "hybrid_override_pattern")
_SIZES: Final = {
    "sliding": ("sliding_window", "attention_window_size", "window_size"), "chunked": ("attention_chunk_size",)
}  # fmt: skip
# Fields with n where every n-th layer is full, and what the others are.
_EVERY: Final = (
    ("full_attention_interval", "mamba"), ("sliding_window_pattern", "sliding"), ("_sliding_window_pattern", "sliding")
)  # fmt: skip


def layer_spec(kind: str, block_size: int, size: int = 0, sinks: int = 0) -> kinds.KVCacheSpec:
    plain: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "uint8"}
    if kind == "sliding":
        return kinds.SlidingWindowSpec(**plain, sliding_window=size, sink_len=sinks)
    if kind == "chunked":
        return kinds.ChunkedLocalAttentionSpec(**plain, attention_chunk_size=size)
    if kind == "mamba":
        return kinds.MambaSpec(block_size=block_size, shapes=((1,),), dtypes=("uint8",))
    return kinds.FullAttentionSpec(**plain)


def groups_of(text: str, block_size: int) -> tuple[str, list[kinds.KVCacheSpec]]:
    """Return the groups that a text or a model's config.json declares, and how people write them.

    Raises:
        InvalidArgumentError: no such groups; a config.json that cannot be read, or that names unknown layers.
    """
    path = Path(text)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json" or path.is_file():
        return _of_model(path, block_size)
    specs: list[kinds.KVCacheSpec] = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part)
        if match is None or (match[1] in _NEEDS_SIZE) != (match[3] is not None) or (match[4] and match[1] != "sliding"):
            raise InvalidArgumentError(
                f"--groups: {part!r} is no group; write full:1, mamba:3, sliding:5:1024 (5 groups with windows of "
                "1,024 tokens) or chunked:3:8192, or give the path of a model's config.json"
            )
        specs += [layer_spec(match[1], block_size, int(match[3] or 0), int(match[4] or 0))] * int(match[2] or 1)
    return text, specs


def block_bytes(text: str, block_size: int, precision: str | None, parallel: int) -> int:
    """Return the bytes of a block on each of the accelerators that share a model out by its heads.

    Raises:
        InvalidArgumentError: no model's config.json, one that does not say its sizes, or with recurrent layers.
    """
    with _sizes_of(text, "--memory", "--blocks") as (config, layers, _):
        return _token_bytes(config, precision, parallel) * block_size * _group_size(layers)


def model_of(text: str, precision: str | None) -> Model:
    """Return what a step of a model takes, from its config.json: the parameters are counted from its sizes.

    Raises:
        InvalidArgumentError: no model's config.json, one that does not say its sizes, or with recurrent layers.
    """
    if not Path(text).exists():
        raise InvalidArgumentError(
            "--step-time: an accelerator's needs --groups MODEL/config.json; or give terms, as base=8ms,tokens=50us"
        )
    with _sizes_of(text, "--step-time", "its terms, as base=8ms,tokens=50us") as (config, layers, names):
        hidden, heads, kv_heads, size = _heads(config)
        if config.get("kv_lora_rank"):
            latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
            own, value, query = config["qk_nope_head_dim"], config["v_head_dim"], config.get("q_lora_rank")
            wide = heads * (own + rope)
            attention = (query * (hidden + wide) if query else hidden * wide) + hidden * (latent + rope)
            attention += latent * heads * (own + value) + heads * value * hidden
            pair = 2 * heads * (2 * latent + rope)
        else:
            attention, pair = hidden * size * 2 * (heads + kv_heads), 4 * heads * size
        gates = 2 if config.get("n_embd") else 3  # the first models have no gate
        feed = gates * hidden * int(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
        experts = next((config[name] for name in _EXPERTS if config.get(name)), 0)
        chosen = int(config.get("num_experts_per_tok") or 1) if experts else 0
        each = 3 * hidden * int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
        shared = int(config.get("n_shared_experts") or 0) * each
        count, dense = len(layers), int(config.get("first_k_dense_replace") or 0) if experts else len(layers)
        always = count * attention + dense * feed + (count - dense) * shared
        active = always + (count - dense) * chosen * each
        token = _token_bytes(config, precision, 1)
        windows = [(token * layers.count(kind), names[kind] or float("inf")) for kind in names]
        method = config.get("quantization_config") or {}
        width = method.get("bits", 8) / 8 if method else _PRECISIONS[_precision(config)]
        head = hidden * int(config["vocab_size"])
        return Model(
            always + (count - dense) * experts * each,
            active,
            experts,
            chosen,
            head,
            pair * count,
            tuple(windows),
            width,
        )


_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


@contextmanager
def _sizes_of(
    text: str, option: str, instead: str
) -> Iterator[tuple[Mapping[str, Any], Sequence[str], Mapping[str, int | None]]]:
    """Give a model's configuration, its layers and the sizes of their kinds; an error in the block is of the file."""
    path = Path(text)
    path = path / "config.json" if path.is_dir() else path
    read = _read_model(path)
    try:
        if "mamba" in read[2] or read[0].get("global_head_dim"):
            raise ValueError("its layers have caches of several sizes")
        yield read
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{option}: {path} does not say the sizes of the model ({type(error).__name__}: {error}); give {instead}"
        ) from None


def _token_bytes(config: Mapping[str, Any], precision: str | None, parallel: int) -> int:
    """Return the bytes of a token's keys and values in one layer, on each accelerator."""
    if config.get("kv_lora_rank"):  # one latent vector for all heads, which each accelerator has
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        _, _, kv_heads, size = _heads(config)
        numbers = 2 * -(-kv_heads // parallel) * size
    return int(numbers) * _PRECISIONS[precision or _precision(config)]


def _precision(config: Mapping[str, Any]) -> str:
    return str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")


def _heads(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the hidden size, the heads, those of keys and values, and the size of a head."""
    hidden, heads = (
        int(config.get("hidden_size") or config["n_embd"]),
        int(config.get("num_attention_heads") or config["n_head"]),
    )
    kv_heads = 1 if config.get("multi_query") else int(config.get("num_key_value_heads") or heads)
    return hidden, heads, kv_heads, int(config.get("head_dim") or hidden // heads)


_PRECISIONS: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1}
PRECISIONS: Final = tuple(_PRECISIONS)


def _group_size(layers: Sequence[str]) -> int:
    """Return the layers of a group, as engines share them out: as many as the rarest kind has, or all of a kind."""
    counts = [layers.count(kind) for kind in set(layers)]
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def _read_model(path: Path) -> tuple[Mapping[str, Any], Sequence[str], Mapping[str, int | None]]:
    """Return a model's configuration, its layers that have a cache, and the size of windows or chunks of each kind."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config.get("text_config") or config
        layers = [layer for layer in _layers(config) if layer]
        names = {kind: _size(config, kind) for kind in sorted(set(layers))}
        if not names:
            raise ValueError("no layer has a cache")
        return config, layers, names
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise InvalidArgumentError(
            f"--groups: {path} does not say which layers the model has ({type(error).__name__}: {error}); write them, "
            "as full:1,sliding:5:1024"
        ) from None


def _of_model(path: Path, block_size: int) -> tuple[str, list[kinds.KVCacheSpec]]:
    _, layers, names = _read_model(path)
    counts = {kind: -(-layers.count(kind) // _group_size(layers)) for kind in names}
    written = (f"{kind}:{count}" + (f":{names[kind]}" if names[kind] else "") for kind, count in counts.items())
    specs = [layer_spec(kind, block_size, names[kind] or 0) for kind, count in counts.items() for _ in range(count)]
    return ",".join(written), specs


def _size(config: Mapping[str, Any], kind: str) -> int | None:
    if kind not in _NEEDS_SIZE:
        return None
    name = next(name for name in (*_SIZES[kind], "") if name == "" or config.get(name))
    if not name or type(config[name]) is not int:
        raise ValueError(f"{kind} layers without {' or '.join(_SIZES[kind])}")
    return int(config[name])


def _layers(config: Mapping[str, Any]) -> Sequence[str]:
    named = next((config[name] for name in _LISTS if config.get(name)), None)
    if named is not None:
        if unknown := sorted({str(each) for each in named} - set(_LAYER)):
            raise ValueError(f"unknown layers: {', '.join(unknown)}")
        found = [_LAYER[each] for each in named]
        if config.get("attention_window_size"):  # RecurrentGemma's attention has windows, and its list is a pattern
            found = ["sliding" if each == "full" else each for each in found]
        return [found[at % len(found)] for at in range(max(len(found), config.get("num_hidden_layers", 0)))]
    count = int(config.get("num_hidden_layers") or config["n_layer"])
    layers = range(count)
    for name, other in _EVERY:
        if config.get(name):
            return ["full" if (at + 1) % config[name] == 0 else other for at in layers]
    if (indices := config.get("attn_layer_indices")) is not None:
        return ["full" if at in indices else "mamba" for at in layers]
    if config.get("attn_layer_period"):
        period, offset = config["attn_layer_period"], config.get("attn_layer_offset", 0)
        return ["full" if at % period == offset else "mamba" for at in layers]
    if config.get("attention_chunk_size"):
        ropes = config.get("no_rope_layers") or [(at + 1) % 4 != 0 for at in layers]  # every fourth has no positions
        return ["chunked" if rope else "full" for rope in ropes]
    model = str(config.get("model_type", ""))
    if model in ("mamba", "mamba2", "falcon_mamba"):
        return ["mamba"] * count
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        if model == "gemma2":
            return ["full" if at % 2 else "sliding" for at in layers]
        from_layer = config.get("max_window_layers", 0)
        return ["sliding" if at >= from_layer else "full" for at in layers]
    return ["full"] * count
