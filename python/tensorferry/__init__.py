"""Tensorferry: moves tensors to where compute needs them.

Importing it loads neither torch nor NumPy. What needs one of them is loaded where it is first used:
the submodules, and benchmark_kernel, memory_report and profile, which `from tensorferry import *`
leaves out.

A submodule that cannot be loaded, for want of torch, say, is not an attribute; importing it says why.
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
    from tensorferry.benchmark import benchmark_kernel, memory_report, profile

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
    "errors",
]

_SUBMODULES = ("benchmark", "kernels", "layers", "nanovllm", "staging", "transfer")
_ELSEWHERE = dict.fromkeys(("benchmark_kernel", "memory_report", "profile"), "benchmark")


def __getattr__(name):
    if name in _SUBMODULES:
        try:
            return importlib.import_module(f"tensorferry.{name}")
        except (ImportError, Unsupported) as error:  # hasattr() and inspect know no other error
            raise AttributeError(f"tensorferry.{name} cannot be loaded: {error}") from error
    if name in _ELSEWHERE:
        found = getattr(importlib.import_module(f"tensorferry.{_ELSEWHERE[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tensorferry' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_SUBMODULES, *_ELSEWHERE})
