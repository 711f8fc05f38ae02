"""The ops as torch operators, against torch's formulas in float64, and as torch asks of operators."""

import os
import subprocess
import sys

import numpy as np
import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _formulas, kernels  # noqa: E402

from row_ops import function_of  # noqa: E402

ops = torch.ops.tensorferry
GATES = [name for name in kernels.__all__ if name.endswith("_and_mul")]

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

on_each_device = pytest.mark.parametrize("device", DEVICES)
of_each_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(shape, dtype, device):
    return torch.randn(shape, dtype=torch.float32).to(dtype).to(device)


# The rounding of results to their type, on their way: docs/kernels/accuracy.md.
ROUNDINGS = {"rms_norm": 2, "add_rms_norm": 2}


def terms_of(name, arguments, right):
    """The magnitudes that each element is the sum of, for each result; arguments are in float64."""
    first = arguments[0]
    if name == "element_wise_mul_add":
        return [(first * arguments[1]).abs() + arguments[2].abs()]
    if name.startswith("fused_add_gelu"):
        return [first.abs() + arguments[1].abs()]
    if name == "add_rms_norm":
        total = first.abs() + arguments[1].abs()
        scale = torch.rsqrt((first + arguments[1]).square().mean(-1, keepdim=True))
        return [total * scale * arguments[2].abs(), total]
    if name.endswith("_and_mul"):
        return [first.chunk(2, -1)[0].abs() * first.chunk(2, -1)[1].abs()]
    if name == "rope":  # cosines and sines are at most 1
        half = arguments[1].shape[-1] // 2
        return [x.abs() + x.roll(half, -1).abs() for x in arguments[1:3]]
    return [part.abs() for part in right]


def wide(x):
    if torch.is_tensor(x) and x.is_floating_point():
        return x.double().cpu()
    return x.cpu() if torch.is_tensor(x) else x


def tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def each_element_is_right(name, ours, formula, arguments):
    """By its own size and that of what it was made of, as docs/kernels/accuracy.md says."""
    arguments = tuple(map(wide, arguments))
    # The formulas compute in float32: 16 of its roundings are allowed twice, for theirs, too.
    right = [x.double() for x in tuple_of(formula(*arguments))]
    # An intermediate value may be rounded as a subnormal number and then be multiplied by a weight.
    factor = max([1.0] + [x.abs().max().item() for x in arguments
                          if isinstance(x, torch.Tensor) and x.numel()])
    for mine, exact, terms in zip(tuple_of(ours), right, terms_of(name, arguments, right)):
        assert mine.shape == exact.shape
        info = torch.finfo(mine.dtype)
        allowed = (ROUNDINGS.get(name, 1) * info.eps / 2 * exact.abs() + 2 * 16 * 2**-24 * terms
                   + max(ROUNDINGS.get(name, 1) * factor * info.smallest_normal * info.eps, 2**-126))
        wrong = (mine.double().cpu() - exact).abs() > allowed
        assert not wrong.any(), (name, mine.cpu()[wrong][:4], exact[wrong][:4], allowed[wrong][:4])


def each_row_is_right(ours, formula, arguments):
    """For attention: each row of a head by itself, as FindWrongRow of the kernels' own tests."""
    right = formula(*map(wide, arguments)).double()
    theirs = formula(*arguments).double().cpu()
    error = (ours.double().cpu() - right).abs().amax(-1)
    rounding = torch.finfo(ours.dtype).eps / 2
    allowed = torch.maximum(2 * (theirs - right).abs().amax(-1),
                            6 * rounding * right.square().mean(-1).sqrt())
    assert (error <= allowed + 1e-7).all()


def test_a_wrong_small_element_beside_a_great_one_is_found():
    x, one, none = torch.tensor([[1000.0, 1.0]]), torch.ones(1, 2), torch.zeros(1, 2)
    formula = _formulas.element_wise_mul_add
    each_element_is_right("element_wise_mul_add", x.clone(), formula, (x, one, none))
    wrong = torch.tensor([[1000.0, 1.0001]])
    with pytest.raises(AssertionError):
        each_element_is_right("element_wise_mul_add", wrong, formula, (x, one, none))


ROWS = [(1, 8), (7, 769), (3, 5, 128), (0, 16), (129, 1024)]


@on_each_device
@of_each_type
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("name", ["fused_add_gelu", "fused_add_gelu_tanh", "rms_norm", "add_rms_norm",
                                  "element_wise_mul_add", *GATES])
def test_each_element_of_rows_is_right(name, shape, dtype, device):
    def x():
        return normal(shape, dtype, device)

    arguments = {
        "fused_add_gelu": lambda: (x(), normal(shape[-1:], dtype, device)),
        "fused_add_gelu_tanh": lambda: (x(), normal(shape[-1:], dtype, device)),
        "rms_norm": lambda: (x(), normal(shape[-1:], dtype, device)),
        "add_rms_norm": lambda: (x(), x(), normal(shape[-1:], dtype, device)),
        "element_wise_mul_add": lambda: (x(), x(), x()),
    }.get(name, lambda: (normal((*shape[:-1], 2 * shape[-1]), dtype, device),))()
    ours = function_of(name)(*arguments)
    if 0 in shape:
        assert (ours[0] if isinstance(ours, tuple) else ours).numel() == 0
        return
    each_element_is_right(name, ours, getattr(_formulas, name), arguments)


@on_each_device
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_bias_and_gelu_are_torchs_own_to_a_share_of_the_element(approximate, device):
    x, bias = normal((16, 128, 1111), torch.float32, device), normal((1111,), torch.float32, device)
    ours = kernels.fused_add_gelu(x, bias, approximate)
    theirs = torch.nn.functional.gelu(x + bias, approximate=approximate)
    # Below -2.5 torch's sum cancels. On a GPU ours is the same sum; elsewhere its error is allowed.
    absolute = 1e-8 if (device, approximate) == ("cuda", "none") else 2e-6
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=absolute)
    with pytest.raises(tensorferry.InvalidArgument, match="approximate is 'fast'"):
        kernels.fused_add_gelu(x, bias, "fast")


@on_each_device
def test_views_of_a_projection_need_no_copy(device):
    qkv = normal((9, 4 * 64), torch.bfloat16, device)
    q = qkv[:, 64:192].unflatten(-1, (2, 64))
    weight = normal((64,), torch.bfloat16, device)
    assert not q.is_contiguous()
    assert torch.equal(kernels.rms_norm(q, weight), kernels.rms_norm(q.contiguous(), weight))


@on_each_device
def test_the_in_place_form_gives_the_same(device):
    x, residual = (normal((5, 256), torch.bfloat16, device) for _ in range(2))
    weight = normal((256,), torch.bfloat16, device)
    out, total = kernels.add_rms_norm(x, residual, weight)
    kernels.add_rms_norm_(x, residual, weight)
    assert torch.equal(x, out)
    assert torch.equal(residual, total)


def table(positions, size, device):
    angles = torch.arange(positions).unsqueeze(1) / 10000 ** (torch.arange(size // 2) / size * 2)
    return torch.cat((angles.cos(), angles.sin()), -1).float().to(device)


def tokens(device, dtype=torch.bfloat16, count=6, q_heads=4, kv_heads=2, size=64, pages=3):
    """The arguments of qk_norm_rope_store."""
    slots = torch.randperm(pages * 16)[:count].to(torch.int32)
    slots[count // 2] = -1
    return dict(
        qkv=normal((count, (q_heads + 2 * kv_heads) * size), dtype, device),
        q_heads=q_heads,
        kv_heads=kv_heads,
        q_weight=normal((size,), dtype, device),
        k_weight=normal((size,), dtype, device),
        positions=torch.randint(0, 100, (count,)).to(device),
        cos_sin_cache=table(100, size, device),
        k_cache=torch.zeros((pages, 16, kv_heads, size), dtype=dtype, device=device),
        v_cache=torch.zeros((pages, 16, kv_heads, size), dtype=dtype, device=device),
        slot_mapping=slots.to(device),
    )


@on_each_device
@of_each_type
def test_one_pass_is_the_three_ops_after_each_other(dtype, device):
    one, three = tokens(device, dtype), None
    three = {k: v.clone() if torch.is_tensor(v) else v for k, v in one.items()}
    q, k = kernels.qk_norm_rope_store(**one)
    heads = three["qkv"].unflatten(-1, (8, 64))
    q3, k3, v3 = heads.split((4, 2, 2), dim=1)
    q3 = kernels.rms_norm(q3, three["q_weight"])
    k3 = kernels.rms_norm(k3, three["k_weight"])
    q3, k3 = kernels.rope(three["positions"], q3, k3, three["cos_sin_cache"])
    kernels.store_kvcache(k3, v3, three["k_cache"], three["v_cache"], three["slot_mapping"])
    for mine, theirs in ((q, q3), (k, k3), (one["k_cache"], three["k_cache"]),
                         (one["v_cache"], three["v_cache"])):
        difference = (mine.float() - theirs.float()).abs()
        assert (difference <= 0.02 * theirs.float().abs() + 1e-6).all()
    assert three["k_cache"].abs().sum() > 0


@on_each_device
def test_rope_takes_nano_vllms_table(device):
    q, k = normal((5, 4, 64), torch.bfloat16, device), normal((5, 2, 64), torch.bfloat16, device)
    positions, cache = torch.arange(5, device=device), table(16, 64, device)
    with_one = kernels.rope(positions, q, k, cache.unsqueeze(1))
    assert all(map(torch.equal, with_one, kernels.rope(positions, q, k, cache)))
    each_element_is_right("rope", with_one, _formulas.rope, (positions, q, k, cache))
    kernels.rope_(positions, q, k, cache)
    assert torch.equal(q, with_one[0])
    assert torch.equal(k, with_one[1])


@on_each_device
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_engines_positions_slots_and_angles_are_taken_as_they_are(index_dtype, cache_dtype, device):
    same = tokens(device)
    angles = same["cos_sin_cache"].to(cache_dtype)
    same["cos_sin_cache"] = angles.float()
    theirs = {k: v.clone() if torch.is_tensor(v) else v for k, v in same.items()}
    theirs["positions"] = same["positions"].to(index_dtype)
    theirs["slot_mapping"] = same["slot_mapping"].to(index_dtype)
    theirs["cos_sin_cache"] = angles
    assert all(map(torch.equal, kernels.qk_norm_rope_store(**same),
                   kernels.qk_norm_rope_store(**theirs)))
    assert torch.equal(same["k_cache"], theirs["k_cache"])
    q, k = (x.unflatten(-1, (-1, 64)) for x in same["qkv"].split((256, 256), -1))
    assert all(map(torch.equal,
                   kernels.rope(same["positions"], q, k, same["cos_sin_cache"]),
                   kernels.rope(theirs["positions"], q, k, angles)))


@on_each_device
def test_rows_of_a_projection_are_stored_without_a_reshape(device):
    part = tokens(device)
    _, k, v = part["qkv"].split((256, 128, 128), -1)
    caches = [torch.zeros_like(part["k_cache"]) for _ in range(2)]
    kernels.store_kvcache(k, v, *caches, part["slot_mapping"].long())
    kernels.store_kvcache(k.unflatten(-1, (2, 64)), v.unflatten(-1, (2, 64)), part["k_cache"],
                          part["v_cache"], part["slot_mapping"])
    assert torch.equal(caches[0], part["k_cache"])
    assert torch.equal(caches[1], part["v_cache"])


@on_each_device
def test_fp8_caches_hold_what_torch_would_store(device):
    k, v = (normal((4, 2, 64), torch.bfloat16, device) * 300 for _ in range(2))
    caches = [torch.zeros((2, 16, 2, 64), dtype=torch.float8_e4m3fn, device=device)
              for _ in range(4)]
    slots = torch.tensor([3, -1, 17, 0], dtype=torch.int32, device=device)
    kernels.store_kvcache(k, v, caches[0], caches[1], slots, 0.5, 2.0)
    _formulas.store_kvcache(k, v, caches[2], caches[3], slots, 0.5, 2.0)
    for mine, theirs in ((caches[0], caches[2]), (caches[1], caches[3])):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


@on_each_device
@pytest.mark.parametrize("size", [64, 128])
def test_each_row_of_attention_is_as_good_as_torchs(size, device):
    lengths = [1, 17, 100]
    blocks = torch.randperm(24).reshape(3, 8).to(torch.int32).to(device)
    k_cache, v_cache = (normal((24, 16, 2, size), torch.bfloat16, device) for _ in range(2))
    q = normal((3, 4, size), torch.bfloat16, device)
    context = torch.tensor(lengths, dtype=torch.int32, device=device)
    arguments = (q, k_cache, v_cache, blocks, context, size**-0.5)
    each_row_is_right(kernels.attention_decode(*arguments), _formulas.attention_decode, arguments)
    starts = torch.tensor([0, 5, 30, 31], dtype=torch.int32, device=device)
    q, k, v = (normal((31, heads, size), torch.bfloat16, device) for heads in (4, 2, 2))
    for causal in (True, False):
        arguments = (q, k, v, starts, starts, 25, size**-0.5, causal)
        each_row_is_right(
            kernels.attention_prefill(*arguments), _formulas.attention_prefill, arguments
        )
    keys = torch.tensor([0, 20, 60, 61], dtype=torch.int32, device=device)
    arguments = (q, k_cache, v_cache, starts, keys, 25, size**-0.5, True, blocks)
    each_row_is_right(kernels.attention_prefill(*arguments), _formulas.attention_prefill, arguments)


@on_each_device
def test_tokens_are_drawn_as_told(device):
    logits = normal((4, 1000), torch.bfloat16, device)
    assert torch.equal(kernels.sample(logits), logits.argmax(-1))
    heat = torch.tensor([0.0, 1.0, 1.0, 1.0], device=device)
    only = torch.tensor([0, 1, 0, 0], dtype=torch.int32, device=device)
    part = torch.tensor([1.0, 1.0, 0.001, 1.0], device=device)
    drawn = kernels.sample(logits, heat, only, part, seed=3, step=5)
    assert drawn[0] == logits[0].argmax()
    # Tokens that share the largest logit, as bfloat16 has them in one draw of a hundred, are all kept.
    assert torch.equal(logits.gather(1, drawn.long()[:, None])[1:3, 0], logits.amax(-1)[1:3])
    assert torch.equal(drawn, kernels.sample(logits, heat, only, part, seed=3, step=5))
    others = {int(kernels.sample(logits, heat, seed=3, step=step)[3]) for step in range(20)}
    assert len(others) > 5


def checked():
    x, weight = torch.randn(3, 16), torch.randn(16)
    yield ops.fused_add_gelu, (x, weight), {}
    yield ops.fused_add_gelu_tanh, (x, weight), {}
    yield ops.element_wise_mul_add, (x, x, x), {}
    yield from ((getattr(ops, name), (x,), {}) for name in GATES)
    yield ops.rms_norm, (x, weight), {}
    yield ops.add_rms_norm, (x, x.clone(), weight), {}
    yield ops.add_rms_norm_, (x, x.clone(), weight), {}
    part = tokens("cpu", torch.float32)
    q, k = torch.randn(6, 4, 64), torch.randn(6, 2, 64)
    yield ops.rope, (part["positions"], q, k, part["cos_sin_cache"]), {}
    yield ops.rope_, (part["positions"], q, k, part["cos_sin_cache"]), {}
    yield ops.store_kvcache, (k, k.clone(), part["k_cache"], part["v_cache"],
                              part["slot_mapping"]), {}
    yield ops.qk_norm_rope_store, (), part
    yield ops.sample, (torch.randn(3, 100),), {}
    blocks = torch.arange(3, dtype=torch.int32).reshape(1, 3)
    yield (ops.attention_decode,
           (q[:1], part["k_cache"], part["v_cache"], blocks, torch.tensor([30], dtype=torch.int32),
            0.1), {})
    starts = torch.tensor([0, 6], dtype=torch.int32)
    yield ops.attention_prefill, (q, k, k.clone(), starts, starts, 6, 0.1), {}


@pytest.mark.parametrize(("op", "arguments", "named"), list(checked()), ids=lambda x: getattr(
    x, "__name__", ""))
def test_torch_finds_no_fault_with_the_operator(op, arguments, named):
    torch.library.opcheck(op.default, arguments, named,
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@on_each_device
def test_compile_takes_a_layer_whole(backend, device):
    def layer(x, residual, weight, gate_up, part):
        x, residual = kernels.add_rms_norm(x, residual, weight)
        q, k = kernels.qk_norm_rope_store(**part)
        return kernels.silu_and_mul(x @ gate_up) + q.flatten(1)[:, :1], residual + k.sum()

    x, residual = torch.randn(6, 32, device=device), torch.randn(6, 32, device=device)
    weight, gate_up = torch.randn(32, device=device), torch.randn(32, 48, device=device)
    parts = [tokens(device, torch.float32) for _ in range(1)]
    parts.append({k: v.clone() if torch.is_tensor(v) else v for k, v in parts[0].items()})
    eager = layer(x, residual, weight, gate_up, parts[0])
    compiled = torch.compile(layer, fullgraph=True, backend=backend)(
        x, residual, weight, gate_up, parts[1])
    for mine, theirs in zip(compiled, eager):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(parts[0]["k_cache"], parts[1]["k_cache"])


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10),
                    reason="older torch has no stable ABI to register kernels by")
def test_calls_outside_of_autograd_run_no_python_of_ours():
    seen = []

    def note(frame, event, _):
        if event == "call" and "tensorferry" in frame.f_code.co_filename:
            seen.append((frame.f_code.co_filename, frame.f_code.co_name))

    with torch.inference_mode():  # in which these are made, so that nobody counts their versions
        for op, arguments, named in checked():
            call = op.default
            sys.setprofile(note)
            try:
                call(*arguments, **named)
            finally:
                sys.setprofile(None)
            # Those who wait in the generator above are of this file.
            ours = [name for file, name in seen if os.path.dirname(file) != os.path.dirname(__file__)]
            assert not ours, (op, ours)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_functions_pass_autograd_by_where_no_gradient_is_wanted(mode):
    x, weight = torch.randn(3, 16), torch.randn(16)
    with mode(), torch.profiler.profile() as profile:
        kernels.rms_norm(x, weight)
    seen = {event.key for event in profile.key_averages() if event.key.startswith("tensorferry::")}
    assert seen == {"tensorferry::_rms_norm_without_autograd"}
    with torch.profiler.profile() as profile:
        kernels.rms_norm(x.requires_grad_(), weight).sum().backward()
    assert "tensorferry::rms_norm" in {event.key for event in profile.key_averages()}
    assert x.grad is not None


def test_functions_within_a_transform_do_not_pass_autograd_by():
    x, weight = torch.randn(3, 16), torch.randn(16)
    # torch has no transforms of ops registered as ours; without autograd the gradient would be 0.
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: kernels.rms_norm(x, weight).sum())(x)


def test_graphs_and_dispatch_modes_see_the_public_op():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = torch.randn(3, 16), torch.randn(16)

    def norm(x, weight):
        return kernels.rms_norm(x, weight)

    for graph in (make_fx(norm)(x, weight).code, str(torch.jit.trace(norm, (x, weight)).graph)):
        assert "without_autograd" not in graph
        assert "rms_norm" in graph


def test_the_operators_own_errors_have_the_same_text():
    x, weight = torch.randn(3, 16), torch.randn(15)
    with pytest.raises((tensorferry.InvalidArgument, RuntimeError),
                       match=r"rms_norm: weight is \[15\] fp32"):
        ops.rms_norm(x, weight)


def test_a_change_in_place_is_told_to_autograd():
    x, residual, weight = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16)
    with torch.no_grad():
        ops.add_rms_norm_(x, residual, weight=weight)
        assert (x._version, residual._version, weight._version) == (1, 1, 0)
        kernels.add_rms_norm_(x, residual, weight)
    assert (x._version, residual._version, weight._version) == (2, 2, 0)


def test_wrong_tensors_are_named():
    x, weight = torch.randn(3, 16), torch.randn(15)
    with pytest.raises(tensorferry.InvalidArgument, match=r"rms_norm: weight is \[15\] fp32"):
        kernels.rms_norm(x, weight)
    with pytest.raises(tensorferry.InvalidArgument, match="x: is of float64; it can be"):
        kernels.silu_and_mul(x.double())
    with pytest.raises(tensorferry.InvalidArgument, match="x: has 5 sizes; it can have 4"):
        kernels.silu_and_mul(torch.zeros(1, 1, 1, 1, 2))


# By op: tensors of rows, and whether a vector for their last size follows.
ROWS = {
    "rms_norm": (1, True), "add_rms_norm": (2, True), "fused_add_gelu": (1, True),
    "fused_add_gelu_tanh": (1, True),
    "element_wise_mul_add": (3, False), **dict.fromkeys(GATES, (1, False)),
}


def layouts():
    """Tensors of every rank and of strides that formulas take, by name."""
    yield from ((f"{rank + 1} sizes", torch.randn((2, 3, 2, 3, 2)[:rank] + (8,))) for rank in range(5))
    table = torch.randn(3, 5, 4, 40)
    yield "heads of a projection", table[:, 1:4, ::2, 8:16]
    yield "sizes that cannot be joined", table.permute(2, 0, 1, 3)[..., :8]
    yield "expanded rows", torch.randn(1, 8).expand(5, 8)
    yield "no rows", torch.randn(2, 0, 8)
    yield "every other column", torch.randn(3, 16)[:, ::2]
    yield "turned", torch.randn(8, 3).t()
    yield "double", torch.randn(3, 8, dtype=torch.float64)
    yield "a lazy negative", torch._neg_view(torch.randn(3, 8))


@pytest.mark.parametrize("name", ROWS)
def test_row_ops_take_one_rule_of_ranks_and_strides(name):
    """They take what takes_rows() says, and the formulas all of these."""
    count, has_vector = ROWS[name]
    taken = set()
    for layout, x in layouts():
        given = [x, *(x.clone() for _ in range(count - 1))]
        vector = torch.randn(x.shape[-1], dtype=x.dtype) if has_vector else None
        arguments = given if vector is None else [*given, vector]
        expected = getattr(_formulas, name)(*arguments)
        if kernels.takes_rows(*given, vector=vector):
            taken.add(layout)
            torch.testing.assert_close(function_of(name)(*arguments), expected)
        else:
            with pytest.raises(tensorferry.InvalidArgument):
                function_of(name)(*arguments)
    assert {f"{rank} sizes" for rank in range(1, 5)} | {"sizes that cannot be joined", "no rows"} <= taken


@pytest.mark.parametrize("name", ["rms_norm_dynamic_per_token_quant", "silu_and_mul_dynamic_per_token_quant"])
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (2, 3, 2, 16), (2, 0, 16)])
def test_quantised_row_ops_take_the_same_ranks(name, shape):
    x, weight = torch.randn(shape), torch.randn(16)
    arguments = [x] if "silu" in name else [x, weight]
    made = []
    for ops in (kernels, _formulas):
        out = x.shape if len(arguments) == 2 else (*shape[:-1], 8)
        result = torch.zeros(out, dtype=torch.uint8)
        scale = torch.zeros(x[..., 0].numel(), 1)
        ops_arguments = [result, *arguments, scale] + ([1e-6] if len(arguments) == 2 else [])
        getattr(ops, name)(*ops_arguments)
        made.append((result.view(torch.float8_e4m3fn).float(), scale))
    torch.testing.assert_close(made[0][1], made[1][1])
    torch.testing.assert_close(made[0][0], made[1][0], rtol=0.13, atol=1e-2)


def test_a_vector_or_another_tensor_that_differs_is_no_rows():
    x, vector = torch.randn(3, 8), torch.randn(8)
    assert kernels.takes_rows(x, x.clone(), vector=vector)
    for others, other_vector in (
        ([torch.randn(1, 8)], vector), ([x.bfloat16()], vector), ([x], vector.bfloat16()),
        ([x], torch.randn(16)[::2]), ([x], torch.randn(7)), ([x], torch.randn(1, 8)),
    ):
        assert not kernels.takes_rows(x, *others, vector=other_vector)


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("odd", [np.ones(16, np.float32), [1.0] * 16, 2.0])
def test_what_is_no_tensor_is_named(monkeypatch, available, odd):
    monkeypatch.setattr(kernels, "KERNELS_AVAILABLE", available)
    x = torch.randn(3, 16)
    for call in (
        lambda: kernels.rms_norm(x, odd),
        lambda: kernels.add_rms_norm(x, x, weight=odd),
        lambda: kernels.store_kvcache(x, x, x, x, slot_mapping=odd),
    ):
        said = rf": (weight|slot_mapping) is .*, of type {type(odd).__name__}; it must be a torch tensor"
        with pytest.raises(tensorferry.InvalidArgument, match=said):
            call()


def test_what_torch_refuses_is_told_in_its_own_words(monkeypatch):
    with pytest.raises(RuntimeError, match="(?i)result: .*(memory|standard error)") as raised:
        kernels.silu_and_mul(torch.empty(1).expand(2**58, 2))  # more than a process can address
    assert not isinstance(raised.value, tensorferry.Error)

    def refuse(*_):
        raise RuntimeError("a result: CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setitem(kernels._torch_ops.without_autograd, "rms_norm", refuse)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 20.00 GiB"):
        kernels.rms_norm(torch.randn(3, 16), torch.randn(16))


def test_a_tensor_that_is_missing_is_named_and_the_others_are_let_go():
    x, positions = torch.randn(3, 16), torch.arange(3)
    with pytest.raises(tensorferry.InvalidArgument, match="weight is None, of type NoneType"):
        kernels.rms_norm(x, None)
    with pytest.raises((RuntimeError, TypeError, AttributeError)):
        ops.rope(positions, None, x, x)
    assert x._use_count() == 1
    assert positions._use_count() == 1


def test_a_weight_without_memory_is_refused_beside_tensors_with_it():
    x, weight = torch.randn(3, 16), torch.randn(16, device="meta")
    for norm in (kernels.rms_norm, ops.rms_norm):
        with pytest.raises(tensorferry.InvalidArgument, match="rms_norm: tensors are on cpu and meta"):
            norm(x, weight)
    assert kernels.rms_norm(x.to("meta"), weight).device.type == "meta"


def without_sizes():
    """Optional arguments that are tensors without sizes: op, arguments, sentence of its refusal."""
    number, half = torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16)
    x, weight = (normal(shape, torch.bfloat16, "cpu") for shape in ((3, 16), (16,)))
    result = torch.empty((3, 16), dtype=torch.uint8)
    yield ("fused_add_rms_norm_static_fp8_quant",
           dict(result=result, input=x, residual=half, weight=weight, scale=number, epsilon=1e-6),
           r"residual is \[1\] bf16; it must be \[3, 16\], as input is")
    yield ("rms_norm_dynamic_per_token_quant",
           dict(result=result, input=x, weight=weight, scale=torch.empty(3), epsilon=1e-6,
                residual=half),
           r"residual is \[1\] bf16; it must be \[3, 16\], as input is")
    part = tokens("cpu")
    wrong = r"(k_cache|v_cache) has [01] sizes; it must have 4|slots is \[1\] int32; it must be \[6\]"
    for name, one in (("k_cache", half), ("v_cache", half),
                      ("slot_mapping", torch.tensor(0, dtype=torch.int32))):
        yield "qk_norm_rope_store", part | {name: one}, wrong
    for name in ("k_cache", "v_cache", "slot_mapping"):  # the others are left out
        others = {"k_cache": None, "v_cache": None, "slot_mapping": None}
        yield "qk_norm_rope_store", part | others | {name: half}, wrong
    for name, one in (("temperatures", number), ("top_k", torch.tensor(3, dtype=torch.int32)),
                      ("top_p", number)):
        yield ("sample", dict(logits=torch.randn(2, 9)) | {name: one},
               name + r" is \[1\] .*; it must be \[2\], one for each row of logits")
    q = normal((6, 4, 64), torch.bfloat16, "cpu")
    caches = part["k_cache"], part["v_cache"]
    blocks = torch.zeros((6, 1), dtype=torch.int32)
    lengths = torch.ones(6, dtype=torch.int32)
    yield ("attention_decode",
           dict(q=q, k_cache=caches[0], v_cache=caches[1], block_tables=blocks,
                context_lens=lengths, scale=0.1, sinks=number),
           r"sinks is \[1\] fp32; it must be \[4\], one for each head")
    starts = torch.tensor([0, 6], dtype=torch.int32)
    prefill = dict(q=q, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=6, scale=0.1)
    yield ("attention_prefill", prefill | dict(k=q, v=q, sinks=number),
           r"sinks is \[1\] fp32; it must be \[4\], one for each head")
    yield ("attention_prefill",
           prefill | dict(k=caches[0], v=caches[1], block_tables=torch.tensor(0, dtype=torch.int32)),
           "block_tables has 1 sizes; it must have 2")


@pytest.mark.parametrize(("name", "arguments", "sentence"), list(without_sizes()))
def test_an_optional_tensor_without_sizes_does_not_count_as_left_out(name, arguments, sentence):
    with pytest.raises(RuntimeError, match=sentence):
        getattr(ops, name)(**arguments)


def test_a_tensor_without_sizes_is_the_number_of_one_row():
    logits, one = torch.randn(1, 1000), torch.tensor(0.7)
    named = {"seeds": torch.tensor(11), "steps": torch.tensor(3)}
    sized = {name: x.reshape(1) for name, x in named.items()}
    right = ops.sample(logits, temperatures=one.reshape(1), **sized)
    assert torch.equal(ops.sample(logits, temperatures=one, **named), right)


DISABLED = """
import torch
from tensorferry import kernels
assert not kernels.KERNELS_AVAILABLE
x = torch.randn(3, 16)
assert torch.equal(kernels.rms_norm(x, x[0]), kernels._formulas.rms_norm(x, x[0]))
x = torch.randn(2, 2, 2, 2, 2)  # which our kernel does not take
assert kernels.silu_and_mul(x).shape == (2, 2, 2, 2, 1)
"""


def test_kernels_can_be_switched_off():
    subprocess.run([sys.executable, "-c", DISABLED], check=True, timeout=120,
                   env=os.environ | {"TENSORFERRY_DISABLE_KERNELS": "1"})


NO_CODE = (
    "launching rms_norm on device 0: cudaErrorNoKernelImageForDevice (no kernel image is available for "
    "execution on the device); build with FERRY_CUDA_ARCH for this GPU"
)


def refusing(monkeypatch, text):
    """A rms_norm that refuses each call as on a GPU, and the calls."""
    calls = []

    def refuse(*arguments):
        calls.append(arguments)
        raise tensorferry.errors.Unsupported(text)

    class Refusing:
        rms_norm = staticmethod(refuse)

    class Ops:
        tensorferry = Refusing

    monkeypatch.setattr(kernels.torch, "ops", Ops)
    monkeypatch.setattr(kernels._torch_ops, "without_autograd", {})
    monkeypatch.setattr(kernels, "_without_code", set())
    return calls


def test_a_gpu_without_code_takes_the_formulas_and_is_told_of_once(monkeypatch, caplog):
    x = torch.randn(3, 64)
    weight = torch.randn(64)
    right = _formulas.rms_norm(x, weight)
    calls = refusing(monkeypatch, NO_CODE)
    for _ in range(2):
        assert torch.equal(kernels.rms_norm(x, weight), right)
    assert len(calls) == 1, "the second call does not try"
    [line] = caplog.messages
    assert line.startswith("torch's formulas take the place of the kernels on GPU -1: launching rms_norm")
    assert line.endswith("build with FERRY_CUDA_ARCH for this GPU")


def test_a_gpu_without_code_is_known_from_arguments_by_name(monkeypatch):
    part = tokens("cpu", torch.float32)
    same = {name: x.clone() if torch.is_tensor(x) else x for name, x in part.items()}
    monkeypatch.setattr(kernels, "_without_code", {-1})
    assert all(map(torch.equal, kernels.qk_norm_rope_store(**part),
                   _formulas.qk_norm_rope_store(**same)))


def test_formulas_take_what_the_kernels_take():
    part = tokens("cpu")
    _, k, v = part["qkv"].split((256, 128, 128), -1)
    stored = []
    for store in (kernels.store_kvcache, _formulas.store_kvcache):
        caches = [torch.zeros(3, 2, 16, 64, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
        store(k, v, *caches, part["slot_mapping"])
        stored.append(torch.stack(caches))
    assert torch.equal(*stored)
    nan, infinity = float("nan"), float("inf")
    logits = torch.tensor([[nan, 1.0, 3.0, -infinity], [-infinity, 2.0, nan, -infinity],
                           [-infinity, nan, -infinity, 5.0]])
    heat = torch.tensor([0.0, 1.0, infinity])
    right = torch.tensor([2, 1, 3])
    for sample in (kernels.sample, _formulas.sample):
        assert torch.equal(sample(logits), right)
        assert torch.equal(sample(logits, heat, top_p=torch.full((3,), 0.9), seed=1), right)
        assert sample(logits[:1], torch.tensor(1e-3), torch.tensor(2, dtype=torch.int32),
                      torch.tensor(0.5), seeds=torch.tensor(11), steps=torch.tensor(3)) == 2


def test_other_refusals_of_a_gpu_are_raised(monkeypatch, caplog):
    text = "attention_decode needs 139776 bytes of shared memory for a thread block"
    calls = refusing(monkeypatch, text)
    for _ in range(2):
        with pytest.raises(tensorferry.errors.Unsupported, match="of shared memory"):
            kernels.rms_norm(torch.randn(3, 64), torch.randn(64))
    assert len(calls) == 2
    assert not caplog.messages
