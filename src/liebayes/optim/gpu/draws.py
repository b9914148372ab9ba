"""From counters to numbers: the stream of `optim.philox` inside a kernel.

Four rows at a time, as there: a counter's four words belong to four elements, and the Normal's numbers come in pairs.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import cos_sin, exponentials

PI = tl.constexpr(3.141592653589793)


@triton.jit
def noise(
    seed: tl.tensor,
    c0: tl.tensor,
    tensor: tl.tensor,
    step: tl.tensor,
    stream: tl.tensor,
    scale: tl.tensor,
    shape: tl.tensor,
    BASE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """ε for the four elements of each counter c₀; `shape` is a StudentT's df or a LogNormal's μ, whose `scale` is σ."""
    w0, w1, w2, w3 = tl.philox(seed, c0, tensor, step, stream)
    if BASE == "Normal" or BASE == "LogNormal":
        e0, e1 = _pair(w0, w1, scale, shape, BASE)
        e2, e3 = _pair(w2, w3, scale, shape, BASE)
    else:
        v0, v1, v2, v3 = w0, w1, w2, w3
        if BASE == "StudentT":
            v0, v1, v2, v3 = tl.philox(seed, c0, tensor | 0x80000000, step, stream)
        e0 = _number(w0, v0, shape, BASE) * scale
        e1 = _number(w1, v1, shape, BASE) * scale
        e2 = _number(w2, v2, shape, BASE) * scale
        e3 = _number(w3, v3, shape, BASE) * scale
    return e0, e1, e2, e3


@triton.jit
def _pair(w: tl.tensor, v: tl.tensor, scale: tl.tensor, shape: tl.tensor, BASE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    r = tl.sqrt_rn(-2.0 * tl.log(_u(w)))
    c, s = _direction(v)
    e0, e1 = r * c * scale, r * s * scale
    if BASE == "LogNormal":
        e0, _ = exponentials(e0 + shape)
        e1, _ = exponentials(e1 + shape)
    return e0, e1


@triton.jit
def _number(w: tl.tensor, v: tl.tensor, shape: tl.tensor, BASE: tl.constexpr) -> tl.tensor:
    negative = (w >> 31) == 1
    if BASE == "Uniform":
        e = w.to(tl.int32, bitcast=True).to(tl.float32) * 0.5**31
    elif BASE == "Cauchy":
        # The nearer of the two edges, 0 and π/2: cot and tan of an angle up to π/4.
        u = _u(w)
        c, s = cos_sin(tl.where(u > 0.5, 1.0 - u, u) * (PI / 2))
        e = tl.where(u > 0.5, tl.div_rn(s, c), tl.div_rn(c, s))
        e = tl.where(negative, -e, e)
    else:
        e = -tl.log(_u(w))
        if BASE == "Laplace":
            e = tl.where(negative, -e, e)
        elif BASE == "Gumbel":
            e = -tl.log(e)
        elif BASE == "Rayleigh":
            e = tl.sqrt_rn(2.0 * e)
        elif BASE == "StudentT":
            # √(e^x − 1) = e^(x/2)·√(1 − e^(−x)), which overflows only where the result does.
            x = tl.div_rn(2.0 * e, shape)
            growth, _ = exponentials(0.5 * x)
            _, decay = exponentials(-x)
            c, _ = _direction(v)
            e = growth * tl.sqrt_rn(-decay * shape) * c
        else:
            tl.static_assert(BASE == "Exponential")
    return e


@triton.jit
def _u(w: tl.tensor) -> tl.tensor:
    """Uniform on the open interval (0, 1)."""
    return tl.minimum(((w & 0x7FFFFFFF).to(tl.float32) + 0.5) * 0.5**31, 1 - 0.5**24)


@triton.jit
def _direction(w: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """cos φ and sin φ for φ = π·int32(w)·2⁻³¹: a quarter turn from the two upper bits, exactly, the rest within ±π/4."""
    t = w + 0x20000000
    quarter = t >> 30
    c, s = cos_sin(((t & 0x3FFFFFFF).to(tl.int32, bitcast=True) - 0x20000000).to(tl.float32) * (PI * 0.5**31))
    odd = (quarter & 1) == 1
    cosine, sine = tl.where(odd, s, c), tl.where(odd, c, s)
    return tl.where((quarter == 1) | (quarter == 2), -cosine, cosine), tl.where(quarter >= 2, -sine, sine)
