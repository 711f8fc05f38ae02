"""Fused ops for inference, on torch tensors and, on the CPU, on NumPy arrays.

Each is a torch operator, torch.ops.tensorferry.NAME, with kernels for the CPU and for GPUs and a
fake one: torch.compile takes it whole, CUDA graphs capture it, and what it changes in place its
schema says. Formulas, shapes and errors are those of ferry/kernels/NAME/NAME.h.
"""

import logging
import os
import reprlib

from tensorferry import _core, errors

try:
    import torch
except ImportError:
    torch = None

if torch is not None:
    from tensorferry import _formulas, _torch_ops
    from torch.autograd import forward_ad

# False where the ops are torch's formulas: with torch before 2.10, in a package that was built with
# FERRY_KERNELS=OFF, and where TENSORFERRY_DISABLE_KERNELS is set.
KERNELS_AVAILABLE = (
    _core.kernels.is_built
    and (torch is None or _torch_ops.is_native)
    and os.environ.get("TENSORFERRY_DISABLE_KERNELS", "") in ("", "0")
)

_log = logging.getLogger(__name__)
_without_code = set()  # GPUs whose kernels' code is not in this build

__all__ = [
    "KERNELS_AVAILABLE",
    "add_rms_norm",
    "add_rms_norm_",
    "attention_decode",
    "attention_prefill",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_residual_rmsnorm",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "merge_attention_states",
    "qk_norm_rope_store",
    "rms_norm",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_static_fp8_quant",
    "rope",
    "rope_",
    "sample",
    "silu_and_mul",
    "silu_and_mul_dynamic_per_token_quant",
    "silu_and_mul_quant",
    "store_kvcache",
    "takes_rows",
]


def _concerns_autograd(arguments, named):
    """Whether a call may need a gradient, or is traced: graphs and dispatch modes see the public op."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return True
    if torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing():
        return True
    if not torch.is_grad_enabled():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:  # as of torch.func.grad
        return True
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*arguments, *named.values()))


def _refuse_wrong_types(name, arguments, named):
    """Raises InvalidArgument where one has not the type that the op's schema has for it."""
    declared = torch._C._get_schema(f"tensorferry::{name}", "").arguments
    values = dict(zip((each.name for each in declared), arguments)) | named
    for each in declared:
        value, kind = values.get(each.name, each.default_value), str(each.type)
        if "Tensor" in kind:
            right = isinstance(value, torch.Tensor) or (value is None and "Optional" in kind)
            must = "a torch tensor, as torch.as_tensor() makes one"
        elif kind == "int" and isinstance(value, int):
            right, must = -(1 << 63) <= value < 1 << 63, "from -2^63 to 2^63 - 1"
        else:
            right, must = kind != "int" or hasattr(value, "__index__"), "an int"
        if not right:
            raise errors.InvalidArgument(
                f"{name}: {each.name} is {reprlib.repr(value)}, of type {type(value).__name__}; it "
                f"must be {must}"
            )


def _torch_op(name, *arguments, **named):
    if not KERNELS_AVAILABLE or (_without_code and _gpu_of(arguments, named) in _without_code):
        if not torch.compiler.is_compiling():
            _refuse_wrong_types(name, arguments, named)
        return getattr(_formulas, name)(*arguments, **named)
    if name in _torch_ops.without_autograd and not _concerns_autograd(arguments, named):
        op = _torch_ops.without_autograd[name]
    else:
        op = getattr(torch.ops.tensorferry, name)
    try:
        return op(*arguments, **named)
    except errors.Unsupported as error:  # of autograd
        refused = error
    except RuntimeError as error:  # as which torch raises the exceptions of kernels in C++
        refusal = _core.kernels.refusal_in(str(error))
        if refusal is None:
            if "CUDA out of memory" in str(error):  # by torch, for a result
                raise torch.OutOfMemoryError(str(error)) from error
            _refuse_wrong_types(name, arguments, named)
            raise
        code, text = refusal
        refused = errors.BY_CODE[code](text)
    if not _core.kernels.says_no_code(str(refused)):
        raise refused
    # The launch failed, so nothing has been written.
    gpu = _gpu_of(arguments, named)
    _without_code.add(gpu)
    _log.warning("torch's formulas take the place of the kernels on GPU %s: %s", gpu, refused)
    return getattr(_formulas, name)(*arguments, **named)


def _gpu_of(arguments, named):
    """The ordinal of the GPU that the first tensor is on; -1 for the CPU, and where there is none."""
    every = (*arguments, *named.values())
    return next((x.get_device() for x in every if isinstance(x, torch.Tensor)), -1)


def takes_rows(x, *others, vector=None):
    """Whether the row ops take these tensors; where they do not, the formulas of torch may.

    x: of one to four sizes, of float32, float16 or bfloat16, whose last stride is 1. others: of its
    shape and type, with strides of their own. vector: of its last size and its type, contiguous.
    """
    if not 1 <= x.dim() <= 4 or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    for each in (x, *others):
        if each.dtype != x.dtype or each.shape != x.shape or each.device != x.device:
            return False
        if each.shape[-1] > 1 and each.stride(-1) != 1:
            return False
    if vector is None:
        return True
    alike = vector.dtype == x.dtype and vector.device == x.device
    return alike and vector.shape == x.shape[-1:] and vector.is_contiguous()


def _is_tensor(x):
    return torch is not None and isinstance(x, torch.Tensor)


def _empty_like(x):
    import numpy

    return numpy.empty(x.shape, x.dtype)


_ADD_GELU = {"none": "fused_add_gelu", "tanh": "fused_add_gelu_tanh"}


def fused_add_gelu(x, bias, approximate="none"):
    """gelu(x + bias); x: see takes_rows(); bias: [x.shape[-1]].

    approximate, as in torch.nn.functional.gelu: "none" is exact, by erf, and "tanh" the approximation.
    """
    name = _ADD_GELU.get(approximate)
    if name is None:
        raise errors.InvalidArgument(
            f"fused_add_gelu: approximate is {approximate!r}; it can be 'none', for the exact GELU, "
            "or 'tanh', for its approximation"
        )
    if _is_tensor(x):
        return _torch_op(name, x, bias)
    out = _empty_like(x)
    _core.kernels.fused_add_gelu(x, bias, out, approximate == "tanh")
    return out


def element_wise_mul_add(a, b, c):
    """a * b + c, of one shape."""
    if _is_tensor(a):
        return _torch_op("element_wise_mul_add", a, b, c)
    out = _empty_like(a)
    _core.kernels.element_wise_mul_add(a, b, c, out)
    return out


def _gated(x, name):
    if _is_tensor(x):
        return _torch_op(name, x)
    out = _empty_like(x[..., : x.shape[-1] // 2])
    _core.kernels.gated_mul(x, out, name)
    return out


def silu_and_mul(x):
    """silu(first half) * second half of the last size. x: see takes_rows()."""
    return _gated(x, "silu_and_mul")


def gelu_and_mul(x):
    """gelu(first half) * second half of the last size."""
    return _gated(x, "gelu_and_mul")


def gelu_tanh_and_mul(x):
    """As gelu_and_mul, approximated by tanh."""
    return _gated(x, "gelu_tanh_and_mul")


def rms_norm(x, weight, eps=1e-6):
    """x / sqrt(mean of squares + eps), rounded, times weight; over the last size. See takes_rows()."""
    if _is_tensor(x):
        return _torch_op("rms_norm", x, weight, eps)
    out = _empty_like(x)
    _core.kernels.rms_norm(x, weight, out, eps)
    return out


def add_rms_norm(x, residual, weight, eps=1e-6):
    """(rms_norm of x + residual, x + residual)."""
    if _is_tensor(x):
        return _torch_op("add_rms_norm", x, residual, weight, eps)
    out, total = _empty_like(x), _empty_like(x)
    _core.kernels.add_rms_norm(x, residual, weight, total, out, eps)
    return out, total


fused_residual_rmsnorm = add_rms_norm


def add_rms_norm_(x, residual, weight, eps=1e-6):
    """The same with x and residual as outputs."""
    _torch_op("add_rms_norm_", x, residual, weight, eps)


def rms_norm_static_fp8_quant(result, input, weight, scale, epsilon):
    """result, of e4m3 numbers (or bytes for them): rms_norm / scale, saturating; scale: [1]."""
    _torch_op("rms_norm_static_fp8_quant", result, input, weight, scale, epsilon)


def fused_add_rms_norm_static_fp8_quant(result, input, residual, weight, scale, epsilon):
    """The same of input + residual, which becomes the new residual."""
    _torch_op(
        "fused_add_rms_norm_static_fp8_quant", result, input, residual, weight, scale, epsilon
    )


def rms_norm_dynamic_per_token_quant(
    result, input, weight, scale, epsilon, scale_ub=None, residual=None
):
    """The same with scales that are made, one for each row: max |rms_norm| / 448.

    scale: [rows, 1]; scale_ub: a bound of the maximum.
    """
    _torch_op(
        "rms_norm_dynamic_per_token_quant",
        result, input, weight, scale, epsilon, scale_ub, residual
    )


def silu_and_mul_quant(result, input, scale):
    """result, of e4m3 numbers (or bytes for them): silu_and_mul / scale, saturating."""
    _torch_op("silu_and_mul_quant", result, input, scale)


def silu_and_mul_dynamic_per_token_quant(result, input, scale, scale_ub=None):
    """The same with scales that are made, one for each row."""
    _torch_op("silu_and_mul_dynamic_per_token_quant", result, input, scale, scale_ub)


def rope(positions, q, k, cos_sin_cache, is_neox=True):
    """(q, k) turned, by halves, or by neighbours as GPT-J does if not is_neox.

    cos_sin_cache: rows of cosines, then sines.
    """
    return _torch_op("rope", positions, q, k, cos_sin_cache, is_neox)


def rope_(positions, q, k, cos_sin_cache, is_neox=True):
    """The same in place."""
    _torch_op("rope_", positions, q, k, cos_sin_cache, is_neox)


def store_kvcache(k, v, k_cache, v_cache, slot_mapping, k_scale=1.0, v_scale=1.0):
    """Puts each token's k and v at its slot of paged caches; a negative slot is none."""
    _torch_op("store_kvcache", k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)


def qk_norm_rope_store(*arguments, **named):
    """rms_norm of q's and k's heads, rope, and store_kvcache, in one pass over qkv: (q, k).

    (qkv, q_heads, kv_heads, q_weight, k_weight, positions, cos_sin_cache, k_cache=None,
    v_cache=None, slot_mapping=None, eps=1e-6, k_scale=1.0, v_scale=1.0, is_neox=True)
    """
    return _torch_op("qk_norm_rope_store", *arguments, **named)


def _drawn_seed(device, generator=None):
    """One for all rows, of torch's generator.

    On the device, so that a CUDA graph captures the drawing, and each replay has another seed.
    """
    return torch.randint(1 << 62, (1,), dtype=torch.int64, device=device, generator=generator)


def sample(
    logits,
    temperatures=None,
    top_k=None,
    top_p=None,
    seed=None,
    step=0,
    *,
    seeds=None,
    steps=None,
    generator=None,
):
    """A token for each row of logits; greedy where there is no temperature, or one of 0.

    Draws follow torch's generator, that of the logits' device or the one given: the same
    torch.manual_seed gives the same tokens, each call other ones, and so does each replay of a CUDA
    graph (which has to know a generator of one's own: CUDAGraph.register_generator_state).

    With a seed, or seeds, an int64 tensor of one for each row or one for all, nothing is asked of
    a generator: the same numbers give the same tokens, and each draw needs another step (or steps).
    A row with a seed of its own draws the same in every batch. Graphs keep numbers, and read
    tensors anew.

    temperatures, top_k (int32) and top_p are tensors of one number for each row, and every number
    means something: top_k below 1 leaves all tokens, as does top_p of 1, more, or NaN; top_p of 0 or
    less leaves those of the greatest logit alone; temperatures below 1e-5, or NaN, are greedy.
    """
    if seed is not None and seeds is not None:
        raise errors.InvalidArgument("sample: seed and seeds are both given; give one of them")
    if generator is not None and (seed is not None or seeds is not None):
        raise errors.InvalidArgument(
            "sample: generator is given with seed or seeds, which draw without one; leave one out"
        )
    if temperatures is not None and seed is None and seeds is None:
        seeds = _drawn_seed(logits.device, generator)
    return _torch_op(
        "sample",
        logits, temperatures, top_k, top_p, 0 if seed is None else seed, step, seeds, steps
    )


def attention_decode(
    q, k_cache, v_cache, block_tables, context_lens, scale, k_scale=1.0, v_scale=1.0, *, window=0,
    softcap=0.0, sinks=None, return_lse=False
):
    """One query per sequence, over paged caches: of q's type, or of e4m3 numbers with scales.

    window: a query sees the last so many tokens (0: all). softcap: scores s become
    softcap * tanh(s / softcap) (0: they stay). sinks: float32 [heads], a score of each head without
    a value. With return_lse also the natural logarithm of the sum of exp(score): [batch, heads].
    """
    return _torch_op(
        "attention_decode_lse" if return_lse else "attention_decode",
        q, k_cache, v_cache, block_tables, context_lens, scale, k_scale, v_scale, window, softcap,
        sinks
    )


def attention_prefill(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal=True, block_tables=None,
    k_scale=1.0, v_scale=1.0, *, window=0, softcap=0.0, sinks=None, return_lse=False
):
    """Sequences of many lengths, one behind the other, over keys that may be paged.

    k and v are of q's type, or of e4m3 numbers with scales.
    window, softcap, sinks and return_lse as attention_decode has them; lse: [queries, heads].
    """
    return _torch_op(
        "attention_prefill_lse" if return_lse else "attention_prefill",
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal, block_tables, k_scale,
        v_scale, window, softcap, sinks
    )


def merge_attention_states(out_a, lse_a, out_b, lse_b):
    """(out, lse) of attention over the keys of both, from those over the keys of each.

    out_a and out_b: [queries, heads, head_size]; lse_a and lse_b: float32 [queries, heads], -inf
    or inf where there are no keys. The lse that is returned has -inf there.
    """
    return _torch_op("merge_attention_states", out_a, lse_a, out_b, lse_b)
