"""Fixed runs over edge cases that wrong implementations are put before."""
