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


def test_activations_of_arrays():
    x = np.random.randn(4, 10).astype(np.float16)
    a, b = x[:, :5].astype(np.float64), x[:, 5:].astype(np.float64)
    np.testing.assert_allclose(kernels.silu_and_mul(x), a / (1 + np.exp(-a)) * b, atol=5e-3)
    gelu = a * 0.5 * (1 + np.vectorize(math.erf)(a / math.sqrt(2)))
    np.testing.assert_allclose(kernels.gelu_and_mul(x), gelu * b, atol=5e-3)
    bias = np.zeros(10, np.float16)
    np.testing.assert_allclose(
        kernels.fused_add_gelu(x, bias)[:, :5], gelu, atol=5e-3)
    np.testing.assert_allclose(kernels.element_wise_mul_add(x, x, x), x.astype(float) ** 2 + x,
                               atol=2e-2)


def test_arrays_that_cannot_be_used_are_named():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(tensorferry.InvalidArgument, match="weight"):
        kernels.rms_norm(x, np.zeros(3, np.float32))
    with pytest.raises(tensorferry.InvalidArgument, match="x: is of float64"):
        kernels.silu_and_mul(np.zeros((2, 4)))
