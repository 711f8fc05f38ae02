"""The ops on NumPy arrays, which need neither torch nor a GPU."""

import math

import numpy as np
import pytest

import tensorferry
from tensorferry import kernels


def test_rms_norm_of_arrays():
    x = np.random.randn(5, 3, 16).astype(np.float32)
    weight = np.random.randn(16).astype(np.float32)
    wide = x.astype(np.float64)
    right = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(kernels.rms_norm(x, weight), right, rtol=1e-5, atol=1e-6)
    out, total = kernels.add_rms_norm(x, x, weight)
    np.testing.assert_allclose(total, 2 * x)
    np.testing.assert_allclose(out, kernels.rms_norm(2 * x, weight), rtol=1e-5)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


GATES = {
    "silu_and_mul": lambda x: x / (1 + np.exp(-x)),
    "gelu_and_mul": gelu,
    "gelu_tanh_and_mul": gelu_tanh,
}


@pytest.mark.parametrize("name", [name for name in kernels.__all__ if name.endswith("_and_mul")])
def test_gated_activations_of_arrays(name):
    x = np.random.randn(4, 10).astype(np.float16)
    a, b = x[:, :5].astype(np.float64), x[:, 5:].astype(np.float64)
    np.testing.assert_allclose(getattr(kernels, name)(x), GATES[name](a) * b, atol=5e-3)


def test_a_gate_that_is_unknown_is_named():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(tensorferry.InvalidArgument, match='no gated op "swish_and_mul"'):
        kernels._gated(x, "swish_and_mul")


def test_other_elementwise_ops_of_arrays():
    x = np.random.randn(4, 10).astype(np.float16)
    for approximate, right in (("none", gelu), ("tanh", gelu_tanh)):
        added = kernels.fused_add_gelu(x, np.zeros(10, np.float16), approximate)
        np.testing.assert_allclose(added, right(x.astype(np.float64)), rtol=2**-10, atol=1e-6)
    np.testing.assert_allclose(kernels.element_wise_mul_add(x, x, x), x.astype(float) ** 2 + x,
                               atol=2e-2)


def test_an_approximation_that_does_not_exist_is_named():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(tensorferry.InvalidArgument, match="approximate is 'fast'; it can be 'none', for "
                                                          "the exact GELU, or 'tanh'"):
        kernels.fused_add_gelu(x, x[0], approximate="fast")


def test_arrays_that_cannot_be_used_are_named():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(tensorferry.InvalidArgument, match="weight"):
        kernels.rms_norm(x, np.zeros(3, np.float32))
    with pytest.raises(tensorferry.InvalidArgument, match="x: is of float64"):
        kernels.silu_and_mul(np.zeros((2, 4)))
