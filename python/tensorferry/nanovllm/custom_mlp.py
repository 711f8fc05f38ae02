"""The gated MLP on our kernels, and a command that checks, times, weighs and profiles it.

    python -m nanovllm.layers.custom_mlp                          # all four groups
    python -m tensorferry.nanovllm.custom_mlp --groups correctness,memory --device cpu

Groups: `correctness` compares each kernel and the MLP with float64; `speed` compares them with
torch's ops one by one, and on a GPU says whether a kernel is more than 1.2 times as fast; `memory`
has the peak bytes of a call; `profile` writes profile_trace.json and profile_report.txt. What cannot
run is printed with the reason. Exits with 1 if a result is wrong. The first form needs nano-vllm
beside this package, the second does not.
"""

import argparse
import functools
import json
import pathlib
import sys
from typing import NamedTuple

from tensorferry import errors

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    raise errors.Unsupported(
        "tensorferry.nanovllm.custom_mlp needs torch; install it: python -m pip install torch"
    ) from missing

from tensorferry import _core, benchmark, kernels
from tensorferry.layers import CustomGatedMLP

__all__ = ["CustomGatedMLP", "main"]

GROUPS = ("correctness", "speed", "memory", "profile")
# The error allowed, as a share of the largest value: a few roundings of the type.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-6, "float16": 2**-9}
_SPEEDUP = 1.2  # over torch's ops, below which a kernel is not worth its place


class _Case(NamedTuple):
    """What is measured: ours, the same by torch's ops one by one, and the arguments of both."""

    name: str
    ours: object
    eager: object
    arguments: tuple


def _add_rms_norm(x, residual, weight, eps):
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


def _eager_mlp(mlp):
    def call(x):
        gate, up = F.linear(x, mlp.gate_up_proj.weight.to(x.dtype)).chunk(2, -1)
        return F.linear(F.silu(gate) * up, mlp.down_proj.weight.to(x.dtype))

    return call


def _cases(options, dtype):
    """The kernels, and the MLP as a whole, on random numbers."""
    make = functools.partial(torch.randn, dtype=dtype, device=options.device)
    torch.manual_seed(options.seed)
    rows, columns = options.tokens, options.hidden
    x, y, z = (make(rows, columns) for _ in range(3))
    bias, weight = make(columns), make(columns)
    mlp = CustomGatedMLP(options.hidden, options.intermediate).to(options.device, dtype)
    return [
        _Case("fused_add_gelu", kernels.fused_add_gelu, lambda x, bias: F.gelu(x + bias), (x, bias)),
        _Case("fused_add_gelu, tanh", functools.partial(kernels.fused_add_gelu, approximate="tanh"),
              lambda x, bias: F.gelu(x + bias, approximate="tanh"), (x, bias)),
        _Case("element_wise_mul_add", kernels.element_wise_mul_add, lambda a, b, c: a * b + c,
              (x, y, z)),
        _Case("fused_residual_rmsnorm", kernels.fused_residual_rmsnorm, _add_rms_norm,
              (x, y, weight, 1e-6)),
        _Case("CustomGatedMLP", mlp, _eager_mlp(mlp), (x,)),
    ]


def _tensors(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def _in_float64(case):
    return case.eager(*(x.double() if isinstance(x, torch.Tensor) else x for x in case.arguments))


def _error(found, exact):
    """The largest error, as a share of the largest value of each result."""
    return max(
        float((x.double() - y).abs().max() / y.abs().max().clamp_min(1e-30))
        for x, y in zip(_tensors(found), _tensors(exact))
    )


# Each group returns whether its results are right, and its rows for --json.


def _correctness(options):
    well, rows = True, []
    for dtype in options.dtypes:
        for case in _cases(options, getattr(torch, dtype)):
            error = _error(case.ours(*case.arguments), _in_float64(case))
            right = error <= _TOLERANCE[dtype]
            well = well and right
            rows.append({"name": case.name, "dtype": dtype, "error": error, "tolerance": _TOLERANCE[dtype]})
            print(f"  {case.name:24} {dtype:9} largest error {error:.2e} of {_TOLERANCE[dtype]:.2e} "
                  f"{'passed' if right else 'WRONG'}")
    return well, rows


def _judged(case, speedup, device):
    if device == "cpu":
        return "not judged: the CPU's kernels ran; --device cuda judges the GPU's"
    if isinstance(case.ours, torch.nn.Module):
        return "not judged: its matrix products are torch's"
    return f"more than {_SPEEDUP} times: {'met' if speedup > _SPEEDUP else 'NOT met'}"


def _speed(options):
    rows = []
    for case in _cases(options, getattr(torch, options.dtypes[0])):
        measure = functools.partial(benchmark.benchmark_kernel, warmup=3, iters=options.iters)
        ours = measure(case.ours, *case.arguments, name=case.name)
        theirs = measure(case.eager, *case.arguments, name="torch's ops")
        print(f"  {ours}; torch's ops: {theirs * 1e6:.2f} us, {theirs / ours:.2f} times as long; "
              f"{_judged(case, theirs / ours, options.device)}")
        rows.append({"name": case.name, "us": ours * 1e6, "torch_us": theirs * 1e6})
    return True, rows


def _memory(options):
    rows = []
    for case in _cases(options, getattr(torch, options.dtypes[0])):
        ours = benchmark.memory_report(case.ours, *case.arguments)
        theirs = benchmark.memory_report(case.eager, *case.arguments)
        print(f"  {case.name:24} at most {ours.peak_bytes} bytes more, {ours.result_bytes} of them "
              f"the result; torch's ops: {theirs.peak_bytes}")
        rows.append({"name": case.name, "peak_bytes": ours.peak_bytes, "result_bytes": ours.result_bytes,
                     "torch_peak_bytes": theirs.peak_bytes})
    return True, rows


def _profile(options):
    mlp = _cases(options, getattr(torch, options.dtypes[0]))[-1]
    mlp.ours(*mlp.arguments)  # what is set up at a first call is not of interest
    with benchmark.profile(options.out):
        mlp.ours(*mlp.arguments)
    folder = pathlib.Path(options.out)
    print(f"  {folder / 'profile_trace.json'}, {folder / 'profile_report.txt'}")
    return True, []


def _why_not(group, options):
    """The reason for which a group cannot run as it should; "" where it can."""
    if options.device == "cuda" and not torch.cuda.is_available():
        return "there is no GPU; --device cpu runs the CPU's kernels"
    if options.device == "cuda" and not _core.kernels.has_device_code:
        return "this build has no kernels for GPUs; build it with CUDA"
    if not kernels.KERNELS_AVAILABLE and group != "profile":
        return "TENSORFERRY_DISABLE_KERNELS puts torch's formulas in the place of the kernels"
    return ""


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tensorferry.nanovllm.custom_mlp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gpu = torch.cuda.is_available()
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16", help="the first is timed")
    parser.add_argument("--tokens", type=int, default=4096 if gpu else 64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=3072)
    parser.add_argument("--iters", type=int, default=100 if gpu else 10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=".", help="folder of the profile")
    parser.add_argument("--json", help="file for the rows of all groups but the profile's")
    options = parser.parse_args(arguments)
    options.groups, options.dtypes = options.groups.split(","), options.dtypes.split(",")
    for name, known in (("groups", GROUPS), ("dtypes", _TOLERANCE)):
        for each in getattr(options, name):
            if each not in known:
                parser.error(f"--{name} has {each!r}; it can have {', '.join(known)}")
    if min(options.tokens, options.hidden, options.intermediate, options.iters) < 1:
        parser.error("--tokens, --hidden, --intermediate and --iters must be 1 or more")
    return options


@torch.no_grad()
def main(arguments=None):
    """Runs the groups; returns the exit status."""
    options = _options(arguments)
    run = {"correctness": _correctness, "speed": _speed, "memory": _memory, "profile": _profile}
    print(f"{options.tokens} tokens, {options.hidden} to {options.intermediate}, {options.device}")
    well, found = True, {}
    for group in options.groups:
        why = _why_not(group, options)
        print(f"{group}: {'skipped: ' + why if why else ''}".rstrip())
        if why:
            continue
        right, found[group] = run[group](options)
        well = right and well
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found), encoding="utf-8")
    if options.device == "cpu":
        print("not run: the GPU's kernels (--device cuda)")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
