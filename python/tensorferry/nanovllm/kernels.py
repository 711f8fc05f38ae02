"""The kernels that forks of nano-vllm import as nanovllm.kernels, by the same names and arguments.

They are those of tensorferry.kernels; neither nano-vllm nor a GPU is needed.
"""

from tensorferry.benchmark import benchmark_kernel
from tensorferry.kernels import (
    KERNELS_AVAILABLE,
    element_wise_mul_add,
    fused_add_gelu,
    fused_residual_rmsnorm,
)

__all__ = [
    "KERNELS_AVAILABLE",
    "benchmark_kernel",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_residual_rmsnorm",
]
