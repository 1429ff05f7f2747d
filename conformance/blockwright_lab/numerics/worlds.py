"""The worlds in which known bugs that corrupt data are caught: small schedules, stored as they are.

Some were found by a search over random schedules and reduced for as long as they showed the same; the others are
written for what they show.
"""

from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sliding

from .engine.schedule import EngineConfig, Job, PagedScript, Schedule
from .worlds_offload import OFFLOAD, TABLES

World = Schedule | PagedScript | tuple[Schedule, ...]
"""A tuple is engines one after the other, over the same shelves below the host."""

ON_DEVICE: dict[str, Schedule] = {
    "a window, with swaps": Schedule(
        (Group(Sliding(5), 4),),
        config=EngineConfig(max_model_len=32, spare_blocks=0, align_chunks=True, preemption="swap", hasher="fixed"),
        jobs=(
            Job(own=5, output=6),
            Job(shared=17, own=4, output=1, arrival=4, family=1),
            Job(shared=8, output=1, arrival=6, family=1),
            Job(shared=8, own=7, output=1, arrival=4, family=1),
        ),
    ),
    "draft head over attention and states": Schedule(
        (Group(Full(), 2), Group(Mamba(1), 4)),
        draft=Group(Full(), 4),
        config=EngineConfig(
            max_num_batched_tokens=8,
            max_model_len=32,
            spare_blocks=0,
            align_chunks=True,
            drafts=1,
            guesser="eagle",
            preemption="swap",
            hasher="fixed",
        ),
        jobs=(
            Job(own=21, output=5),
            Job(shared=13, own=4, output=3),
            Job(shared=13, own=5, output=3, arrival=6, variation=1, seed=1),
        ),
    ),
    "two windows in flight, with drafts": Schedule(
        (Group(Sliding(4), 4), Group(Sliding(6), 4)),
        config=EngineConfig(max_model_len=32, spare_blocks=4, drafts=1, overlap_steps=True, hasher="fixed"),
        jobs=(
            Job(own=24, output=2),
            Job(shared=4, output=1, arrival=2),
            Job(own=4, output=6),
            Job(shared=13, own=4, output=3, family=1),
        ),
    ),
    "draft head over blocks of two sizes": Schedule(
        (Group(Full(), 2), Group(Sliding(9), 4)),
        draft=Group(Full(), 4),
        config=EngineConfig(
            max_num_batched_tokens=8,
            max_model_len=32,
            spare_blocks=2,
            align_chunks=True,
            drafts=1,
            guesser="eagle",
            hasher="fixed",
        ),
        jobs=(
            Job(shared=8, output=1, family=1),
            Job(shared=8, own=6, output=7, family=1, variation=1),
            Job(shared=17, own=6, output=6, family=1, variation=1, seed=1),
            Job(shared=17, own=3, arrival=6, family=2, variation=1),
        ),
    ),
    "chunks and all, twice": Schedule(
        (Group(Chunked(12), 4), Group(Full(), 4)),
        config=EngineConfig(max_num_batched_tokens=8, max_model_len=32, spare_blocks=2, hasher="fixed"),
        jobs=(Job(own=22, output=3), Job(shared=8, own=5, output=1)),
    ),
    "encoders": Schedule(
        (Group(Full(), 4), Group(Cross(), 4)),
        config=EngineConfig(max_model_len=32, enable_caching=False, spare_blocks=4, hasher="fixed"),
        jobs=(Job(own=20, output=3, encoder=2), Job(own=21, output=1, encoder=5)),
    ),
    "draft head in a small pool": Schedule(
        (Group(Full(), 4),),
        draft=Group(Full(), 4),
        config=EngineConfig(
            max_num_batched_tokens=32, max_model_len=32, spare_blocks=4, drafts=2, guesser="eagle", hasher="fixed"
        ),
        jobs=(
            Job(shared=8, output=1),
            Job(shared=17, own=2, output=1, arrival=2),
            Job(shared=17, own=5, output=5, family=1, variation=1),
            Job(shared=4, own=8, output=6, arrival=6, family=1, seed=1),
            Job(shared=13, own=8, output=3, family=2, seed=1),
        ),
    ),
    "draft head over states": Schedule(
        (Group(Mamba(2), 4),),
        draft=Group(Full(), 4),
        config=EngineConfig(
            max_num_batched_tokens=8, max_model_len=32, spare_blocks=0, drafts=2, guesser="eagle", hasher="fixed"
        ),
        jobs=(Job(own=7, output=7, seed=1), Job(own=7, output=3)),
    ),
    "two that begin alike": Schedule(
        (Group(Mamba(), 4),),
        config=EngineConfig(max_num_batched_tokens=16, max_model_len=32, spare_blocks=4, hasher="fixed"),
        jobs=(Job(shared=8, own=4, output=1), Job(shared=8, own=6, output=2)),
    ),
    "one state": Schedule(
        (Group(Mamba(2), 2),),
        config=EngineConfig(max_model_len=32, enable_caching=False, spare_blocks=4, hasher="fixed"),
        jobs=(Job(own=3, output=1),),
    ),
    "forks": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_num_seqs=2, max_model_len=32, spare_blocks=4, hasher="fixed"),
        jobs=(Job(output=5, forks=(2, 3)),),
    ),
    "a chunk in flight": Schedule(
        (Group(Chunked(4), 4),),
        config=EngineConfig(max_model_len=32, spare_blocks=2, overlap_steps=True, hasher="fixed"),
    ),
    "a narrow window": Schedule(
        (Group(Sliding(2), 2),),
        config=EngineConfig(max_model_len=32, spare_blocks=2, hasher="fixed"),
        jobs=(Job(own=3, output=1),),
    ),
    "weak, verified": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_model_len=32, spare_blocks=16, verify_tokens=True, hasher="weak"),
        jobs=(Job(own=6, output=3), Job(own=5, output=1, arrival=4, variation=4)),
    ),
    "weak, refused": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_model_len=32, spare_blocks=16, hasher="weak"),
        jobs=(Job(own=6, output=3), Job(own=5, output=1, arrival=4, variation=4)),
    ),
    "identities": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_num_seqs=2, max_model_len=32, spare_blocks=16, hasher="fixed"),
        jobs=(
            Job(own=9, output=2, adapter=1),
            Job(own=9, output=2, arrival=2, salt="adapter 1"),
            Job(
                own=9,
                output=2,
                arrival=4,
                items=(("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx1", 1, 4),),
            ),
            Job(
                own=9,
                output=2,
                arrival=6,
                items=(("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx2", 1, 4),),
            ),
            Job(own=6, output=2, arrival=8, variation=75),
            Job(own=6, output=2, arrival=10, variation=140),
        ),
    ),
    "dropped": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_num_seqs=2, max_model_len=32, spare_blocks=16, delay_publication=True, hasher="fixed"),
        jobs=(Job(own=9, output=2, drop=1), Job(own=9, output=2, arrival=2)),
    ),
    "dropped, settled": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_seqs=2,
            max_model_len=32,
            spare_blocks=16,
            overlap_steps=True,
            publish_on_settlement=True,
            hasher="fixed",
        ),
        jobs=(Job(own=9, output=2, drop=1), Job(own=9, output=2, arrival=2)),
    ),
    "read twice": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(max_num_batched_tokens=64, max_model_len=32, spare_blocks=2, readers=2, hasher="fixed"),
        jobs=(
            Job(own=9, output=1),
            Job(own=9, arrival=4, variation=1),
            Job(own=9, arrival=4, variation=2),
            Job(own=9, arrival=4, variation=3),
            Job(own=9, arrival=4, variation=4),
        ),
    ),
    "released too often": Schedule(
        (Group(Full(), 4),),
        config=EngineConfig(
            max_num_batched_tokens=64, max_model_len=32, spare_blocks=2, readers=1, careless=True, hasher="fixed"
        ),
        jobs=(
            Job(own=9, output=1),
            Job(own=9, arrival=4, variation=1),
            Job(own=9, arrival=4, variation=2),
            Job(own=9, arrival=4, variation=3),
            Job(own=9, arrival=4, variation=4),
        ),
    ),
    "to the end": Schedule(
        (Group(Full(), 4),),
        draft=Group(Full(), 4),
        config=EngineConfig(max_model_len=32, spare_blocks=4, drafts=2, guesser="eagle", hasher="fixed"),
        jobs=(Job(own=18, output=14),),
    ),
    "states between boundaries": Schedule(
        (Group(Full(), 2), Group(Mamba(0), 4)),
        config=EngineConfig(
            max_num_seqs=2, max_num_batched_tokens=3, max_model_len=24, spare_blocks=12, hasher="fixed"
        ),
        jobs=(Job(own=9, output=2), Job(own=9, output=2, arrival=8)),
    ),
}
"""Those that stay on the device, but for swaps."""

WORLDS: dict[str, World] = {**ON_DEVICE, **OFFLOAD, **TABLES}
"""All, by name."""
