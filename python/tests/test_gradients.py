"""Gradients of the ops against torch's formulas in float64; ops without one say so in backward()."""

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _formulas, _gradients, kernels, layers  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

from row_ops import function_of  # noqa: E402

ops = torch.ops.tensorferry
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
of_each_type = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
SHAPE = (3, 5, 32)
GATES = [name for name in kernels.__all__ if name.endswith("_and_mul")]


def inputs_of(name, dtype=torch.float32, device="cpu"):
    def normal(*shape):
        made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(
            len(shape) + sum(shape) + len(made_before)))
        made_before.append(made)
        return made.to(dtype).to(device).requires_grad_()

    made_before = []
    rows, last = SHAPE, SHAPE[-1:]
    return {
        "fused_add_gelu": lambda: (normal(*rows), normal(*last)),
        "fused_add_gelu_tanh": lambda: (normal(*rows), normal(*last)),
        "element_wise_mul_add": lambda: (normal(*rows), normal(*rows), normal(*rows)),
        "rms_norm": lambda: (normal(*rows), normal(*last)),
        "add_rms_norm": lambda: (normal(*rows), normal(*rows), normal(*last)),
    }.get(name, lambda: (normal(*rows[:-1], 2 * rows[-1]),))()


NAMES = ["fused_add_gelu", "fused_add_gelu_tanh", "element_wise_mul_add", "rms_norm", "add_rms_norm",
         *GATES]


of_each_op = pytest.mark.parametrize("name", NAMES)


def gradients(function, inputs, create_graph=False):
    """Gradients of a sum of the outputs with weights that are no symmetry of any of them."""
    out = function(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    generator = torch.Generator().manual_seed(1)
    total = sum((part.double() * torch.randn(part.shape, generator=generator, dtype=torch.float64)
                 .to(part.device)).sum() for part in outs)
    return torch.autograd.grad(total, inputs, create_graph=create_graph)


def assert_near(mine, right, dtype):
    """By the size of each element, and for what cancels by that of its tensor's elements."""
    rounding = torch.finfo(dtype).eps / 2
    # In float32, torch's own tanh, exp and erf are part of the error.
    roundings = 64 if dtype == torch.float32 else 6
    allowed = roundings * rounding * (right.abs() + right.square().mean().sqrt())
    assert mine.dtype == dtype
    assert ((mine.double() - right).abs() <= allowed).all()


@on_each_device
@of_each_type
@of_each_op
def test_gradients_are_those_of_torchs_formula_in_float64(name, dtype, device):
    inputs = inputs_of(name, dtype, device)
    wide = tuple(x.detach().double().cpu().requires_grad_() for x in inputs)
    right = gradients(formula_in_float64(name), wide)
    for mine, exact in zip(gradients(function_of(name), inputs), right):
        assert_near(mine.cpu(), exact, dtype)


def formula_in_float64(name):
    """_formulas' own calculate in float32."""
    def norm(x, weight, eps=1e-6):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def gated(gate):
        return lambda x: gate(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]

    gelu = torch.nn.functional.gelu
    return {
        "fused_add_gelu": lambda x, bias: gelu(x + bias),
        "fused_add_gelu_tanh": lambda x, bias: gelu(x + bias, approximate="tanh"),
        "element_wise_mul_add": lambda a, b, c: a * b + c,
        "silu_and_mul": gated(torch.nn.functional.silu),
        "gelu_and_mul": gated(gelu),
        "gelu_tanh_and_mul": gated(lambda x: gelu(x, approximate="tanh")),
        "rms_norm": norm,
        "add_rms_norm": lambda x, residual, weight: (norm(x + residual, weight), x + residual),
    }[name]


class InFloat64(torch.autograd.Function):
    """The exact formula with the op's own backward, to be checked by gradcheck."""

    @staticmethod
    def forward(ctx, name, *inputs):
        ctx.name = name
        out = formula_in_float64(name)(*inputs)
        ctx.save_for_backward(*inputs, *((out[1],) if name == "add_rms_norm" else ()))
        return out

    @staticmethod
    def backward(ctx, *grads):
        kept, name = ctx.saved_tensors, ctx.name
        if name == "add_rms_norm":
            total, weight = _gradients.add_rms_norm(*grads, kept[3], kept[2], 1e-6)
            return None, total, total, weight
        if name == "rms_norm":
            return None, *_gradients.rms_norm(*grads, *kept, 1e-6)
        if name.startswith("fused_add_gelu"):
            form = "tanh" if name.endswith("tanh") else "none"
            return None, *_gradients.fused_add_gelu(*grads, *kept, form)
        if name == "element_wise_mul_add":
            return None, *_gradients.element_wise_mul_add(*grads, *kept[:2])
        return None, _gradients.gated(name, *grads, *kept)


@of_each_op
def test_the_backward_formulas_pass_gradcheck_twice(name):
    def function(*inputs):
        return InFloat64.apply(name, *inputs)

    inputs = tuple(x[..., :2, :, :8].detach().requires_grad_() if x.dim() == 3
                   else x[:8].detach().requires_grad_()
                   for x in inputs_of(name, torch.float64))
    if name in ("fused_add_gelu", "fused_add_gelu_tanh", "rms_norm", "add_rms_norm"):
        assert inputs[-1].shape == inputs[0].shape[-1:]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@of_each_op
def test_only_what_requires_a_gradient_gets_one(name):
    inputs = inputs_of(name)
    for i, one in enumerate(inputs):
        alone = [x.detach() for x in inputs]
        alone[i] = one
        out = function_of(name)(*alone)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        if name != "add_rms_norm":
            assert one.grad is not None
    with torch.no_grad():
        out = function_of(name)(*inputs)
    assert not (out[0] if isinstance(out, tuple) else out).requires_grad


@on_each_device
def test_the_layers_norm_has_torchs_gradient(device):
    x = torch.randn(7, 64, device=device, requires_grad=True)
    residual = torch.randn(7, 64, device=device, requires_grad=True)
    found = {}
    for use in (True, False):
        norm = layers.RMSNorm(64, use_custom_kernels=use).to(device)
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 2, 64))
        out, total = norm(x, residual)
        loss = (norm(out) * torch.arange(64, device=device)).sum() + total.square().sum()
        found[use] = torch.autograd.grad(loss, (x, residual, norm.weight))
    for mine, theirs in zip(found[True], found[False]):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


@on_each_device
def test_the_gated_mlp_learns(device):
    torch.manual_seed(3)
    mlp = layers.CustomGatedMLP(16, 32).to(device)
    again = layers.CustomGatedMLP(16, 32, use_custom_kernels=False).to(device)
    again.load_state_dict(mlp.state_dict())
    x = torch.randn(8, 16, device=device)
    for model in (mlp, again):
        model(x).square().sum().backward()
    for mine, theirs in zip(mlp.parameters(), again.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


@on_each_device
def test_the_norm_in_place_has_the_gradient_of_the_one_that_is_not(device):
    x, residual, weight = inputs_of("add_rms_norm", device=device)

    def in_place(x, residual, weight):
        x, residual = x * 1, residual * 1  # leaves cannot be written over
        kernels.add_rms_norm_(x, residual, weight)
        kernels.add_rms_norm_(x, residual, weight)  # as the next layer does
        return x, residual

    def apart(x, residual, weight):
        return kernels.add_rms_norm(*kernels.add_rms_norm(x, residual, weight), weight)

    for mine, right in zip(gradients(in_place, (x, residual, weight)),
                           gradients(apart, (x, residual, weight))):
        torch.testing.assert_close(mine, right)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        kernels.add_rms_norm_(x, residual, weight)


def test_what_is_written_in_place_is_no_longer_what_autograd_has_kept():
    """Or the gradient of the product would be that of other numbers."""
    x, residual, weight = torch.randn(2, 8), torch.randn(2, 8), torch.ones(8)
    q, k, table = torch.randn(2, 1, 8), torch.randn(2, 1, 8), torch.rand(4, 8)
    caches = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8)
    slots, factor = torch.tensor([0, 1], dtype=torch.int32), torch.ones((), requires_grad=True)
    for write, written in (
        (lambda: kernels.add_rms_norm_(x, residual, weight), (x, residual)),
        (lambda: kernels.rope_(torch.arange(2), q, k, table), (q, k)),
        (lambda: kernels.store_kvcache(k, k.clone(), *caches, slots), caches),
    ):
        products = [factor * tensor for tensor in written]
        write()
        for product in products:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.sum().backward()


def refused():
    q, k = torch.randn(2, 4, 64), torch.randn(2, 2, 64)
    caches = torch.zeros(1, 16, 2, 64), torch.zeros(1, 16, 2, 64)
    positions, table = torch.arange(2), torch.rand(16, 64)
    slots = torch.tensor([0, 1], dtype=torch.int32)
    starts = torch.tensor([0, 2], dtype=torch.int32)
    blocks = torch.zeros(2, 1, dtype=torch.int32)
    lengths = torch.tensor([1, 2], dtype=torch.int32)
    qkv, weight = torch.randn(2, 8 * 64), torch.ones(64)
    yield "rope", (positions, q, k, table), 1, "q"
    yield "rope_", (positions, q, k, table), 2, "k"
    yield "store_kvcache", (k, k.clone(), *caches, slots), 1, "v"
    yield "qk_norm_rope_store", (qkv, 4, 2, weight, weight.clone(), positions, table), 0, "qkv"
    yield ("qk_norm_rope_store", (qkv, 4, 2, weight, weight.clone(), positions, table), 3,
           "q_weight")
    yield "attention_decode", (q, *caches, blocks, lengths, 0.1), 0, "q"
    yield "attention_prefill", (q, k, k.clone(), starts, starts, 2, 0.1), 2, "v"
    lse = torch.randn(2, 4)
    yield "merge_attention_states", (q, lse, q.clone(), lse.clone()), 3, "lse_b"


def written_by(changes, arguments, results):
    """What the op writes: its results, and the arguments that it changes."""
    changed = [x for change, x in zip(changes, arguments) if change]
    return [*changed, *(results if isinstance(results, tuple) else [] if results is None else [results])]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "which", "said"), list(refused()), ids=lambda x: x if isinstance(
        x, str) else "")
def test_an_op_without_a_gradient_runs_and_backward_says_so(name, arguments, which, said, compiled):
    function = getattr(kernels, name)
    # Read here: torch.compile of 2.11 does not read schemas in what it compiles.
    changes = [argument.alias_info is not None for argument in getattr(ops, name).default._schema.arguments]
    leaf = arguments[which].clone().requires_grad_()

    def run():
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
        copies[which] = leaf * 1  # leaves cannot be written
        return written_by(changes, copies, function(*copies))

    if compiled:
        torch.compiler.reset()
        run = torch.compile(run, backend="aot_eager", fullgraph=True)
    found = run()
    with torch.no_grad():
        right = run()
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine.detach(), theirs)
        text = f"{name} has no gradient, and its {said} requires one: call it under"
        for end in (lambda: mine.sum().backward(retain_graph=True),
                    lambda: torch.autograd.grad(mine.sum(), leaf, retain_graph=True)):
            with pytest.raises(tensorferry.Unsupported, match=text):
                end()
    with torch.inference_mode():
        run()


def test_what_needs_no_gradient_of_such_an_op_has_its_own():
    weight, x = torch.ones(64, requires_grad=True), torch.randn(2, 4, 64)
    q, _ = kernels.rope(torch.arange(2), kernels.rms_norm(x, weight), x[:, :2], torch.rand(16, 64))
    other = (weight * 3).sum()
    other.backward()
    assert torch.equal(weight.grad, torch.full((64,), 3.0))
    with pytest.raises(tensorferry.Unsupported, match="rope has no gradient, and its q requires one"):
        (other.detach() + q.sum()).backward()


def test_caches_that_are_views_are_written_and_backward_says_so():
    caches = torch.zeros(2, 1, 16, 2, 64)
    k = torch.randn(2, 2, 64, requires_grad=True)
    slots = torch.tensor([0, 1], dtype=torch.int32)
    kernels.store_kvcache(k, k, caches[0], caches[1], slots)
    assert torch.equal(caches[1, 0, :2], k)
    with pytest.raises(tensorferry.Unsupported, match="store_kvcache has no gradient, and its k requires"):
        caches.sum().backward()


def test_a_quantized_result_is_written_though_the_weight_requires_a_gradient():
    x, weight = torch.randn(3, 16), torch.ones(16, requires_grad=True)
    for dtype in (torch.uint8, torch.float8_e4m3fn):
        result = torch.zeros(3, 16, dtype=dtype)
        kernels.rms_norm_static_fp8_quant(result, x, weight, torch.ones(1), 1e-6)
        assert result.view(torch.uint8).any()


def test_a_leaf_that_requires_a_gradient_is_not_written_over():
    q, k = torch.randn(2, 4, 64, requires_grad=True), torch.randn(2, 2, 64)
    before = q.detach().clone()
    for written in (q, q[:]):
        with pytest.raises(tensorferry.InvalidArgument, match="rope_ writes its q, a leaf that requires a"):
            kernels.rope_(torch.arange(2), written, k, torch.rand(16, 64))
    assert torch.equal(q, before)


def called_with(name):
    """(a call of the op, the one of its tensors that the call takes)"""
    if name in NAMES:
        first, *others = (x.detach() for x in inputs_of(name))
        return lambda x: getattr(ops, name)(x, *others), first
    if name == "add_rms_norm_":
        first, *others = (x.detach() for x in inputs_of("add_rms_norm"))
        return lambda x: ops.add_rms_norm_(x, *others), first
    arguments, which = next((list(a), w) for found, a, w, _ in refused() if found == name)

    def call(x):
        return getattr(ops, name)(*arguments[:which], x, *arguments[which + 1 :])

    return call, arguments[which]


ALL_NAMES = [*NAMES, "add_rms_norm_", *dict.fromkeys(name for name, *_ in refused())]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_forward_mode_is_refused_not_answered_with_zeros(name):
    call, x = called_with(name)
    said = f"{name} has no forward-mode derivative"
    with pytest.raises(tensorferry.Unsupported, match=said):
        torch.func.jvp(call, (x,), (torch.ones_like(x),))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with torch.no_grad(), pytest.raises(tensorferry.Unsupported, match=said):
            call(dual)
        call(x)  # nothing to lose


def test_forward_mode_is_refused_by_jacfwd_and_for_named_arguments():
    with pytest.raises(tensorferry.Unsupported, match="no forward-mode derivative"):
        torch.func.jacfwd(kernels.silu_and_mul)(torch.randn(2, 8))
    x = torch.randn(2, 8)
    with forward_ad.dual_level():
        weight = forward_ad.make_dual(torch.ones(8), torch.ones(8))
        with pytest.raises(tensorferry.Unsupported, match="no forward-mode derivative"):
            ops.rms_norm(x, weight=weight)
        logits = forward_ad.make_dual(x, x)
        assert kernels.sample(logits).tolist() == x.argmax(-1).tolist()


def test_tokens_have_no_gradient_and_need_none():
    logits = torch.randn(2, 10, requires_grad=True)
    assert not kernels.sample(logits, torch.ones(2), seed=1).requires_grad


@of_each_op
def test_torch_finds_no_fault_with_the_gradients_registration(name):
    torch.library.opcheck(
        getattr(ops, name).default, inputs_of(name),
        test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"))


def test_compile_takes_the_gradients():
    def loss(x, residual, weight, gate):
        out, total = kernels.add_rms_norm(x, residual, weight)
        total = total.clone()  # the first op keeps its own for its gradient
        kernels.add_rms_norm_(out, total, weight)
        return (kernels.silu_and_mul(out @ gate) * 3).sum() + total.square().sum()

    inputs = (*inputs_of("add_rms_norm"), torch.randn(32, 8, requires_grad=True))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    right = torch.autograd.grad(loss(*inputs), inputs)
    for mine, theirs in zip(torch.autograd.grad(compiled(*inputs), inputs), right):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
