"""The numerics gate's worked example: a small engine with a tiny real model, and a recomputation to compare it with.

    schedule, worlds, examples    what happens, as plain data: drawn, run, made smaller and printed
    engine, task, parts           the loop: what comes, a step, what came of it
    scheduler                     who runs: all calls of the manager before a step
    worker                        block tables, copies and the model: all that `blockwright.device` does
    elsewhere, offload, below     swapping and host offload: where blocks may be besides the device
    weights, model, drafts        the model over paged storage, its draft head, and others who guess tokens ahead
    dense                         the same mathematics without a cache, written apart
    poison, checker, errors       what must not be read, what must be equal, and how a difference is told

Most of it needs torch; whoever imports that is told so.
"""
