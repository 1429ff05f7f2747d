"""The worker's rows: what a step hands to the kernels, by an engine whose manager is the specification's."""
