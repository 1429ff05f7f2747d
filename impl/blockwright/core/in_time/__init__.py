"""What steps in flight, loads, forks and explanations add to the core: the specification's second reading."""
