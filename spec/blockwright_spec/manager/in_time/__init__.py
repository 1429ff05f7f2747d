"""Book two of part one, in time: steps in flight, loads, forks, holds from outside, and why a hit is no longer.

Its chapters are numbered with those of the part, which lists them.
"""
