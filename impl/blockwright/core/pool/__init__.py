"""The pool of blocks: who holds which block, which one is taken next, and which prefix each carries."""
