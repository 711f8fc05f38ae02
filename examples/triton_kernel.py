#!/usr/bin/env python3
"""A kernel in Triton, checked against torch, timed beside our own kernel, weighed and profiled.

usage: triton_kernel.py [--rows N] [--columns N] [--out DIR]

The kernel is silu(gate) * up over the halves of each row, as tensorferry.kernels.silu_and_mul. The
same calls take any other callable. Without a GPU the kernel runs in Triton's interpreter on a small
tensor, which shows that it is right, and its times say nothing.
"""

import argparse
import os
import sys

import torch

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # is read when triton is loaded

try:
    import triton
    import triton.language as tl
except ImportError:
    sys.exit("triton_kernel: skipped: Triton is not installed; python -m pip install triton")

import tensorferry  # noqa: E402
from tensorferry import kernels  # noqa: E402


@triton.jit
def _silu_and_mul(x, out, columns, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    there = at < columns
    gate = tl.load(x + row * 2 * columns + at, mask=there).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + at, mask=there).to(tl.float32)
    tl.store(out + row * columns + at, gate / (1 + tl.exp(-gate)) * up, mask=there)


def silu_and_mul(x):
    """x: contiguous [rows, 2 * columns]; returns [rows, columns] of the same type."""
    rows, columns = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    # Masked elements cost as much as others, so that short rows get a small block.
    block = min(4096, triton.next_power_of_2(columns))
    warps = max(1, min(8, block // 256))  # at least 8 elements for each thread
    _silu_and_mul[(rows, triton.cdiv(columns, block))](x, out, columns, block, num_warps=warps)
    return out


def check(x):
    """Raises where the kernel differs from float64 by more than a rounding of the type."""
    gate, up = x.double().chunk(2, -1)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(silu_and_mul(x), expected.to(x.dtype))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096 if GPU else 4)
    parser.add_argument("--columns", type=int, default=12288 if GPU else 1500)
    parser.add_argument("--out", default=".", help="folder of the profile")
    options = parser.parse_args()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if GPU else torch.float32
    x = torch.randn(options.rows, 2 * options.columns, dtype=dtype, device="cuda" if GPU else "cpu")

    check(x)
    # A block with masked elements, a whole one, and a row of two blocks.
    for columns in (3, 1024, 4097):
        check(torch.randn(2, 2 * columns, dtype=dtype, device=x.device))
    print("the kernel is right")
    repeats = {} if GPU else {"warmup": 1, "iters": 3}
    for name, kernel in (("Triton", silu_and_mul), ("tensorferry", kernels.silu_and_mul)):
        print(tensorferry.benchmark_kernel(kernel, x, name=name, **repeats))
        memory = tensorferry.memory_report(kernel, x)
        print(f"{name}: at most {memory.peak_bytes} bytes more, {memory.result_bytes} are the result")
    with tensorferry.profile(options.out):
        silu_and_mul(x)
    print(f"profile: {options.out}/profile_trace.json, {options.out}/profile_report.txt")


if __name__ == "__main__":
    main()
