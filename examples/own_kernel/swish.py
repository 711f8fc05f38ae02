#!/usr/bin/env python3
"""A CUDA kernel of one's own as a torch operator, outside of this project's tree.

usage: swish.py LIBRARY      LIBRARY: libswish.so; swish.cu has the command that makes it

The operator has a kernel for GPUs, a formula for the CPU, which is the fallback, a fake one for
torch.compile, and a gradient. On a GPU it is compared with float64 and timed beside torch.
"""

import ctypes
import sys

import torch

import tensorferry

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def load(path):
    """torch.ops.own.swish, of the library at this path."""
    try:
        native = ctypes.CDLL(path).swish
    except (OSError, AttributeError) as error:
        sys.exit(f"swish: {path} cannot be used: {error}; build it with the command in swish.cu")
    native.restype = ctypes.c_char_p
    native.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int,
                       ctypes.c_void_p]

    @torch.library.custom_op("own::swish", mutates_args=(), device_types="cuda")
    def swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
        if x.dtype not in TYPES:
            raise TypeError(f"swish: x is of {x.dtype}; it can be of float32, float16 or bfloat16")
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel() == 0:
            return out
        with torch.cuda.device(x.device):
            stream = torch.cuda.current_stream().cuda_stream
            wrong = native(x.data_ptr(), out.data_ptr(), x.numel(), beta, TYPES[x.dtype], stream)
        if wrong:
            raise RuntimeError(f"swish: the kernel was not launched: {wrong.decode()}; build libswish.so for "
                               "this GPU (-arch=native)")
        return out

    @swish.register_kernel("cpu")
    def formula(x, beta=1.0):
        return (x.float() * torch.sigmoid(beta * x.float())).to(x.dtype).contiguous()

    @swish.register_fake
    def fake(x, beta=1.0):
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.beta * x.float())
        return (grad * gate * (1 + ctx.beta * x.float() * (1 - gate))).to(x.dtype), None

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.beta = inputs[1]

    swish.register_autograd(backward, setup_context=keep)
    return swish


def check(swish, device):
    """Every type and odd sizes, against float64; raises where an element is wrong."""
    for dtype in TYPES:
        for count in (0, 1, 7, 1024, 100_003):
            whole = torch.randn(count + 1, device=device).to(dtype)
            for x in (whole[:-1], whole[1:]):  # aligned to 16 bytes, and not
                wide = x.double()
                right = wide * torch.sigmoid(1.5 * wide)
                torch.testing.assert_close(swish(x, 1.5), right.to(dtype))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    swish = load(sys.argv[1])
    check(swish, "cpu")
    print("the formula for the CPU is right")
    if not torch.cuda.is_available():
        print("skipped the kernel: torch finds no GPU; run this on a machine with one")
        return
    check(swish, "cuda")
    print("the kernel is right")
    x = torch.randn(4096, 12288, device="cuda", dtype=torch.bfloat16)
    for name, function in (("own", swish), ("torch", torch.nn.functional.silu)):
        print(tensorferry.benchmark_kernel(function, x, name=name))


if __name__ == "__main__":
    main()
