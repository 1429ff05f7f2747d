"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

To begin with, 1 `block_machine`: everything that may ever happen to a block, which parts one to three refine;
2 `reads`: the positions that a token reads; 3 `law`: laws; 4 `hints`: an engine's hints on blocks to keep.

Then four parts, each a folder that lists its chapters in the order of reading: part one, `manager`, the manager that an
engine talks to; part two, `block_tables`, with copy-on-write; part three, `offload`, blocks kept off the device; part
four, `worker`, the inputs of the kernels. A chapter builds on earlier ones only.
"""
