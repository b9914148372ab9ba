"""The kernels through Triton's compiler to machine code, for which no GPU is needed: run by test_gpu.py."""

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from liebayes.optim.gpu import kernels

TYPES = {"table": "*i64", "owners": "*i32", "bounded": "*i64", "seed": "i64", "tensors": "i32", "step": "i32", "stream": "i32"}
STEP = {"PRIOR": True, "MAXIMIZE": False}

CASES: list[tuple[Any, dict[str, Any]]] = [
    (kernels.sample_kernel, {"GROUP": "DiagonalAffine", "BASE": "Normal"}),
    (kernels.sample_kernel, {"GROUP": "DiagonalAffine", "BASE": "StudentT"}),
    (kernels.sample_kernel, {"GROUP": "Additive", "BASE": "Cauchy"}),
    (kernels.sample_kernel, {"GROUP": "Multiplicative", "BASE": "Rayleigh"}),
    (kernels.sample_kernel, {"GROUP": "Additive", "BASE": "Dirac"}),
    (kernels.fold_kernel, {"GROUP": "DiagonalAffine", **STEP}),
    (kernels.step_kernel, {"GROUP": "Additive", "METRIC": "Absorbed", "SUMMED": False, "BOUNDED": False, **STEP}),
    (kernels.step_kernel, {"GROUP": "DiagonalAffine", "METRIC": "Fisher", "SUMMED": True, "BOUNDED": True, **STEP}),
    (kernels.step_kernel, {"GROUP": "Multiplicative", "METRIC": "Adaptive", "SUMMED": False, "BOUNDED": True, **STEP}),
]


@pytest.mark.parametrize(("kernel", "constants"), CASES)
def test_it_compiles(kernel: Any, constants: dict[str, Any]) -> None:
    constants = {**constants, "BLOCK": kernels.ELEMENTS}
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": True})
    assert compiled.asm["cubin"]
    # The GPU's fast approximations are for the arithmetic to choose, and it chooses none.
    assert not [word for word in ("ex2.approx", "lg2.approx", "sqrt.approx", "div.full") if word in compiled.asm["ptx"]]
