"""The numerics gate's worked example: a small engine with a tiny real model, and a recomputation to compare it with.

`weights` and `model` are the model over paged storage, `drafts` its draft head, `dense` the same mathematics without a
cache, written apart.
"""

try:
    import torch as _torch  # noqa: F401  (asked for here, so that its absence is said once and plainly)
except ImportError as error:  # pragma: no cover
    raise ImportError("the engine of the numerics gate needs torch: make torch") from error
