"""nano-vllm's `BlockManager` with its two bugs mended, so that the kit can look behind them."""

from nano_vllm import BlockManager, NanoAdapter, Sequence


class Mended(BlockManager):
    def allocate(self, seq: Sequence) -> None:
        """Leave the last block to be computed, when a prompt fills it and all of it is cached."""
        key = -1
        for at in range(seq.num_blocks):
            key = self.compute_hash(seq.block(at), key)
        known = self.hash_to_block_id.pop(key, -1)
        super().allocate(seq)
        self.list_all({key: known} if known != -1 else {})

    def may_append(self, seq: Sequence) -> None:
        before = dict(self.hash_to_block_id)
        super().may_append(seq)
        self.list_all(before)

    def deallocate(self, seq: Sequence) -> None:
        super().deallocate(seq)
        self.list_all({})

    def list_all(self, first: dict[int, int]) -> None:
        """Have each block that is held found; of equal ones the first."""
        self.hash_to_block_id |= first
        for at in sorted(self.used_block_ids):
            if self.blocks[at].hash != -1:
                self.hash_to_block_id.setdefault(self.blocks[at].hash, at)


class MendedAdapter(NanoAdapter):
    manager_class = Mended
