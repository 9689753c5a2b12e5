"""Functions of several kernels: pointers of addresses, sums in parts, norms of rows, activations.

Legend: TB tokens and CB columns of a tile, T tokens of the step, Q outputs of a product, Z parts of its sum, W width.
"""

import triton
import triton.language as tl

ALIGNED = tl.constexpr(16)  # bytes: every array begins at a multiple


@triton.jit
def pointer(address, DT: tl.constexpr):
    """Return an address as a pointer to elements of DT."""
    return tl.multiple_of(address.to(tl.int64).to(tl.pointer_type(DT)), ALIGNED)


@triton.jit
def load_sum(
    sums, bias, delta, number, t, c, inside, first, own, T, Q: tl.constexpr, Z: tl.constexpr, BIAS: tl.constexpr,
    DELTA: tl.constexpr, DT: tl.constexpr,
):  # fmt: skip
    """Return float32 [TB, CB]: the parts of columns first + c in order, from zero on; then the bias, then the rows' deltas.

    The bias begins at column first - own. Columns that are not inside are 0. Tokens must be of the step.
    """
    place = t.to(tl.int64)[:, None] * Q + (first + c)[None, :]
    m = inside[None, :]
    p = pointer(sums, tl.float32) + place
    x = tl.load(p, m, 0.0) + 0.0
    for z in tl.static_range(1, Z):
        x += tl.load(p + z * T.to(tl.int64) * Q, m, 0.0)
    if BIAS:
        x += tl.load(pointer(bias, DT) + own + c, inside, 0.0).to(tl.float32)[None, :]
    if DELTA:
        changed = m & (number != 0)[:, None]
        x = tl.where(changed, x + tl.load(pointer(delta, tl.float32) + place, changed, 0.0), x)
    return x


@triton.jit
def tokens(T, TB: tl.constexpr):
    """Return the tokens [TB] of this program, of which those beyond the last repeat it, and which of them count."""
    t = tl.program_id(0) * TB + tl.arange(0, TB)
    return tl.minimum(t, T - 1), t < T


@triton.jit
def numbers(number, t, DELTA: tl.constexpr):
    """Return the numbers of the tokens' deltas; 0 if no token has any."""
    if DELTA:
        return tl.load(pointer(number, tl.int32) + t)
    else:
        return 0 * t


@triton.jit
def norm_rows(x, weight, bias, c, eps, W: tl.constexpr, LAYER: tl.constexpr, OFFSET: tl.constexpr, DT: tl.constexpr):
    """Return the norm of rows [TB, CB] of float32, whose columns outside are 0."""
    inside = c < W
    scale = tl.load(pointer(weight, DT) + c, inside, 0.0).to(tl.float32)[None, :]
    if LAYER:
        x = tl.where(inside[None, :], x - (tl.sum(x, 1) / W)[:, None], 0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 1) / W + eps)[:, None] * (scale + OFFSET)
    if LAYER:
        y += tl.load(pointer(bias, DT) + c, inside, 0.0).to(tl.float32)[None, :]
    return y


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent: a series near zero, where the formula would cancel."""
    small = tl.minimum(x * x, 0.09)
    series = x * (
        1 + small * (-1 / 3 + small * (2 / 15 + small * (-17 / 315 + small * (62 / 2835 - small * (1382 / 155925)))))
    )
    return tl.where(x * x < 0.09, series, 1 - 2 / (tl.exp(2 * x) + 1))


@triton.jit
def half_tanh(x, y):
    """Return 0.5 * x * (1 + tanh(y)), in a form that does not cancel where tanh is near -1."""
    return x / (1 + tl.exp(-2 * y))


@triton.jit
def activation(x, CODE: tl.constexpr):
    """Return the activation of a code of ``ops.ACTIVATIONS``."""
    if CODE == 1:
        return x / (1 + tl.exp(-x))
    elif CODE == 2:
        return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif CODE == 3 or CODE == 4:
        return half_tanh(x, 0.7978845608028654 * (x + 0.044715 * x * x * x))
    elif CODE == 5:
        return half_tanh(x, x * 0.7978845608 * (1 + 0.044715 * x * x))
    elif CODE == 6:
        return tl.maximum(x, 0.0)
    else:
        return x
