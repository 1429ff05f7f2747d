"""Shows the two bugs of nano-vllm's `BlockManager` (the fork on PyPI) over its own API: python confirm.py."""

from nano_vllm import BlockManager, Sequence


def whole_prompt_is_hit() -> str:
    """Admit a prompt twice: the second time it is all cached, and no token is left whose logits could be sampled."""
    Sequence.block_size = 2
    manager, one, other = BlockManager(4, 2), Sequence([1, 2]), Sequence([1, 2])
    manager.allocate(one)
    manager.allocate(other)
    return (
        f"{other.num_cached_tokens} of {len(other)} tokens are cached" if other.num_cached_tokens == len(other) else ""
    )


def equal_block_is_overwritten() -> str:
    """Free the later of two equal blocks, which the dictionary has: the other one, still held, is not found."""
    Sequence.block_size = 2
    manager, one, other, third = BlockManager(8, 2), Sequence([1, 2, 3]), Sequence([1]), Sequence([1, 2, 3])
    manager.allocate(one)
    manager.allocate(other)
    other.append_token(2)
    manager.may_append(other)
    manager.deallocate(other)
    manager.allocate(third)
    return "" if third.num_cached_tokens else f"block {one.block_table[0]} holds the prefix, and is not hit"


if __name__ == "__main__":
    print(whole_prompt_is_hit() or "a token is left of every prompt")
    print(equal_block_is_overwritten() or "what is held is found")
