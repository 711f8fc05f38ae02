"""The ops whose results are e4m3 numbers, against formulas in float64 and as vLLM calls them."""

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _formulas, kernels  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
of_each_type = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str
)
ROWS = [(1, 8), (7, 769), (0, 16), (129, 1024)]
EPS = 1e-6


def normal(shape, dtype, device):
    return torch.randn(shape, dtype=torch.float32).to(dtype).to(device)


def normed(x, weight):
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()


def gated(x):
    first, second = x.double().chunk(2, -1)
    return torch.nn.functional.silu(first) * second


def is_quantised(result, right, scale, dtype):
    """Within a rounding of e4m3, of what may be off by two of its own type."""
    wanted = (right / scale.double().cpu()).clamp(-448, 448)
    before = 2 * torch.finfo(dtype).eps * right.abs() + 1e-6
    allowed = wanted.abs() / 16 + 2**-9 + 1.1 * before / scale.double().cpu()
    got = result.view(torch.float8_e4m3fn).cpu().double()
    assert ((got - wanted).abs() <= allowed).all()


@on_each_device
@of_each_type
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("kept_as", [torch.float8_e4m3fn, torch.uint8], ids=str)
def test_a_given_scale_is_for_all_rows(kept_as, shape, dtype, device):
    x, residual = normal(shape, dtype, device), normal(shape, dtype, device)
    weight = normal(shape[-1:], dtype, device)
    result = torch.empty(shape, dtype=kept_as, device=device)
    for scale in (torch.tensor([0.02], device=device), torch.tensor(0.02, device=device)):
        kernels.rms_norm_static_fp8_quant(result, x, weight, scale, EPS)
        is_quantised(result, normed(x.cpu(), weight.cpu()), scale, dtype)
    total = x.double().cpu() + residual.double().cpu()
    kernels.fused_add_rms_norm_static_fp8_quant(result, x, residual, weight, scale, EPS)
    is_quantised(result, normed(total, weight.cpu()), scale, dtype)
    assert torch.equal(residual.cpu(), total.float().to(dtype))
    both = normal((*shape[:-1], 2 * shape[-1]), dtype, device)
    kernels.silu_and_mul_quant(result, both, scale)
    is_quantised(result, gated(both.cpu()), scale, dtype)


@on_each_device
@of_each_type
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_each_row_gets_a_scale_of_its_own(shape, dtype, device):
    x, residual = normal(shape, dtype, device), normal(shape, dtype, device)
    weight = normal(shape[-1:], dtype, device)
    result = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    scale = torch.empty((shape[0], 1), device=device)
    kernels.rms_norm_dynamic_per_token_quant(result, x, weight, scale, EPS)
    right = normed(x.cpu(), weight.cpu())
    torch.testing.assert_close(
        scale.cpu().double(), right.abs().amax(-1, keepdim=True) / 448, rtol=0.02, atol=1e-5)
    is_quantised(result, right, scale, dtype)
    total = x.double().cpu() + residual.double().cpu()
    bound = torch.tensor([0.5], device=device)
    kernels.rms_norm_dynamic_per_token_quant(result, x, weight, scale, EPS, bound, residual)
    is_quantised(result, normed(total, weight.cpu()), scale, dtype)
    assert (scale <= 0.5 / 448).all()
    assert torch.equal(residual.cpu(), total.float().to(dtype))
    both = normal((*shape[:-1], 2 * shape[-1]), dtype, device)
    kernels.silu_and_mul_dynamic_per_token_quant(result, both, scale)
    is_quantised(result, gated(both.cpu()), scale, dtype)


@on_each_device
def test_the_formulas_give_the_same_but_for_single_roundings(device):
    x, weight = normal((9, 512), torch.bfloat16, device), normal((512,), torch.bfloat16, device)
    both = normal((9, 1024), torch.bfloat16, device)
    results = [torch.empty((9, 512), dtype=torch.uint8, device=device) for _ in range(4)]
    scales = [torch.empty((9, 1), device=device) for _ in range(4)]
    for module, at in ((kernels, 0), (_formulas, 2)):
        module.rms_norm_dynamic_per_token_quant(results[at], x, weight, scales[at], EPS)
        module.silu_and_mul_dynamic_per_token_quant(results[at + 1], both, scales[at + 1])
    for mine, theirs in zip(results[:2], results[2:]):
        assert (mine != theirs).float().mean() < 0.01
    for mine, theirs in zip(scales[:2], scales[2:]):
        torch.testing.assert_close(mine, theirs, rtol=0.01, atol=0)


@on_each_device
def test_nan_stays_and_a_scale_of_zero_gives_zeros(device):
    both = torch.ones(2, 32, device=device)
    both[0, 3] = float("nan")
    result = torch.empty((2, 16), dtype=torch.float8_e4m3fn, device=device)
    kernels.silu_and_mul_quant(result, both, torch.zeros(1, device=device))
    assert result.float().isnan().sum() == 1
    assert result[1].float().abs().sum() == 0
    theirs = torch.empty_like(result)
    _formulas.silu_and_mul_quant(theirs, both, torch.zeros(1, device=device))
    assert torch.equal(result.view(torch.uint8), theirs.view(torch.uint8))


def test_wrong_results_and_scales_are_named():
    x, weight = torch.randn(3, 16), torch.randn(16)
    result = torch.empty((3, 16), dtype=torch.float8_e4m3fn)
    with pytest.raises(tensorferry.InvalidArgument, match="result is .* it must be e4m3"):
        kernels.rms_norm_static_fp8_quant(torch.empty(3, 16), x, weight, torch.ones(1), EPS)
    with pytest.raises(tensorferry.InvalidArgument, match="scale is .* one for each row"):
        kernels.rms_norm_dynamic_per_token_quant(result, x, weight, torch.ones(2), EPS)
    with pytest.raises(tensorferry.InvalidArgument, match="scale is .* one for the tensor"):
        kernels.silu_and_mul_quant(result, torch.randn(3, 32), torch.ones(3))


def arguments_of_ops():
    x, weight = torch.randn(3, 16), torch.randn(16)
    result = torch.zeros((3, 16), dtype=torch.float8_e4m3fn)
    one, each = torch.tensor([0.02]), torch.zeros(3, 1)
    yield "rms_norm_static_fp8_quant", (result, x, weight, one, EPS)
    yield "fused_add_rms_norm_static_fp8_quant", (result, x, x.clone(), weight, one, EPS)
    yield "rms_norm_dynamic_per_token_quant", (result, x, weight, each, EPS)
    yield "rms_norm_dynamic_per_token_quant", (result, x, weight, each, EPS, one, x.clone())
    yield "silu_and_mul_quant", (result, torch.randn(3, 32), one)
    yield "silu_and_mul_dynamic_per_token_quant", (result, torch.randn(3, 32), each, one)


@pytest.mark.parametrize(("name", "arguments"), list(arguments_of_ops()))
def test_torch_finds_no_fault_with_the_operator(name, arguments):
    # Bytes, since torch compares results and has no such comparison of e4m3 numbers.
    arguments = tuple(
        x.view(torch.uint8) if torch.is_tensor(x) and x.dtype == torch.float8_e4m3fn else x
        for x in arguments
    )
    torch.library.opcheck(
        getattr(torch.ops.tensorferry, name).default, arguments,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_graphs_capture_the_ops():
    x, weight = normal((17, 256), torch.bfloat16, "cuda"), normal((256,), torch.bfloat16, "cuda")
    result = torch.empty((17, 256), dtype=torch.float8_e4m3fn, device="cuda")
    scale = torch.empty((17, 1), device="cuda")
    kernels.rms_norm_dynamic_per_token_quant(result, x, weight, scale, EPS)  # before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.rms_norm_dynamic_per_token_quant(result, x, weight, scale, EPS)
    x.copy_(normal((17, 256), torch.bfloat16, "cuda"))
    graph.replay()
    is_quantised(result, normed(x.cpu(), weight.cpu()), scale, torch.bfloat16)
