"""torch.ops.tensorferry: the ops with schemas, for the CPU, GPUs and fake tensors."""

import torch

from tensorferry import _core, _formulas, _gradients, errors

_kernels = _core.kernels
_library = torch.library.Library("tensorferry", "DEF")
_names = []  # of the ops, as they are defined
# By op: what does the same by an op that autograd does not know, whose kernels in Python a call
# would run also where gradients are off.
without_autograd = {}


def _written(*tensors):
    """Tells autograd that these have changed, which it cannot see: who has kept one is refused."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _changed_by(op):
    """(index, name) of the arguments that the op's schema says it changes."""
    return [
        (index, argument.name)
        for index, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _count(changed, arguments, named):
    _written(
        *(
            arguments[index] if index < len(arguments) else named.get(name)
            for index, name in changed
        )
    )


def _telling_autograd(name):
    """For kernels in C++, whose ABI has no version counters; inference tensors come past it."""
    op = getattr(torch.ops.tensorferry, name).default
    changed = _changed_by(op)

    def call(keyset, *arguments, **named):
        keyset = keyset & torch._C._after_ADInplaceOrView_keyset
        result = op.redispatch(keyset, *arguments, **named)
        _count(changed, arguments, named)
        return result

    return call


def _counting(op):
    """The op, which torch would call through a kernel in Python only to count versions."""
    changed = _changed_by(op)

    def call(*arguments, **named):
        result = op(*arguments, **named)
        _count(changed, arguments, named)
        return result

    return call


def _on_one_device(name, fake):
    """The fake, which torch also calls where only some tensors are fake: its result is memory that nobody fills."""

    def checked(*arguments, **named):
        every = (*arguments, *named.values())
        devices = sorted({str(x.device) for x in every if isinstance(x, torch.Tensor)})
        if len(devices) > 1:
            raise errors.InvalidArgument(
                f"{name}: tensors are on {' and '.join(devices)}; all must be on one device"
            )
        return fake(*arguments, **named)

    return checked


def _define(defined, name, rest, fake):
    """The op `name` under the name `defined`, rest: of its schema. Returns whether it is our kernel."""
    _library.define(f"{defined}({rest}")
    is_ours = _kernels.register_torch_op(name, "CPU", defined)
    if not is_ours:
        _library.impl(defined, getattr(_formulas, name), "CPU")
    if not (_kernels.has_device_code and _kernels.register_torch_op(name, "CUDA", defined)):
        _library.impl(defined, getattr(_formulas, name), "CUDA")
    fake = _on_one_device(name, fake)
    torch.library.register_fake(f"tensorferry::{defined}", fake, lib=_library)
    return is_ours


def _op(schema, fake):
    """Registers an op under `schema`."""
    name, _, rest = schema.partition("(")
    plain = f"_{name}_without_autograd"
    _names.append(name)
    if not _define(name, name, rest, fake):
        return
    if "!" in rest:
        _library.impl(name, _telling_autograd(name), "ADInplaceOrView", with_keyset=True)
    _define(plain, name, rest, fake)
    op = getattr(torch.ops.tensorferry, plain).default
    without_autograd[name] = _counting(op) if "!" in rest else op


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_like(x, *_, **__):
    return _like(x)


def _fake_gated(x):
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


def _fake_nothing(*_, **__):
    return None


def _fake_qk(qkv, q_heads, kv_heads, *_, **__):
    size = qkv.shape[-1] // (q_heads + 2 * kv_heads)
    return tuple(
        torch.empty((qkv.shape[0], heads, size), dtype=qkv.dtype, device=qkv.device)
        for heads in (q_heads, kv_heads)
    )


def _fake_with_lse(q, *_, **__):
    return _like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)


_op("fused_add_gelu(Tensor x, Tensor bias) -> Tensor", _fake_like)
_op("fused_add_gelu_tanh(Tensor x, Tensor bias) -> Tensor", _fake_like)
_op("element_wise_mul_add(Tensor a, Tensor b, Tensor c) -> Tensor", _fake_like)
for _name in _gradients.GATES:
    _op(f"{_name}(Tensor x) -> Tensor", _fake_gated)
_op("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor", _fake_like)
_op(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps=1e-6) -> (Tensor, Tensor)",
    lambda x, *_, **__: (_like(x), _like(x)),
)
_op(
    "add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
    _fake_nothing,
)
# The quantised ops have the names and arguments that vLLM's have.
_op(
    "rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale,"
    " float epsilon) -> ()",
    _fake_nothing,
)
_op(
    "fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual,"
    " Tensor weight, Tensor scale, float epsilon) -> ()",
    _fake_nothing,
)
_op(
    "rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight,"
    " Tensor(b!) scale, float epsilon, Tensor? scale_ub=None, Tensor(c!)? residual=None) -> ()",
    _fake_nothing,
)
_op("silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale) -> ()", _fake_nothing)
_op(
    "silu_and_mul_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale,"
    " Tensor? scale_ub=None) -> ()",
    _fake_nothing,
)
_op(
    "rope(Tensor positions, Tensor q, Tensor k, Tensor cos_sin_cache, bool is_neox=True)"
    " -> (Tensor, Tensor)",
    lambda positions, q, k, *_, **__: (_like(q), _like(k)),
)
_op(
    "rope_(Tensor positions, Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache,"
    " bool is_neox=True) -> ()",
    _fake_nothing,
)
_op(
    "store_kvcache(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache,"
    " Tensor slot_mapping, float k_scale=1.0, float v_scale=1.0) -> ()",
    _fake_nothing,
)
_op(
    "qk_norm_rope_store(Tensor qkv, int q_heads, int kv_heads, Tensor q_weight, Tensor k_weight,"
    " Tensor positions, Tensor cos_sin_cache, Tensor(a!)? k_cache=None, Tensor(b!)? v_cache=None,"
    " Tensor? slot_mapping=None, float eps=1e-6, float k_scale=1.0, float v_scale=1.0,"
    " bool is_neox=True) -> (Tensor, Tensor)",
    _fake_qk,
)
# SymInt, here and below: numbers that differ from call to call are no reason to compile anew.
_op(
    "sample(Tensor logits, Tensor? temperatures=None, Tensor? top_k=None, Tensor? top_p=None,"
    " SymInt seed=0, SymInt step=0, Tensor? seeds=None, Tensor? steps=None) -> Tensor",
    lambda logits, *_, **__: logits.new_empty(logits.shape[:1], dtype=torch.int64),
)
_DECODE = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor context_lens,"
    " float scale, float k_scale=1.0, float v_scale=1.0, int window=0, float softcap=0.0,"
    " Tensor? sinks=None)"
)
_op("attention_decode" + _DECODE + " -> Tensor", _fake_like)
_op("attention_decode_lse" + _DECODE + " -> (Tensor, Tensor)", _fake_with_lse)
_PREFILL = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q,"
    " float scale, bool causal=True, Tensor? block_tables=None, float k_scale=1.0,"
    " float v_scale=1.0, int window=0, float softcap=0.0, Tensor? sinks=None)"
)
_op("attention_prefill" + _PREFILL + " -> Tensor", _fake_like)
_op("attention_prefill_lse" + _PREFILL + " -> (Tensor, Tensor)", _fake_with_lse)
_op(
    "merge_attention_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b)"
    " -> (Tensor, Tensor)",
    lambda out_a, lse_a, *_: (_like(out_a), _like(lse_a)),
)

# False where the ops are torch's formulas: in a package without kernels, and with torch before 2.10,
# whose stable ABI cannot register kernels.
is_native = bool(without_autograd)
_derivatives = _gradients.register(_names, _library)
