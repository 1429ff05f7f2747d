"""The worker's rows: the inputs of kernels, in an engine with the specification's manager."""
