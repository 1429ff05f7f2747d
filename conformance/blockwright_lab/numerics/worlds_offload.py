"""The worlds for known bugs in which blocks go to the host and below, and those of block tables."""

from blockwright_spec.reads import Chunked, Full, Group, Mamba, Sliding

from .engine.schedule import EngineConfig, Job, PagedScript, Schedule

OFFLOAD: dict[str, Schedule | tuple[Schedule, ...]] = {
    "states in flight, loads lost": Schedule(
        (Group(Mamba(2), 4),),
        config=EngineConfig(
            max_model_len=32,
            spare_blocks=0,
            align_chunks=True,
            drafts=2,
            lose_load_every=2,
            offload="publish",
            overlap_steps=True,
            trim_early=True,
            hasher="fixed",
        ),
        jobs=(
            Job(own=9, output=1, arrival=2),
            Job(shared=8, own=2, output=3),
            Job(own=9, output=2),
            Job(shared=13, own=3, output=7, seed=1),
        ),
    ),
    "shelf, through": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_model_len=24,
            spare_blocks=1,
            offload="publish",
            offload_blocks=5,
            shelf_blocks=12,
            write="through",
            lose_lowered_every=2,
            hasher="fixed",
        ),
        jobs=(
            Job(own=8, output=1),
            Job(own=11, output=1, variation=1),
            Job(own=13, output=2, arrival=10, variation=2),
            Job(own=13, output=2, arrival=15),
        ),
    ),
    "other weights": (
        Schedule(
            (Group(Full(), 4),),
            config=EngineConfig(
                max_num_seqs=2,
                max_model_len=24,
                spare_blocks=1,
                offload="publish",
                offload_blocks=8,
                shelf_blocks=12,
                write="through",
                hasher="fixed",
            ),
            jobs=(
                Job(own=13, output=2),
                Job(own=13, output=2, arrival=3, variation=1),
                Job(own=13, output=2, arrival=6, variation=2),
                Job(own=13, output=2, arrival=9),
            ),
        ),
        Schedule(
            (Group(Full(), 4),),
            config=EngineConfig(
                max_num_seqs=2,
                max_model_len=24,
                spare_blocks=1,
                offload="publish",
                offload_blocks=8,
                shelf_blocks=12,
                write="through",
                hasher="fixed",
            ),
            jobs=(
                Job(own=13, output=2),
                Job(own=13, output=2, arrival=3, variation=1),
                Job(own=13, output=2, arrival=6, variation=2),
                Job(own=13, output=2, arrival=9),
            ),
            model_seed=1,
        ),
    ),
    "other bytes": (
        Schedule(
            (Group(Full(), 4),),
            config=EngineConfig(
                max_num_seqs=2,
                max_model_len=24,
                spare_blocks=1,
                offload="publish",
                offload_blocks=8,
                shelf_blocks=12,
                write="through",
                byte_order=">",
                hasher="fixed",
            ),
            jobs=(
                Job(own=13, output=2),
                Job(own=13, output=2, arrival=3, variation=1),
                Job(own=13, output=2, arrival=6, variation=2),
                Job(own=13, output=2, arrival=9),
            ),
        ),
        Schedule(
            (Group(Full(), 4),),
            config=EngineConfig(
                max_num_seqs=2,
                max_model_len=24,
                spare_blocks=1,
                offload="publish",
                offload_blocks=8,
                shelf_blocks=12,
                write="through",
                hasher="fixed",
            ),
            jobs=(
                Job(own=13, output=2),
                Job(own=13, output=2, arrival=3, variation=1),
                Job(own=13, output=2, arrival=6, variation=2),
                Job(own=13, output=2, arrival=9),
            ),
        ),
    ),
    "stored at once": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_seqs=2,
            max_num_batched_tokens=8,
            max_model_len=24,
            spare_blocks=4,
            store_steps=0,
            offload="publish",
            overlap_steps=True,
            hasher="fixed",
        ),
        jobs=(Job(own=13, output=2), Job(own=13, output=2, arrival=8)),
        resets=(7,),
    ),
    "stored late": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_model_len=20, spare_blocks=0, store_steps=6, offload="publish", hasher="fixed"),
        jobs=(Job(own=8, output=1), Job(own=13, output=1, variation=1), Job(own=9, output=1, arrival=20)),
    ),
    "stored twice": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_model_len=24, spare_blocks=20, offload="publish", offload_blocks=5, hasher="fixed"),
        jobs=(
            Job(own=4, output=1),
            Job(own=12, output=1),
            Job(own=12, output=1, variation=1),
            Job(own=13, output=1, arrival=12),
        ),
        resets=(10, 11),
    ),
    "loaded late": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_seqs=3,
            max_num_batched_tokens=32,
            max_model_len=24,
            spare_blocks=10,
            load_steps=8,
            store_steps=0,
            offload="publish",
            offload_blocks=6,
            hasher="fixed",
        ),
        jobs=(
            Job(own=13, output=2),
            Job(own=13, output=2, arrival=6),
            Job(own=13, output=2, arrival=7, variation=1),
            Job(own=13, output=2, arrival=8, variation=2),
        ),
        resets=(5,),
    ),
    "load lost": Schedule(
        (Group(Full(), 4), Group(Full(), 2)),
        config=EngineConfig(
            max_num_seqs=2,
            max_num_batched_tokens=32,
            max_model_len=24,
            spare_blocks=30,
            store_steps=0,
            lose_load_every=1,
            offload="publish",
            hasher="fixed",
        ),
        jobs=(Job(own=13, output=2), Job(own=13, output=2, arrival=6), Job(own=13, output=2, arrival=12)),
        resets=(5,),
    ),
    "dropped when launched": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_seqs=2,
            max_num_batched_tokens=8,
            max_model_len=24,
            spare_blocks=10,
            load_steps=0,
            store_steps=0,
            offload="publish",
            launch_dropped=True,
            overlap_steps=True,
            hasher="fixed",
        ),
        jobs=(
            Job(own=13, output=1),
            Job(own=13, output=2, arrival=7, variation=1, drop=9),
            Job(own=13, output=2, arrival=9),
        ),
        resets=(6,),
    ),
    "loaded by two": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_batched_tokens=32,
            max_model_len=24,
            spare_blocks=26,
            load_steps=6,
            store_steps=0,
            offload="publish",
            offload_blocks=4,
            hasher="fixed",
        ),
        jobs=(
            Job(own=13),
            Job(own=13, arrival=7),
            Job(own=13, arrival=8),
            Job(own=13, output=1, arrival=9, variation=1),
            Job(own=13, output=1, arrival=10, variation=2),
            Job(own=13, output=1, arrival=11, variation=3),
        ),
        resets=(6,),
    ),
    "copied by the engine": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_model_len=16, spare_blocks=0, load_steps=0, offload="evict", own_copies=True, hasher="fixed"
        ),
        jobs=(
            Job(own=8, output=1),
            Job(own=12, output=1, variation=1),
            Job(own=10, output=1),
            Job(own=13, output=1, arrival=9, variation=1),
        ),
    ),
    "stored unwritten": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_seqs=2,
            max_num_batched_tokens=32,
            max_model_len=24,
            spare_blocks=10,
            load_steps=2,
            store_steps=0,
            offload="publish",
            careless=True,
            hasher="fixed",
        ),
        jobs=(
            Job(shared=9, output=1),
            Job(shared=9, own=8, output=2, arrival=6),
            Job(shared=9, own=8, output=2, arrival=15),
        ),
        resets=(5, 14),
    ),
    "two groups stored": Schedule(
        (Group(Sliding(6), 4),),
        config=EngineConfig(max_model_len=24, spare_blocks=1, offload="evict", hasher="fixed"),
        jobs=(
            Job(own=4, output=1),
            Job(own=12, output=1, variation=1),
            Job(own=13, output=1, variation=2),
            Job(own=12, output=1, arrival=20),
        ),
    ),
    "chunks and all": Schedule(
        (Group(Full(), 4), Group(Chunked(8), 4)),
        config=EngineConfig(max_model_len=24, spare_blocks=1, offload="evict", hasher="fixed"),
        jobs=(Job(own=17, output=1), Job(own=17, output=1, variation=1), Job(own=17, output=1)),
    ),
}
"""With a connector. A tuple is engines one after the other, over the same shelves."""

TABLES: dict[str, PagedScript] = {
    "forked tables": PagedScript(
        (
            ("arrive", "a", 5),
            ("fork", "a", "b"),
            ("grow", "b", 1),
            ("arrive", "c", 8, 1),
            ("arrive", "d", 9, 2),
            ("grow", "a", 1, 1),
        )
    ),
    "swapped beside a sharer": PagedScript(
        (
            ("arrive", "a", 9),
            ("arrive", "b", 9),
            ("swap_out", "a"),
            ("arrive", "c", 4, 1),
            ("arrive", "d", 4, 2),
            ("grow", "b", 1),
            ("grow", "c", 1),
        ),
        num_cpu=4,
        caching=True,
    ),
    "content that is known": PagedScript(
        (
            ("arrive", "a", 6),
            ("arrive", "b", 6),
            ("grow", "a", 2),
            ("grow", "b", 2),
            ("arrive", "c", 4, 1),
            ("arrive", "d", 4, 2),
            ("grow", "a", 1),
            ("grow", "b", 1, 1),
            ("grow", "c", 1),
        ),
        caching=True,
    ),
}
"""On a block manager."""
