"""The second reading of part one: steps in flight, loads, forks, holds from outside, and why a hit is no longer.

Its chapters are numbered on from those of the first reading; the part lists them.
"""
