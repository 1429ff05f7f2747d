"""The numerics gate's worked example: a small engine with a tiny real model, and a recomputation to compare it with.

`weights` and `model` are the model over paged storage, `drafts` its draft head, `dense` the same mathematics without a
cache, written apart. The first three need torch; whoever imports them is told so.
"""
