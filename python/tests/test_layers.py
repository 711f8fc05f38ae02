"""Tests of modules on our kernels against the same modules without them."""

import copy
import pickle
import re

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _formulas, kernels, layers  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", layers._GATES)
def test_the_gated_mlp_is_the_same_with_and_without_kernels(act, dtype):
    ours = layers.CustomGatedMLP(64, 96, act).to(dtype)
    theirs = layers.CustomGatedMLP(64, 96, act, use_custom_kernels=False).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 64).to(dtype)
    torch.testing.assert_close(ours(x), theirs(x), rtol=2e-2, atol=2e-2)


def test_the_gated_mlp_calls_our_kernel(monkeypatch):
    called = []
    real = kernels.silu_and_mul
    monkeypatch.setattr(kernels, "silu_and_mul", lambda x: called.append(1) or real(x))
    layers.CustomGatedMLP(8, 16)(torch.randn(2, 8))
    layers.CustomGatedMLP(8, 16, use_custom_kernels=False)(torch.randn(2, 8))
    assert called == [1]


def test_the_gated_mlp_loads_weights_as_checkpoints_have_them():
    gate, up, down = torch.randn(16, 8), torch.randn(16, 8), torch.randn(8, 16)
    mlp = layers.CustomGatedMLP(8, 16)
    mlp.load_state_dict(
        {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
    )
    x = torch.randn(3, 8)
    right = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
    torch.testing.assert_close(mlp(x), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("x", [
    torch.randn(8), torch.randn(2, 3, 2, 2, 2, 8), torch.randn(3, 16)[:, ::2], torch.randn(8, 3).t(),
    torch.randn(2, 3, 4, 8),
], ids=lambda x: f"{list(x.shape)} {x.stride()}")
def test_layers_take_what_their_formulas_take(x, compiled):
    norm, mlp = layers.RMSNorm(8), layers.CustomGatedMLP(8, 6)
    residual = torch.randn(x.shape)

    def run():
        return norm(x), *norm(x, residual), mlp(x), *norm(x, residual[..., :1].expand(x.shape))

    if compiled:
        run = torch.compile(run, backend="aot_eager", fullgraph=True)
    ours = run()
    for module in (norm, mlp):
        module.use_custom_kernels = False
    torch.compiler.reset()
    torch.testing.assert_close(ours, run())


def test_the_norm_takes_other_types_as_its_formula_does():
    norm, x = layers.RMSNorm(8), torch.randn(3, 8)
    torch.testing.assert_close(norm(x.bfloat16()), _formulas.rms_norm(x.bfloat16(), norm.weight))
    torch.testing.assert_close(norm(x.double()), _formulas.rms_norm(x.double(), norm.weight))
    out, total = norm(x, torch.ones(8))
    torch.testing.assert_close(total, x + 1)


def load_as_nano_vllm(mlp, weights):
    """As its loader does: a part of gate_up_proj by its number, others without one."""
    for name, weight in weights.items():
        shards = {"gate_proj": 0, "up_proj": 1}
        part, _, kind = name.partition(".")
        param = mlp.get_parameter(f"gate_up_proj.{kind}" if part in shards else name)
        param.weight_loader(param, weight, *([shards[part]] if part in shards else []))


@pytest.mark.parametrize("copied", [lambda mlp: mlp, copy.deepcopy, lambda mlp: pickle.loads(
    pickle.dumps(mlp)), lambda mlp: mlp.bfloat16().float()], ids=["made", "copied", "pickled", "cast"])
def test_the_gated_mlp_loads_weights_by_nano_vllms_loader(copied):
    weights = {"gate_proj.weight": torch.randn(16, 8), "up_proj.weight": torch.randn(16, 8),
               "down_proj.weight": torch.randn(8, 16), "gate_proj.bias": torch.randn(16),
               "up_proj.bias": torch.randn(16), "down_proj.bias": torch.randn(8)}
    mlp, right = copied(layers.CustomGatedMLP(8, 16, bias=True)), layers.CustomGatedMLP(8, 16, bias=True)
    load_as_nano_vllm(mlp, weights)
    right.load_state_dict(weights)
    x = torch.randn(3, 8)
    torch.testing.assert_close(mlp(x), right(x))


@pytest.mark.parametrize(("name", "shape", "right"), [
    ("gate_proj.weight", [15, 8], [16, 8]), ("up_proj.weight", [1, 8], [16, 8]),
    ("down_proj.weight", [8, 1], [8, 16]), ("gate_up_proj.weight", [16, 8], [32, 8]),
])
def test_a_weight_of_the_wrong_shape_is_named(name, shape, right):
    mlp = layers.CustomGatedMLP(8, 16)
    before = copy.deepcopy(mlp.state_dict())
    said = f"CustomGatedMLP: the checkpoint's {name} is {shape}; this layer's is {right}: give the layer"
    with pytest.raises(tensorferry.InvalidArgument, match=re.escape(said)):
        load_as_nano_vllm(mlp, {name: torch.randn(shape)})
    assert all(torch.equal(mlp.state_dict()[key], kept) for key, kept in before.items())


def test_the_gated_mlp_takes_its_old_arguments():
    assert layers.CustomGatedMLP(8, 16, True).down_proj.bias is not None
    assert layers.CustomGatedMLP(8, 16, False).down_proj.bias is None
    with pytest.raises(ValueError, match="hidden_act is 'softmax'"):
        layers.CustomGatedMLP(8, 16, "softmax")


@pytest.mark.parametrize("use", [True, False])
@torch.inference_mode()  # rotation, stores and attention have no gradients
def test_a_decoder_step_agrees_with_the_whole_sequence(use):
    """Attention of the last token over pages is that of a prefill of all."""
    torch.manual_seed(1)
    size, heads, kv_heads, count = 64, 4, 2, 37
    norm = layers.RMSNorm(size, use_custom_kernels=use)
    rotary = layers.RotaryEmbedding(size, 64, use_custom_kernels=use)
    attention = layers.PagedAttention(size, use_custom_kernels=use)
    q, k, v = (torch.randn(count, n, size) for n in (heads, kv_heads, kv_heads))
    q, k = rotary(torch.arange(count), norm(q), norm(k))
    starts = torch.tensor([0, count], dtype=torch.int32)
    whole = attention.prefill(q, k, v, starts, starts, count)
    k_cache, v_cache = torch.zeros(4, 16, kv_heads, size), torch.zeros(4, 16, kv_heads, size)
    blocks = torch.tensor([[2, 0, 3, -1]], dtype=torch.int32)
    slots = torch.tensor([int(blocks[0, t // 16]) * 16 + t % 16 for t in range(count)])
    kernels.store_kvcache(k, v, k_cache, v_cache, slots.to(torch.int32))
    step = attention.decode(
        q[-1:], k_cache, v_cache, blocks, torch.tensor([count], dtype=torch.int32)
    )
    torch.testing.assert_close(step, whole[-1:], rtol=1e-4, atol=1e-4)


def test_a_residual_goes_through_the_norm():
    norm = layers.RMSNorm(16)
    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    out, total = norm(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out, norm(total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: layers.RMSNorm(8), lambda: layers.CustomGatedMLP(8, 8),
                                  lambda: layers.RotaryEmbedding(8, 8),
                                  lambda: layers.PagedAttention(8)])
def test_modules_are_copied_and_pickled(make):
    module = make()
    copy.deepcopy(module)
    again = pickle.loads(pickle.dumps(module))
    assert again.use_custom_kernels == module.use_custom_kernels


def test_the_rotary_table_stays_exact_when_a_model_is_cast():
    rotary = layers.RotaryEmbedding(64, 100)
    before = rotary.cos_sin_cache.clone()
    torch.nn.Sequential(rotary).to(torch.bfloat16).half()
    assert torch.equal(rotary.cos_sin_cache, before)
