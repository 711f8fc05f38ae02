"""vLLM's layers on our kernels, by CustomOp.register_oot: experimental, as it never ran inside vLLM.

vLLM makes one of these in the place of its own class, and calls forward_cuda() where custom ops are
enabled (custom_ops=["all"] of its compilation config). What our kernels do not take goes to vLLM's.
"""

from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm

from tensorferry import kernels


class FerrySiluAndMul(SiluAndMul):
    def forward_cuda(self, x):
        return kernels.silu_and_mul(x) if kernels.takes_rows(x) else super().forward_cuda(x)


class FerryGeluAndMul(GeluAndMul):
    def forward_cuda(self, x):
        if not kernels.takes_rows(x):
            return super().forward_cuda(x)
        if self.approximate == "tanh":
            return kernels.gelu_tanh_and_mul(x)
        return kernels.gelu_and_mul(x)


class FerryRMSNorm(RMSNorm):
    def forward_cuda(self, x, residual=None):
        given = (x,) if residual is None else (x, residual)
        ours = self.has_weight and self.variance_size_override is None
        if not ours or not kernels.takes_rows(*given, vector=self.weight):
            return super().forward_cuda(x, residual)
        if residual is None:
            return kernels.rms_norm(x, self.weight.data, self.variance_epsilon)
        return kernels.add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)


def register():
    """Another call does nothing, nor does it replace what somebody else has registered."""
    for theirs, ours in (
        (SiluAndMul, FerrySiluAndMul), (GeluAndMul, FerryGeluAndMul), (RMSNorm, FerryRMSNorm)
    ):
        if theirs.__name__ not in op_registry_oot:
            theirs.register_oot(ours)
