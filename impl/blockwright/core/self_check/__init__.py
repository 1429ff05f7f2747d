"""The self-check: each law of the pool and of the tables recomputed from plain facts."""
