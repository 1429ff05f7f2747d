"""Tiny models with random weights, large enough that each token depends on all that its layers may read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

_SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 16384,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}


def _llama() -> Any:
    return transformers.LlamaConfig(**_SIZES)


def _gemma2() -> Any:
    sizes = _SIZES | {"num_hidden_layers": 4, "tie_word_embeddings": True}
    return transformers.Gemma2Config(**sizes, sliding_window=64, query_pre_attn_scalar=32)


def _gemma3() -> Any:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    sizes = _SIZES | {"num_hidden_layers": 6, "tie_word_embeddings": True}
    return transformers.Gemma3TextConfig(**sizes, layer_types=kinds, sliding_window=64, query_pre_attn_scalar=32)


def _deepseek() -> Any:
    return transformers.DeepseekV2Config(
        **_SIZES | {"num_key_value_heads": 2},
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        n_routed_experts=2,
        first_k_dense_replace=99,
    )


def _qwen3_next(value_heads: int = 2, **sizes: Any) -> Any:
    return transformers.Qwen3NextConfig(
        **_SIZES | {"num_hidden_layers": 4, "num_key_value_heads": 1} | sizes,
        linear_num_key_heads=1,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=96,
        shared_expert_intermediate_size=96,
        dtype="bfloat16",
    )


def _small_blocks() -> Any:
    return _qwen3_next(1, num_key_value_heads=2, head_dim=128)  # a small state beside large keys: blocks of 128 tokens


def _llama4() -> Any:
    return transformers.Llama4TextConfig(
        **_SIZES | {"num_hidden_layers": 4},
        intermediate_size_mlp=96,
        attention_chunk_size=64,
        no_rope_layers=[1, 1, 1, 0],
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=99,
        moe_layers=[],
    )


def _bert() -> Any:
    return transformers.BertConfig(
        **_SIZES | {"num_attention_heads": 2, "max_position_embeddings": 512}, architectures=["BertModel"]
    )


def _blocks_of_640() -> Any:
    return _qwen3_next(1)  # a state of more than 512 tokens' keys: vLLM takes blocks of 640, if asked to


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "deepseek": _deepseek,
    "qwen3_next": _qwen3_next,
    "small_blocks": _small_blocks,
    "blocks_of_640": _blocks_of_640,
    "llama4": _llama4,
    "bert": _bert,
}


def make(name: str, folder: Path) -> Path:
    """Return the folder of a model, made there if it is not."""
    home = folder / name
    if not (home / "config.json").is_file():
        config = MODELS[name]()
        config.initializer_range = 0.2
        torch.manual_seed(7)
        maker = transformers.AutoModel if name == "bert" else transformers.AutoModelForCausalLM
        model = maker.from_config(config)
        if name == "bert":  # vLLM's pooling wants a tokenizer, though tokens are given
            home.mkdir(parents=True, exist_ok=True)
            words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(495))]
            (home / "vocab.txt").write_text("\n".join(words))
            transformers.BertTokenizerFast(str(home / "vocab.txt")).save_pretrained(home)
        model.to(torch.bfloat16 if config.model_type == "qwen3_next" else torch.float32).save_pretrained(home)
    return home


def eagle(folder: Path) -> Path:
    """Return the folder of an EAGLE head for "llama": a layer, and what joins tokens with the model's hidden states."""
    home = folder / "eagle"
    if not (home / "config.json").is_file():
        config = transformers.LlamaConfig(**_SIZES | {"num_hidden_layers": 1}, architectures=["LlamaForCausalLM"])
        config.initializer_range = 0.2
        torch.manual_seed(8)
        parts = transformers.AutoModelForCausalLM.from_config(config).state_dict().items()
        weights = {
            name.removeprefix("model."): part for name, part in parts if ".layers." in name and "input_" not in name
        }
        weights["fc.weight"] = torch.cat([torch.eye(config.hidden_size), torch.eye(config.hidden_size)], dim=1)
        home.mkdir(parents=True, exist_ok=True)
        save_file(weights, home / "model.safetensors")
        config.save_pretrained(home)
    return home


def mtp(folder: Path) -> Path:
    """Return the folder of "small_blocks" and a module that drafts: its last layer, over tokens and hidden states."""
    home = make("small_blocks", folder)
    parts = load_file(home / "model.safetensors")
    if "mtp.fc.weight" not in parts:
        layer = "model.layers.3."
        parts |= {name.replace(layer, "mtp.layers.0."): part.clone() for name, part in parts.items() if layer in name}
        size = _SIZES["hidden_size"]
        for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
            parts[f"mtp.{name}.weight"] = torch.zeros(size, dtype=torch.bfloat16)
        parts["mtp.fc.weight"] = torch.cat([torch.eye(size)] * 2, dim=1).to(torch.bfloat16)
        save_file(parts, home / "model.safetensors", {"format": "pt"})
    return home
