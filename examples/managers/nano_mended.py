"""nano-vllm's `BlockManager` with one of its two bugs mended, and with both, so that the kit can look behind them."""

from nano_vllm import BlockManager, NanoAdapter, Sequence


class OneLeft(BlockManager):  # type: ignore[misc]
    def allocate(self, seq: Sequence) -> None:
        """Leave the last block to be computed, when a prompt fills it and all of it is cached."""
        key = -1
        for at in range(seq.num_blocks):
            key = self.compute_hash(seq.block(at), key)
        self.hash_to_block_id.pop(key, None)
        super().allocate(seq)


class Mended(OneLeft):
    """Beside that, as long as a block is held, its content is found."""

    def may_append(self, seq: Sequence) -> None:
        super().may_append(seq)
        self.list_all()

    def deallocate(self, seq: Sequence) -> None:
        super().deallocate(seq)
        self.list_all()

    def list_all(self) -> None:
        for at in sorted(self.used_block_ids):
            if self.blocks[at].hash != -1:
                self.hash_to_block_id.setdefault(self.blocks[at].hash, at)


class OneLeftAdapter(NanoAdapter):
    manager_class = OneLeft


class MendedAdapter(NanoAdapter):
    manager_class = Mended
