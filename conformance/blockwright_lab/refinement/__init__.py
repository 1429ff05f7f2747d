"""Parts one to three of the specification refine its first page, the block machine: the gate `refinement`."""
