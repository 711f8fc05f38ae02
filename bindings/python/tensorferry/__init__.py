"""Tensorferry: moves tensors to where compute needs them."""

from tensorferry import errors
from tensorferry._core import __version__
from tensorferry.benchmark import benchmark_kernel, profile
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
