"""torch.ops.tensorferry: the ops with schemas, for the CPU, GPUs and fake tensors."""

import torch

from tensorferry import _core, _formulas, _gradients, errors

_kernels = _core.kernels
_library = torch.library.Library("tensorferry", "DEF")
_names = []  # of the ops, as they are defined
# By op: what does the same by an op that autograd does not know, whose kernels in Python a call
# would run also where gradients are off.
without_autograd = {}
_CPU = _kernels.Place(-1, 0)
_WORD = (1 << 64) - 1  # negative seeds are those of the same bits


def _run(name, at, *arguments):
    """The op where the tensor `at` is: on the stream that is current there."""
    op = getattr(_kernels, name)
    if not at.is_cuda:
        op(_CPU, *arguments)
        return
    device = at.get_device()
    place = _kernels.Place(device, torch.cuda.current_stream(device).cuda_stream)
    if torch.cuda.current_device() == device:
        op(place, *arguments)
    else:
        with torch.cuda.device(device):
            op(place, *arguments)


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


def _define(defined, name, rest, function, fake):
    """The op `name` under the name `defined`, rest: of its schema. Returns whether it is in C++."""
    _library.define(f"{defined}({rest}")
    is_native = _kernels.register_torch_op(name, "CPU", defined)
    if not is_native:
        _library.impl(defined, function, "CPU")
    if _kernels.has_device_code:
        if not _kernels.register_torch_op(name, "CUDA", defined):
            _library.impl(defined, function, "CUDA")
    else:
        _library.impl(defined, getattr(_formulas, name), "CUDA")
    fake = _on_one_device(name, fake)
    torch.library.register_fake(f"tensorferry::{defined}", fake, lib=_library)
    return is_native


def _op(schema, fake):
    """Registers an op under `schema`: in C++, or what is decorated where torch is too old for it."""

    def register(function):
        name, _, rest = schema.partition("(")
        plain = f"_{name}_without_autograd"
        _names.append(name)
        if not _kernels.is_built:
            function = getattr(_formulas, name)
        is_native = _define(name, name, rest, function, fake)
        if is_native and "!" in rest:
            _library.impl(name, _telling_autograd(name), "ADInplaceOrView", with_keyset=True)
        if is_native:  # else there is Python anyway
            _define(plain, name, rest, function, fake)
            op = getattr(torch.ops.tensorferry, plain).default
            without_autograd[name] = _counting(op) if "!" in rest else op
        return function

    return register


def _like(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_like(x, *_, **__):
    return _like(x)


def _fake_gated(x):
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


def _fake_nothing(*_, **__):
    return None


@_op("fused_add_gelu(Tensor x, Tensor bias) -> Tensor", _fake_like)
def fused_add_gelu(x, bias):
    out = _like(x)
    _run("fused_add_gelu", x, x, bias, out)
    return out


@_op("element_wise_mul_add(Tensor a, Tensor b, Tensor c) -> Tensor", _fake_like)
def element_wise_mul_add(a, b, c):
    out = _like(a)
    _run("element_wise_mul_add", a, a, b, c, out)
    return out


def _gated(name):
    def gated(x):
        out = _fake_gated(x)
        _run("gated_mul", x, x, out, name)
        return out

    return gated


for _name in _gradients.GATES:
    _op(f"{_name}(Tensor x) -> Tensor", _fake_gated)(_gated(_name))


@_op("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor", _fake_like)
def rms_norm(x, weight, eps=1e-6):
    out = _like(x)
    _run("rms_norm", x, x, weight, out, eps)
    return out


@_op(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps=1e-6) -> (Tensor, Tensor)",
    lambda x, *_, **__: (_like(x), _like(x)),
)
def add_rms_norm(x, residual, weight, eps=1e-6):
    out, total = _like(x), _like(x)
    _run("add_rms_norm", x, x, residual, weight, total, out, eps)
    return out, total


def _add_rms_norm_formula(x, residual, weight, eps=1e-6):
    out, total = _formulas.add_rms_norm(x, residual, weight, eps)
    x.copy_(out)
    residual.copy_(total)


_formulas.add_rms_norm_ = _add_rms_norm_formula


@_op(
    "add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
    _fake_nothing,
)
def add_rms_norm_(x, residual, weight, eps=1e-6):
    _run("add_rms_norm", x, x, residual, weight, residual, x, eps)
    _written(x, residual)


# The quantised ops have the names and arguments that vLLM's have.


def _numbers(x):
    """A tensor without sizes, of one number, with one."""
    return x.reshape(1) if x is not None and x.dim() == 0 else x


def _rms_norm_quant(result, input, residual, weight, scale, scale_ub, epsilon, per_token):
    _run(
        "rms_norm_quant",
        input,
        result,
        input,
        residual,
        weight,
        _numbers(scale),
        _numbers(scale_ub),
        epsilon,
        per_token,
    )
    _written(result, residual, scale if per_token else None)


@_op(
    "rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale,"
    " float epsilon) -> ()",
    _fake_nothing,
)
def rms_norm_static_fp8_quant(result, input, weight, scale, epsilon):
    _rms_norm_quant(result, input, None, weight, scale, None, epsilon, False)


@_op(
    "fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual,"
    " Tensor weight, Tensor scale, float epsilon) -> ()",
    _fake_nothing,
)
def fused_add_rms_norm_static_fp8_quant(result, input, residual, weight, scale, epsilon):
    _rms_norm_quant(result, input, residual, weight, scale, None, epsilon, False)


@_op(
    "rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight,"
    " Tensor(b!) scale, float epsilon, Tensor? scale_ub=None, Tensor(c!)? residual=None) -> ()",
    _fake_nothing,
)
def rms_norm_dynamic_per_token_quant(
    result, input, weight, scale, epsilon, scale_ub=None, residual=None
):
    _rms_norm_quant(result, input, residual, weight, scale, scale_ub, epsilon, True)


@_op(
    "silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale) -> ()",
    _fake_nothing,
)
def silu_and_mul_quant(result, input, scale):
    _run("silu_and_mul_quant", input, result, input, _numbers(scale), None, False)
    _written(result)


@_op(
    "silu_and_mul_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale,"
    " Tensor? scale_ub=None) -> ()",
    _fake_nothing,
)
def silu_and_mul_dynamic_per_token_quant(result, input, scale, scale_ub=None):
    _run("silu_and_mul_quant", input, result, input, _numbers(scale), _numbers(scale_ub), True)
    _written(result, scale)


def _table(cos_sin_cache):
    """As rows of cosines and sines; nano-vllm's has a size of one between."""
    return cos_sin_cache.flatten(1) if cos_sin_cache.dim() > 2 else cos_sin_cache


@_op(
    "rope(Tensor positions, Tensor q, Tensor k, Tensor cos_sin_cache, bool is_neox=True)"
    " -> (Tensor, Tensor)",
    lambda positions, q, k, *_, **__: (_like(q), _like(k)),
)
def rope(positions, q, k, cos_sin_cache, is_neox=True):
    q_out, k_out = _like(q), _like(k)
    _run("rope", q, q, k, q_out, k_out, positions, _table(cos_sin_cache), is_neox)
    return q_out, k_out


def _rope_formula(positions, q, k, cos_sin_cache, is_neox=True):
    for x, turned in zip((q, k), _formulas.rope(positions, q, k, cos_sin_cache, is_neox)):
        x.copy_(turned)


_formulas.rope_ = _rope_formula


@_op(
    "rope_(Tensor positions, Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache,"
    " bool is_neox=True) -> ()",
    _fake_nothing,
)
def rope_(positions, q, k, cos_sin_cache, is_neox=True):
    _run("rope", q, q, k, q, k, positions, _table(cos_sin_cache), is_neox)
    _written(q, k)


@_op(
    "store_kvcache(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache,"
    " Tensor slot_mapping, float k_scale=1.0, float v_scale=1.0) -> ()",
    _fake_nothing,
)
def store_kvcache(k, v, k_cache, v_cache, slot_mapping, k_scale=1.0, v_scale=1.0):
    _run("store_kvcache", k, k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    _written(k_cache, v_cache)


def _fake_qk(qkv, q_heads, kv_heads, *_, **__):
    size = qkv.shape[-1] // (q_heads + 2 * kv_heads)
    return tuple(
        torch.empty((qkv.shape[0], heads, size), dtype=qkv.dtype, device=qkv.device)
        for heads in (q_heads, kv_heads)
    )


@_op(
    "qk_norm_rope_store(Tensor qkv, int q_heads, int kv_heads, Tensor q_weight, Tensor k_weight,"
    " Tensor positions, Tensor cos_sin_cache, Tensor(a!)? k_cache=None, Tensor(b!)? v_cache=None,"
    " Tensor? slot_mapping=None, float eps=1e-6, float k_scale=1.0, float v_scale=1.0,"
    " bool is_neox=True) -> (Tensor, Tensor)",
    _fake_qk,
)
def qk_norm_rope_store(
    qkv,
    q_heads,
    kv_heads,
    q_weight,
    k_weight,
    positions,
    cos_sin_cache,
    k_cache=None,
    v_cache=None,
    slot_mapping=None,
    eps=1e-6,
    k_scale=1.0,
    v_scale=1.0,
    is_neox=True,
):
    q, k = _fake_qk(qkv, q_heads, kv_heads)
    _run(
        "qk_norm_rope_store",
        qkv,
        qkv,
        q_heads,
        kv_heads,
        q_weight,
        k_weight,
        eps,
        positions,
        _table(cos_sin_cache),
        q,
        k,
        k_cache,
        v_cache,
        slot_mapping,
        k_scale,
        v_scale,
        is_neox,
    )
    _written(k_cache, v_cache)
    return q, k


# SymInt, here and below: numbers that differ from call to call are no reason to compile anew.
@_op(
    "sample(Tensor logits, Tensor? temperatures=None, Tensor? top_k=None, Tensor? top_p=None,"
    " SymInt seed=0, SymInt step=0, Tensor? seeds=None, Tensor? steps=None) -> Tensor",
    lambda logits, *_, **__: logits.new_empty(logits.shape[:1], dtype=torch.int64),
)
def sample(
    logits, temperatures=None, top_k=None, top_p=None, seed=0, step=0, seeds=None, steps=None
):
    out = torch.empty(logits.shape[:1], dtype=torch.int64, device=logits.device)
    seed, step = seed & _WORD, step & _WORD
    _run("sample", logits, logits, out, temperatures, top_k, top_p, seeds, steps, seed, step)
    return out


def _plan(q, k_cache, block_tables, window):
    if not q.is_cuda:
        return 1, 2, False, 0
    facts = torch.cuda.get_device_properties(q.device)
    most = block_tables.shape[1] * k_cache.shape[1]
    if window > 0:
        most = min(most, window + 64)  # a window may begin and end within a step
    return _kernels.plan_decode(
        q.shape[0],
        q.shape[1],
        k_cache.shape[2],
        q.shape[2],
        most,
        facts.multi_processor_count,
        facts.major,
    )


def _lse_of(q):
    return torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)


def _fake_with_lse(q, *_, **__):
    return _like(q), _lse_of(q)


def _decode(
    lse, q, k_cache, v_cache, block_tables, context_lens, scale, k_scale, v_scale, window, softcap,
    sinks
):
    out = _like(q)
    splits, stages, early, floats = _plan(q, k_cache, block_tables, window)
    workspace = torch.empty(floats, dtype=torch.float32, device=q.device) if floats else None
    _run(
        "attention_decode",
        q,
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        out,
        workspace,
        scale,
        splits,
        stages,
        early,
        k_scale,
        v_scale,
        window,
        softcap,
        sinks,
        lse,
    )
    return out


_DECODE = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor context_lens,"
    " float scale, float k_scale=1.0, float v_scale=1.0, int window=0, float softcap=0.0,"
    " Tensor? sinks=None)"
)


@_op("attention_decode" + _DECODE + " -> Tensor", _fake_like)
def attention_decode(
    q, k_cache, v_cache, block_tables, context_lens, scale, k_scale=1.0, v_scale=1.0, window=0,
    softcap=0.0, sinks=None
):
    return _decode(
        None, q, k_cache, v_cache, block_tables, context_lens, scale, k_scale, v_scale, window,
        softcap, sinks
    )


@_op("attention_decode_lse" + _DECODE + " -> (Tensor, Tensor)", _fake_with_lse)
def attention_decode_lse(
    q, k_cache, v_cache, block_tables, context_lens, scale, k_scale=1.0, v_scale=1.0, window=0,
    softcap=0.0, sinks=None
):
    lse = _lse_of(q)
    out = _decode(
        lse, q, k_cache, v_cache, block_tables, context_lens, scale, k_scale, v_scale, window,
        softcap, sinks
    )
    return out, lse


def _prefill(
    lse, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal, block_tables, k_scale,
    v_scale, window, softcap, sinks
):
    out = _like(q)
    _run(
        "attention_prefill",
        q,
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        block_tables,
        out,
        max_seqlen_q,
        scale,
        causal,
        k_scale,
        v_scale,
        window,
        softcap,
        sinks,
        lse,
    )
    return out


_PREFILL = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q,"
    " float scale, bool causal=True, Tensor? block_tables=None, float k_scale=1.0,"
    " float v_scale=1.0, int window=0, float softcap=0.0, Tensor? sinks=None)"
)


@_op("attention_prefill" + _PREFILL + " -> Tensor", _fake_like)
def attention_prefill(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal=True, block_tables=None,
    k_scale=1.0, v_scale=1.0, window=0, softcap=0.0, sinks=None
):
    return _prefill(
        None, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal, block_tables,
        k_scale, v_scale, window, softcap, sinks
    )


@_op("attention_prefill_lse" + _PREFILL + " -> (Tensor, Tensor)", _fake_with_lse)
def attention_prefill_lse(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal=True, block_tables=None,
    k_scale=1.0, v_scale=1.0, window=0, softcap=0.0, sinks=None
):
    lse = _lse_of(q)
    out = _prefill(
        lse, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal, block_tables,
        k_scale, v_scale, window, softcap, sinks
    )
    return out, lse


@_op(
    "merge_attention_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b)"
    " -> (Tensor, Tensor)",
    lambda out_a, lse_a, *_: (_like(out_a), _like(lse_a)),
)
def merge_attention_states(out_a, lse_a, out_b, lse_b):
    out, lse = _like(out_a), _like(lse_a)
    _run("merge_attention_states", out_a, out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse


_derivatives = _gradients.register(_names)
