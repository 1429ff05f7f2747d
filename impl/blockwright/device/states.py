"""Layers that keep a state instead of keys and values: a selective recurrence, and a short causal convolution.

A request's state lives in one block, and a step reads it from one block and writes it to others::

    state_reads[i]        the block with the state that the step begins from; 0 if from zero (position 0)
    state_writes[i, 0]    the block for the state after the step's certain tokens
    state_writes[i, j]    the block for the state after draft j (1-based), so that drafts can be rejected; 0 if unused

All blocks are read before any is written, so that a step may write the block that it reads. No state is read for a
request that begins from zero, and only the blocks above are touched: any other may hold NaN.

Both recurrences run over all tokens of a step at once, as a scan by doubling: after k rounds each token knows the last
2**k tokens of its request. So a step costs O(log of its longest request) calls, and a decode step only the last of
them.
"""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from blockwright.device.operands import FLOATS, require_tensor
from blockwright.device.state_blocks import StateSteps, require_state_cache, write_states

# Elements of one tensor of scratch memory, of which there are about six; more channels than that go one after another.
SCRATCH_ELEMENTS = 16 << 20


def selective_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state_cache: torch.Tensor,
    state_reads: torch.Tensor,
    state_writes: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    d: torch.Tensor | None = None,
    num_draft_tokens: torch.Tensor | None = None,
    max_query_len: int | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Run a selective recurrence over the tokens of a step, from and to the states in a cache.

    With delta_t = softplus(dt_t), per channel and state dimension, for the tokens t of each request in turn::

        h_t = exp(-delta_t * a) * h_{t-1} + delta_t * b_t * x_t
        y_t = c_t . h_t + d * x_t

    That is the diagonal recurrence of Mamba (Gu and Dao, 2023, section 3), with `a` for its -A. Computed in float64 if
    `x` or the cache is, else in float32; the states are kept in the cache's dtype.

    O(tokens * channels * state_size * log(longest request)). Scratch memory: see `SCRATCH_ELEMENTS`.

    Args:
        x: (tokens, channels).
        dt: (tokens, channels), before the softplus.
        a: (channels, state_size), positive: how fast each dimension forgets.
        b: (tokens, state_size).
        c: (tokens, state_size).
        state_cache: (num_blocks, channels, state_size), any strides without overlap, any floating-point dtype.
        state_reads: (requests,), int32 or int64; 0 if the request begins from zero.
        state_writes: (requests, 1 + most drafts), int32 or int64; 0 where unused.
        query_start_loc: (requests + 1,), int32 or int64: 0, and then where each request's tokens end. A request without
            tokens, and tokens behind the last request, are padding: rows of zeros, and no state is read or written.
        d: (channels,), or None for 0.
        num_draft_tokens: (requests,), int32 or int64: how many of a request's tokens are drafts, the last ones. With
            None, one draft for each block named for them in `state_writes`.
        max_query_len: a bound of the tokens of one request; used on a GPU only, where otherwise the host waits.
        check: check lengths and block ids on a GPU too; the host waits for them.

    Returns:
        y: (tokens, channels), of the dtype of `x`.

    Raises:
        InvalidArgumentError: shapes, strides, dtypes, devices or lengths are not as described; nothing is written.
        BlockError: a state in the null block, in none of the cache's, or two in one; nothing is written.
    """
    state_cache = require_state_cache("state_cache", state_cache, 3)
    device, (_, channels, size) = state_cache.device, state_cache.shape
    x = require_tensor("x", x, ("tokens", channels), FLOATS, device)
    tokens = x.shape[0]
    dt = require_tensor("dt", dt, (tokens, channels), FLOATS, device)
    a = require_tensor("a", a, (channels, size), FLOATS, device)
    b = require_tensor("b", b, (tokens, size), FLOATS, device)
    c = require_tensor("c", c, (tokens, size), FLOATS, device)
    if d is not None:
        d = require_tensor("d", d, (channels,), FLOATS, device)
    steps = StateSteps(
        state_cache, tokens, state_reads, state_writes, query_start_loc, num_draft_tokens, max_query_len, check
    )
    dtype = torch.promote_types(torch.promote_types(x.dtype, torch.float32), _wide(state_cache.dtype))
    y = torch.zeros((tokens, channels), dtype=dtype, device=device)
    if tokens and steps.counts.shape[0]:
        # Channels do not depend on each other, so that they can be cut to what the scratch memory holds.
        width = max(1, SCRATCH_ELEMENTS // max(1, tokens * size))
        for start in range(0, channels, width):
            part = slice(start, start + width)
            terms = (x[:, part].to(dtype), dt[:, part].to(dtype), a[part].to(dtype), b.to(dtype), c.to(dtype))
            y[:, part] = _scan(steps, state_cache[:, part], *terms)
        if d is not None:
            y += d.to(dtype) * x.to(dtype)
        y = torch.where(steps.real[:, None], y, 0)
    return y.to(x.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32


def _scan(
    steps: StateSteps,
    cache: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
) -> torch.Tensor:
    """Run `selective_scan` for some of the channels: its sums, and the states written."""
    delta = softplus(dt)
    decay = torch.exp(-delta[:, :, None] * a)
    state = (delta * x)[:, :, None] * b[:, None, :]
    first = (steps.place == 0)[:, None, None]
    state = torch.where(first, state + decay * steps.begin(cache, x.dtype)[steps.request], state)
    reach = 1
    while reach < steps.longest:
        # Each token has the last `reach` tokens; the one `reach` before it has as many more, if it has any.
        more = (steps.place >= reach)[reach:, None, None]
        state[reach:] += torch.where(more, decay[reach:] * state[:-reach], 0)
        if 2 * reach < steps.longest:
            decay[reach:] = torch.where(more, decay[reach:] * decay[:-reach], decay[reach:])
        reach *= 2
    token, block, used = steps.ends()
    write_states(cache, block, state[token], used, steps.checked)
    return (state * c[:, None, :]).sum(-1)


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_cache: torch.Tensor,
    state_reads: torch.Tensor,
    state_writes: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    num_draft_tokens: torch.Tensor | None = None,
    check: bool = False,
) -> torch.Tensor:
    """Run a causal convolution per channel over the tokens of a step; its state is the inputs of the last tokens.

    With x_t = 0 before position 0, for the tokens t of each request::

        y_t = bias + weight[:, 0] * x_{t-width+1} + ... + weight[:, width-1] * x_t

    The block of a state holds x_{t-width+2} .. x_t, oldest first. Computed in float64 if `x` or the cache is, else in
    float32; the states are kept in the cache's dtype.

    O(tokens * channels * width).

    Args:
        x: (tokens, channels).
        weight: (channels, width), width at least 2.
        conv_cache: (num_blocks, channels, width - 1), any strides without overlap, any floating-point dtype.
        state_reads, state_writes, query_start_loc, num_draft_tokens, check: as for `selective_scan`.
        bias: (channels,), or None for 0.

    Returns:
        y: (tokens, channels), of the dtype of `x`, before any activation.

    Raises:
        InvalidArgumentError: shapes, strides, dtypes, devices or lengths are not as described; nothing is written.
        BlockError: a state in the null block, in none of the cache's, or two in one; nothing is written.
    """
    conv_cache = require_state_cache("conv_cache", conv_cache, 3)
    device, (_, channels, kept) = conv_cache.device, conv_cache.shape
    x = require_tensor("x", x, ("tokens", channels), FLOATS, device)
    tokens = x.shape[0]
    weight = require_tensor("weight", weight, (channels, kept + 1), FLOATS, device)
    if bias is not None:
        bias = require_tensor("bias", bias, (channels,), FLOATS, device)
    steps = StateSteps(conv_cache, tokens, state_reads, state_writes, query_start_loc, num_draft_tokens, tokens, check)
    dtype = torch.promote_types(torch.promote_types(x.dtype, torch.float32), _wide(conv_cache.dtype))
    if not tokens or not steps.counts.shape[0]:
        return torch.zeros_like(x)
    inputs = x.to(dtype)
    before = steps.begin(conv_cache, dtype)[steps.request]
    window = torch.empty((tokens, channels, kept + 1), dtype=dtype, device=device)
    window[:, :, kept] = inputs
    row = torch.arange(tokens, device=device)
    for back in range(1, kept + 1):
        # An input so far back is one of the step's, or, before the request's first of these, one of the state's.
        here = (steps.place >= back)[:, None]
        place = (kept + steps.place - back).clamp(0, kept - 1)
        old = before.gather(2, place[:, None, None].expand(-1, channels, 1))[:, :, 0]
        window[:, :, kept - back] = torch.where(here, inputs[(row - back).clamp(min=0)], old)
    token, block, used = steps.ends()
    write_states(conv_cache, block, window[token][:, :, 1:], used, steps.checked)
    y = (window * weight.to(dtype)).sum(-1)
    if bias is not None:
        y = y + bias.to(dtype)
    return torch.where(steps.real[:, None], y, 0).to(x.dtype)
