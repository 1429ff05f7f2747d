"""The printed form of a violation: the calls that lead to it, and the laws they break."""
