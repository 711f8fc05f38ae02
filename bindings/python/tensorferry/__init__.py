"""Tensorferry: moves tensors to where compute needs them.

Importing it loads neither torch nor NumPy. What needs one of them is loaded where it is first used:
the submodules, and benchmark_kernel and profile.
"""

import importlib
import typing

from tensorferry import errors
from tensorferry._core import __version__
from tensorferry.errors import (
    Cancelled,
    Corrupt,
    DeviceLost,
    Error,
    Internal,
    InvalidArgument,
    PeerLost,
    Refused,
    Timeout,
    Unavailable,
    Unsupported,
)

if typing.TYPE_CHECKING:
    from tensorferry.benchmark import benchmark_kernel, profile

__all__ = [
    "Cancelled",
    "Corrupt",
    "DeviceLost",
    "Error",
    "Internal",
    "InvalidArgument",
    "PeerLost",
    "Refused",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "__version__",
    "benchmark_kernel",
    "errors",
    "profile",
]

_SUBMODULES = ("benchmark", "kernels", "layers", "nanovllm", "staging", "transfer")
_ELSEWHERE = {"benchmark_kernel": "benchmark", "profile": "benchmark"}


def __getattr__(name):
    if name in _SUBMODULES:
        return importlib.import_module(f"tensorferry.{name}")
    if name in _ELSEWHERE:
        found = getattr(importlib.import_module(f"tensorferry.{_ELSEWHERE[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tensorferry' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_SUBMODULES, *_ELSEWHERE})
