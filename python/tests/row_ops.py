"""What tests of row ops share."""

import functools

from tensorferry import kernels


def function_of(name):
    """The function of an operator of torch.ops.tensorferry."""
    if name == "fused_add_gelu_tanh":  # an operator, and an argument of the function
        return functools.partial(kernels.fused_add_gelu, approximate="tanh")
    return getattr(kernels, name)
