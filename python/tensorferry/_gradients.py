"""What torch's autograd does with the ops: gradients of some, and a refusal in backward() by the others.

Formulas are written in torch's own operations, at least in float32, and can be differentiated
again. Roundings in the middle of an op count as the identity. What an op keeps for them are its
inputs, and of add_rms_norm its sum, which is an output anyway. No op has forward-mode derivatives:
all but sample refuse arguments with a tangent, which would be lost in silence.
"""

import torch
from torch.autograd import forward_ad

from tensorferry import errors


def _wide(*tensors):
    """In float32, or wider where they are."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return tuple(tensor.to(dtype) for tensor in tensors)


def _summed(grad, like):
    """Over all sizes but the last, as weights and biases are used by every row."""
    return grad.reshape(-1, grad.shape[-1]).sum(0).to(like.dtype)


def fused_add_gelu(grad, x, bias, approximate="none"):
    """Gradients of gelu(x + bias): (for x, for bias)."""
    wide, x_wide, bias_wide = _wide(grad, x, bias)
    inner = torch.ops.aten.gelu_backward(wide, x_wide + bias_wide, approximate=approximate)
    return inner.to(x.dtype), _summed(inner, bias)


def element_wise_mul_add(grad, a, b):
    """Gradients of a * b + c: (for a, for b, for c)."""
    wide, a_wide, b_wide = _wide(grad, a, b)
    return (wide * b_wide).to(a.dtype), (wide * a_wide).to(b.dtype), grad


def _silu(grad, x):
    sigmoid = torch.sigmoid(x)
    return x * sigmoid, grad * sigmoid * (1 + x * (1 - sigmoid))


def _gelu(approximate):
    def both(grad, x):
        return (
            torch.nn.functional.gelu(x, approximate=approximate),
            torch.ops.aten.gelu_backward(grad, x, approximate=approximate),
        )

    return both


# By op: (gradient of the product for the gate, first half) -> (gate, gradient for the first half).
GATES = {
    "silu_and_mul": _silu,
    "gelu_and_mul": _gelu("none"),
    "gelu_tanh_and_mul": _gelu("tanh"),
}


def gated(name, grad, x):
    """Gradient of gate(first half) * second half, for x."""
    wide, x_wide = _wide(grad, x)
    first, second = x_wide.chunk(2, dim=-1)
    gate, for_first = GATES[name](wide * second, first)
    return torch.cat((for_first, wide * gate), -1).to(x.dtype)


def rms_norm(grad, x, weight, eps):
    """Gradients of x / sqrt(mean of squares + eps) * weight: (for x, for weight).

    With r = 1 / sqrt(mean(x^2) + eps) and g = grad * weight, over the last size:
    r * g - x * r^3 * mean(g * x), and grad * x * r summed over the rows.
    """
    grad, x_wide, weight_wide = _wide(grad, x, weight)
    scale = torch.rsqrt(x_wide.square().mean(-1, keepdim=True) + eps)
    normed, inner = x_wide * scale, grad * weight_wide
    for_x = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
    return for_x.to(x.dtype), _summed(grad * normed, weight)


def add_rms_norm(grad_out, grad_total, total, weight, eps):
    """Gradients of (rms_norm of the total, the total): (for each of the two that were added, for weight)."""
    for_total, for_weight = rms_norm(grad_out, total, weight, eps)
    return for_total + grad_total, for_weight


# ---- registration -------------------------------------------------------------------------------


def _keep(count):
    """Keeps so many of the first inputs."""

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:count])

    return keep


def _keep_for_norm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.eps = inputs[2]


def _keep_total(ctx, inputs, output):
    ctx.save_for_backward(output[1], inputs[2])
    ctx.eps = inputs[3]


def _backward_of_sum(ctx, grad_out, grad_total):
    for_sum, for_weight = add_rms_norm(grad_out, grad_total, *ctx.saved_tensors, ctx.eps)
    return for_sum, for_sum, for_weight, None


def _backward_of_gate(name):
    return lambda ctx, grad: gated(name, grad, *ctx.saved_tensors)


# By op: (backward, what keeps for it).
_BACKWARD = {
    "fused_add_gelu": (lambda ctx, grad: fused_add_gelu(grad, *ctx.saved_tensors), _keep(2)),
    "fused_add_gelu_tanh": (
        lambda ctx, grad: fused_add_gelu(grad, *ctx.saved_tensors, "tanh"), _keep(2)),
    "element_wise_mul_add": (
        lambda ctx, grad: element_wise_mul_add(grad, *ctx.saved_tensors), _keep(2)),
    "rms_norm": (
        lambda ctx, grad: (*rms_norm(grad, *ctx.saved_tensors, ctx.eps), None), _keep_for_norm),
    "add_rms_norm": (_backward_of_sum, _keep_total),
    **{name: (_backward_of_gate(name), _keep(1)) for name in GATES},
}


class _NoGradient(torch.autograd.Function):
    """Returns the tensor unchanged; backward() through it raises Unsupported."""

    @staticmethod
    def forward(ctx, text, tensor, *inputs):
        ctx.text = text
        ctx.alike = [(x.shape, x.dtype) for x in (tensor, *inputs)]
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx, grad):
        # torch.compile traces this in advance, so an op refuses, which raises when it runs.
        refuse = torch.ops.tensorferry._no_gradient
        return None, *(refuse(grad, shape, dtype, ctx.text) for shape, dtype in ctx.alike)


def _no_gradient(grad, size, dtype, text):
    raise errors.Unsupported(text)


def _define_no_gradient(library):
    library.define("_no_gradient(Tensor grad, SymInt[] size, ScalarType dtype, str text) -> Tensor")
    library.impl("_no_gradient", _no_gradient, "CompositeExplicitAutograd")
    torch.library.register_fake(
        "tensorferry::_no_gradient",
        lambda grad, size, dtype, text: grad.new_empty(size, dtype=dtype),
        lib=library,
    )


def _refuse_leaf(name, argument, tensor):
    """Refuses to overwrite a leaf that requires a gradient, as torch's in-place ops do."""
    base = tensor if tensor._base is None else tensor._base
    if tensor.requires_grad and base.is_leaf:
        raise errors.InvalidArgument(
            f"{name} writes its {argument}, a leaf that requires a gradient, or a view of one: pass a "
            "copy, or call it under torch.no_grad() or torch.inference_mode()"
        )


def _refuse_tangents(name, values):
    """Raises Unsupported for a tensor with a tangent, as of torch.func.jvp."""
    if forward_ad._current_level < 0:  # nobody differentiates forward
        return
    for value in values:
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise errors.Unsupported(
                f"{name} has no forward-mode derivative, and an argument of it has a tangent: "
                "differentiate torch's own operations (tensorferry.layers: "
                "use_custom_kernels=False), or take the tangent away (forward_ad.unpack_dual)"
            )


def _without_tangents(name, kernel):
    def call(keyset, *arguments, **named):
        _refuse_tangents(name, (*arguments, *named.values()))
        return kernel(keyset, *arguments, **named)

    return call


class _RefusingTangents(torch.library.Library):
    """Whose kernels for autograd refuse tangents, also those that torch.library makes."""

    def impl(self, op_name, fn, dispatch_key="", *, with_keyset=False, **options):
        if dispatch_key != "Autograd" or not with_keyset:
            raise errors.Internal(f"torch.library registers {op_name} as {dispatch_key!r}")
        fn = _without_tangents(op_name, fn)
        super().impl(op_name, fn, dispatch_key, with_keyset=with_keyset, **options)


def _add_rms_norm_in_place(x, residual, weight, eps=1e-6):
    """By the form that is not in place, whose copies torch differentiates."""
    out, total = torch.ops.tensorferry.add_rms_norm(x, residual, weight, eps)
    x.copy_(out)
    residual.copy_(total)


def _autograd_kernel(name, where_needed):
    """The op where nothing requires a gradient; else where_needed(below, arguments, named ones)."""
    op = getattr(torch.ops.tensorferry, name).default

    def call(keyset, *arguments, **named):
        def below():
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments, **named)

        if torch.is_grad_enabled() and any(
            isinstance(value, torch.Tensor) and value.requires_grad
            for value in (*arguments, *named.values())
        ):
            return where_needed(below, arguments, named)
        return below()

    return call


def _in_place(below, arguments, named):
    return _add_rms_norm_in_place(*arguments, **named)


def _refusing(name):
    """Where the op `name` has no gradient: it runs, and backward() through what it wrote is refused."""
    schema = getattr(torch.ops.tensorferry, name).default._schema.arguments

    def call(below, arguments, named):
        values = {argument.name: value for argument, value in zip(schema, arguments)} | named
        tensors = {key: x for key, x in values.items() if isinstance(x, torch.Tensor)}
        needing = [key for key, x in tensors.items() if x.requires_grad]
        written = [
            argument.name for argument in schema
            if argument.alias_info is not None and argument.name in tensors
        ]
        for key in written:
            _refuse_leaf(name, key, tensors[key])
        results = below()
        text = (
            f"{name} has no gradient, and its {needing[0]} requires one: call it under "
            "torch.no_grad() or torch.inference_mode(), or train with torch's own operations "
            "(tensorferry.layers: use_custom_kernels=False)"
        )
        outputs = results if isinstance(results, tuple) else () if results is None else (results,)
        for tensor in (*(tensors[key] for key in written), *outputs):
            if tensor.is_floating_point() and not tensor.is_inference():
                others = (x for key in needing if (x := tensors[key]) is not tensor)
                _NoGradient.apply(text, tensor, *others)
        return results

    return call


def register(names, definitions):
    """For all these ops, which have been defined in a library. Returns what keeps the registrations."""
    library = _RefusingTangents("tensorferry", "FRAGMENT")
    _define_no_gradient(definitions)
    for name in names:
        if name in _BACKWARD:
            backward, keep = _BACKWARD[name]
            torch.library.register_autograd(
                f"tensorferry::{name}", backward, setup_context=keep, lib=library
            )
        elif name == "add_rms_norm_":
            kernel = _autograd_kernel(name, _in_place)
            library.impl(name, kernel, "Autograd", with_keyset=True)
        elif name != "sample":  # tokens have no gradients, as those of torch.multinomial
            kernel = _autograd_kernel(name, _refusing(name))
            library.impl(name, kernel, "Autograd", with_keyset=True)
    return library
