"""Draw the pictures of README.md: a manager with a shared prefix and a window that trims.

``python docs/pictures.py`` writes docs/_static/blocks-light.svg and blocks-dark.svg; a test sees that they are current.
"""

from pathlib import Path

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
    SlidingWindowSpec,
)

STATIC = Path(__file__).resolve().parent / "_static"


def manager() -> KVCacheManager:
    """Return a manager with full and sliding-window layers in which two requests share a prompt, and one has ended."""
    sizes = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
    groups = [
        KVCacheGroupSpec(["layers.0"], FullAttentionSpec(**sizes)),  # type: ignore[arg-type]
        KVCacheGroupSpec(["layers.1"], SlidingWindowSpec(**sizes, sliding_window=32)),  # type: ignore[arg-type]
    ]
    made = KVCacheManager(KVCacheConfig(num_blocks=32, kv_cache_groups=groups), max_model_len=512)
    system = list(range(64))
    for name, prompt in (
        ("done", system[:16] + [9] * 32),
        ("chat-1", system + [1] * 40),
        ("chat-2", system + [2] * 24),
    ):
        request = Request(name, prompt)
        hit, found = made.get_computed_blocks(request)
        made.allocate_slots(request, request.num_tokens - found, found, hit)
        request.num_computed_tokens = request.num_tokens
        if name == "done":
            made.free(request)
        else:
            request.append_output_token_ids([7])
            made.allocate_slots(request, 1)
            request.num_computed_tokens = request.num_tokens
    return made


def pictures() -> dict[Path, str]:
    """Return the text of each picture."""
    drawn = manager().draw()
    return {STATIC / f"blocks-{theme}.svg": drawn.svg(theme) + "\n" for theme in ("light", "dark")}


if __name__ == "__main__":
    for path, text in pictures().items():
        path.write_text(text, encoding="utf-8")
