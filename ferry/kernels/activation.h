// Activations on the CPU, in double; activation.cuh has the device versions.
#pragma once
#include <cmath>

namespace ferry::kernels {

// Hendrycks and Gimpel 2016, Gaussian Error Linear Units: x * sigmoid(x), which they call SiLU.
inline double Silu(double x) noexcept { return x / (1 + std::exp(-x)); }
// GELU, from the same paper: x * P(X <= x) of the standard normal distribution.
inline double Gelu(double x) noexcept { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
// The paper's approximation of GELU, 0.5 x (1 + tanh(u)), which is x * sigmoid(2u).
inline double GeluTanh(double x) noexcept {
  constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  return x / (1 + std::exp(-2 * kRoot * x * (1 + 0.044715 * x * x)));
}

}  // namespace ferry::kernels
