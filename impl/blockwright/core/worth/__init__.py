"""Which cached blocks are worth keeping: the orders of eviction, what requests want kept, and hints of the engine."""
