"""The checker: a search over all states, and the processes that run several at a time."""
