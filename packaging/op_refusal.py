"""Checks that an op which refuses its arguments inside torch raises, where a wrong unwinder ends the process.

usage: op_refusal.py [FOLDER]

FOLDER has torch, and is searched last, so that tensorferry is that of this Python. Says "skipped" without
torch, and where it is too old for ops of ours.
"""
import sys

sys.path += sys.argv[1:]
try:
    import torch
except ImportError:
    print("skipped: ops inside torch: it is not installed for this Python")
    sys.exit()

import tensorferry
from tensorferry import kernels

if not kernels.KERNELS_AVAILABLE:
    print(f"skipped: ops inside torch: {torch.__version__} has none of ours")
    sys.exit()
x, weight = torch.randn(3, 16), torch.randn(15)
try:
    kernels.rms_norm(x, weight)
except tensorferry.InvalidArgument as refused:
    assert "weight is [15] fp32" in str(refused), refused
else:
    sys.exit("op_refusal: rms_norm took a weight of another size")
try:
    torch.ops.tensorferry.rms_norm(x, weight)
except (RuntimeError, tensorferry.InvalidArgument) as refused:
    assert "weight is [15] fp32" in str(refused), refused
else:
    sys.exit("op_refusal: torch.ops.tensorferry.rms_norm took a weight of another size")
print(f"ops inside torch {torch.__version__} raise what they refuse")
