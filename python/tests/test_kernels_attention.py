"""What attention does beyond plain attention, the merge of its results, and rope by neighbours."""

import itertools

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
SIZE = 64
EXTRAS = [
    {},
    {"window": 1},
    {"window": 20},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 33, "softcap": 5.0, "sinks": True},
]
with_each_extra = pytest.mark.parametrize("extras", EXTRAS, ids=str)


def normal(shape, dtype, device):
    return torch.randn(shape, dtype=torch.float32).to(dtype).to(device)


def on(device, extras):
    if "sinks" not in extras:
        return extras
    return extras | {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0], device=device)}


def decode_arguments(device, dtype=torch.bfloat16, cache=None):
    lengths = [1, 17, 100]
    blocks = torch.randperm(24).reshape(3, 8).to(torch.int32).to(device)
    caches = [normal((24, 16, 2, SIZE), dtype, device) for _ in range(2)]
    if cache is not None:
        caches = [x.to(torch.float8_e4m3fn).view(cache) for x in caches]
    q = normal((3, 4, SIZE), dtype, device)
    return (q, *caches, blocks, torch.tensor(lengths, dtype=torch.int32, device=device), SIZE**-0.5)


def prefill_arguments(device, dtype=torch.bfloat16, kept_as=None):
    starts = torch.tensor([0, 5, 60, 61], dtype=torch.int32, device=device)
    q, k, v = (normal((61, heads, SIZE), dtype, device) for heads in (4, 2, 2))
    if kept_as is not None:
        k, v = (x.to(torch.float8_e4m3fn).view(kept_as) for x in (k, v))
    return q, k, v, starts, starts, 55, SIZE**-0.5


def paged_prefill_arguments(device, kept_as, page, heads_first):
    """Over caches of pages, up to block_tables."""
    lengths, columns = (5, 70, 33), -(-70 // page)
    blocks = torch.randperm(3 * columns).reshape(3, columns).to(torch.int32).to(device)
    shape = (3 * columns, 2, page, SIZE) if heads_first else (3 * columns, page, 2, SIZE)
    caches = [
        normal(shape, torch.bfloat16, device).to(torch.float8_e4m3fn).view(kept_as)
        for _ in range(2)
    ]
    if heads_first:
        caches = [x.transpose(1, 2) for x in caches]
    queries, keys = ([0, 5, 25, 26], [0, *itertools.accumulate(lengths)])
    starts = [torch.tensor(x, dtype=torch.int32, device=device) for x in (queries, keys)]
    q = normal((26, 4, SIZE), torch.bfloat16, device)
    return q, *caches, *starts, 20, SIZE**-0.5, True, blocks


def is_right(ours, theirs):
    for mine, right in zip(ours, theirs):
        torch.testing.assert_close(mine.float(), right.float(), rtol=0.02, atol=0.02)


@on_each_device
@with_each_extra
def test_decode_is_what_the_formula_says(extras, device):
    arguments, extras = decode_arguments(device), on(device, extras)
    right = _formulas.attention_decode_lse(*arguments, **extras)
    is_right(kernels.attention_decode(*arguments, **extras, return_lse=True), right)
    is_right([kernels.attention_decode(*arguments, **extras)], right)


@on_each_device
@with_each_extra
@pytest.mark.parametrize("kept_as", [torch.float8_e4m3fn, torch.uint8], ids=str)
def test_decode_reads_e4m3_caches(kept_as, extras, device):
    arguments, extras = decode_arguments(device, cache=kept_as), on(device, extras)
    scales = {"k_scale": 0.7, "v_scale": 3.0}
    right = _formulas.attention_decode_lse(*arguments, **scales, **extras)
    is_right(kernels.attention_decode(*arguments, **scales, **extras, return_lse=True), right)


@on_each_device
def test_what_store_kvcache_stores_as_bytes_is_read_again(device):
    k, v = (normal((40, 2, SIZE), torch.bfloat16, device) for _ in range(2))
    slots = torch.arange(40, dtype=torch.int32, device=device)
    narrow = [torch.zeros((3, 16, 2, SIZE), dtype=torch.uint8, device=device) for _ in range(2)]
    kernels.store_kvcache(k, v, *narrow, slots, 0.02, 0.01)
    blocks = torch.arange(3, dtype=torch.int32, device=device).reshape(1, 3)
    context = torch.tensor([40], dtype=torch.int32, device=device)
    q = normal((1, 4, SIZE), torch.bfloat16, device)
    out = kernels.attention_decode(q, *narrow, blocks, context, SIZE**-0.5, 0.02, 0.01)
    starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
    keys = torch.tensor([0, 40], dtype=torch.int32, device=device)
    plain = kernels.attention_prefill(q, k, v, starts, keys, 1, SIZE**-0.5)
    torch.testing.assert_close(out.float(), plain.float(), rtol=0.1, atol=0.05)
    prefilled = kernels.attention_prefill(
        q, *narrow, starts, keys, 1, SIZE**-0.5, True, blocks, 0.02, 0.01)
    torch.testing.assert_close(prefilled.float(), out.float(), rtol=0.02, atol=0.01)


@on_each_device
@with_each_extra
@pytest.mark.parametrize("causal", [True, False])
def test_prefill_is_what_the_formula_says(causal, extras, device):
    arguments, extras = (*prefill_arguments(device), causal), on(device, extras)
    right = _formulas.attention_prefill_lse(*arguments, **extras)
    is_right(kernels.attention_prefill(*arguments, **extras, return_lse=True), right)
    is_right([kernels.attention_prefill(*arguments, **extras)], right)


@on_each_device
@with_each_extra
@pytest.mark.parametrize("kept_as", [torch.float8_e4m3fn, torch.uint8], ids=str)
def test_prefill_reads_e4m3_keys(kept_as, extras, device):
    arguments, extras = prefill_arguments(device, kept_as=kept_as), on(device, extras)
    scales = {"k_scale": 0.7, "v_scale": 3.0}
    for causal in (True, False):
        right = _formulas.attention_prefill_lse(*arguments, causal, **scales, **extras)
        got = kernels.attention_prefill(*arguments, causal, **scales, **extras, return_lse=True)
        is_right(got, right)
        is_right([kernels.attention_prefill(*arguments, causal, **scales, **extras)], right)


@on_each_device
@with_each_extra
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("page", [1, 7, 16])
def test_prefill_reads_e4m3_pages(page, heads_first, extras, device):
    extras = on(device, extras)
    arguments = paged_prefill_arguments(device, torch.uint8, page, heads_first)
    right = _formulas.attention_prefill_lse(*arguments, 0.7, 3.0, **extras)
    is_right(kernels.attention_prefill(*arguments, 0.7, 3.0, **extras, return_lse=True), right)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_merged_parts_are_attention_over_all_keys(dtype, device):
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("attention on GPUs has 16-bit numbers")
    q, k, v = (normal((30, heads, SIZE), dtype, device) for heads in (4, 2, 2))
    queries = torch.tensor([0, 30], dtype=torch.int32, device=device)

    def over(first, end):
        keys = torch.tensor([0, end - first], dtype=torch.int32, device=device)
        return kernels.attention_prefill(
            q, k[first:end], v[first:end], queries, keys, 30, SIZE**-0.5, False, return_lse=True)

    merged = kernels.merge_attention_states(*over(0, 11), *over(11, 30))
    is_right(merged, over(0, 30))
    is_right(merged, _formulas.merge_attention_states(*over(0, 11), *over(11, 30)))


@on_each_device
@pytest.mark.parametrize("sign", [-1, 1], ids=["-inf", "inf"])
def test_parts_without_keys_count_for_nothing(sign, device):
    none = sign * float("inf")
    out_a = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device).reshape(4, 1, 1)
    out_b = torch.tensor([5.0, float("nan"), 7.0, 8.0], device=device).reshape(4, 1, 1)
    lse_a = torch.tensor([0.0, 0.0, none, none], device=device).reshape(4, 1)
    lse_b = torch.tensor([0.0, none, 0.0, none], device=device).reshape(4, 1)
    for merge in (kernels.merge_attention_states, _formulas.merge_attention_states):
        out, lse = merge(out_a, lse_a, out_b, lse_b)
        assert out.flatten().tolist() == [3.0, 2.0, 7.0, 0.0]
        assert lse.flatten().tolist()[1:] == [0.0, 0.0, float("-inf")]


@on_each_device
@pytest.mark.parametrize("window", [16, 33])
def test_blocks_before_the_window_are_not_read(window, device):
    q, *caches, blocks, lengths, scale = decode_arguments(device)
    # A formula that takes -1 for the last block finds NaN.
    spoilt = torch.full_like(caches[0][:1], float("nan"))
    caches = [torch.cat((cache, spoilt)) for cache in caches]
    starts = [torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 1, 3, 43], [0, 1, 18, 118])]
    prefill_q = normal((43, 4, SIZE), torch.bfloat16, device)

    def results(module, suffix, named, tables):
        decode = getattr(module, f"attention_decode{suffix}")
        prefill = getattr(module, f"attention_prefill{suffix}")
        yield from decode(q, *caches, tables[0], lengths, scale, window=window, **named)
        yield from prefill(prefill_q, *caches, *starts, 40, scale, block_tables=tables[1],
                           window=window, **named)

    released = [blocks.clone() for _ in range(2)]
    for i, length in enumerate((1, 17, 100)):
        released[0][i, : max(length - window, 0) // 16] = -1
    for i, (queries, keys) in enumerate(((1, 1), (2, 17), (40, 100))):
        released[1][i, : max(keys - queries + 1 - window, 0) // 16] = -1
    assert all((tables == -1).any() for tables in released)
    for module, suffix, named in ((kernels, "", {"return_lse": True}), (_formulas, "_lse", {})):
        kept = list(results(module, suffix, named, (blocks, blocks)))
        for mine, right in zip(results(module, suffix, named, released), kept):
            assert torch.equal(mine, right), module.__name__


@on_each_device
@pytest.mark.parametrize("rotated", [32, 64])
def test_rope_turns_neighbours(rotated, device):
    angles = torch.rand(16, rotated // 2, device=device) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1)
    q, k = (normal((5, heads, SIZE), torch.float32, device) for heads in (4, 2))
    positions = torch.tensor([3, 0, 15, 7, 7], device=device)
    ours = kernels.rope(positions, q, k, table, is_neox=False)
    for x, mine in zip((q, k), ours):
        turn = torch.polar(torch.ones_like(angles), angles)[positions].unsqueeze(1)
        pairs = torch.view_as_complex(x[..., :rotated].unflatten(-1, (-1, 2)).contiguous())
        right = torch.view_as_real(pairs * turn).flatten(-2)
        torch.testing.assert_close(mine[..., :rotated], right, rtol=1e-5, atol=1e-5)
        assert torch.equal(mine[..., rotated:], x[..., rotated:])
    torch.testing.assert_close(ours, _formulas.rope(positions, q, k, table, False))
    kernels.rope_(positions, q, k, table, False)
    assert torch.equal(q, ours[0]) and torch.equal(k, ours[1])


@on_each_device
def test_one_pass_turns_neighbours_as_the_three_ops(device):
    qkv = normal((5, 8 * SIZE), torch.bfloat16, device)
    weights = [normal((SIZE,), torch.bfloat16, device) for _ in range(2)]
    angles = torch.rand(16, SIZE // 2, device=device) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.arange(5, device=device)
    fused = kernels.qk_norm_rope_store(qkv, 4, 2, *weights, positions, table, is_neox=False)
    q, k, _ = qkv.unflatten(-1, (8, SIZE)).split((4, 2, 2), 1)
    normed = [kernels.rms_norm(x, weight) for x, weight in zip((q, k), weights)]
    is_right(fused, kernels.rope(positions, *normed, table, False))


def test_wrong_extras_are_named():
    arguments = decode_arguments("cpu")
    for extras, text in (
        ({"window": -1}, "window is -1; it must be 0 to"),
        ({"softcap": -1.0}, "softcap is -1"),
        ({"sinks": torch.zeros(3)}, r"sinks is \[3\] fp32; it must be \[4\]"),
        ({"sinks": torch.zeros(4, dtype=torch.bfloat16)}, "sinks is .* must be fp32"),
    ):
        with pytest.raises(tensorferry.InvalidArgument, match=text):
            kernels.attention_decode(*arguments, **extras)
        with pytest.raises(tensorferry.InvalidArgument, match=text):
            kernels.attention_prefill(*prefill_arguments("cpu"), **extras)
    narrow = decode_arguments("cpu", cache=torch.uint8)
    with pytest.raises(tensorferry.InvalidArgument, match="k_scale is 0"):
        kernels.attention_decode(*narrow, 0.0)
    narrow = prefill_arguments("cpu", kept_as=torch.uint8)
    for scales, text in (
        ({"k_scale": 0.0}, "k_scale is 0; it must be a finite number above 0"),
        ({"v_scale": -1.0}, "v_scale is -1"),
        ({"v_scale": float("nan")}, "v_scale is nan"),
    ):
        with pytest.raises(tensorferry.InvalidArgument, match=text):
            kernels.attention_prefill(*narrow, **scales)
    q, k, _, *rest = narrow
    with pytest.raises(tensorferry.InvalidArgument, match="v is .* bf16; it must be e4m3, as k is"):
        kernels.attention_prefill(q, k, normal(k.shape, torch.bfloat16, "cpu"), *rest)


def checked():
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    decode = decode_arguments("cpu", torch.float32)
    prefill = prefill_arguments("cpu", torch.float32)
    extras = {"window": 9, "softcap": 3.0, "sinks": sinks}
    yield "attention_decode", decode, extras
    yield "attention_decode", decode_arguments("cpu", cache=torch.uint8), {"v_scale": 2.0}
    yield "attention_decode_lse", decode, extras
    yield "attention_prefill", prefill, extras
    yield "attention_prefill_lse", prefill, extras
    narrow = prefill_arguments("cpu", kept_as=torch.uint8)
    yield "attention_prefill", narrow, {"k_scale": 0.5, "v_scale": 2.0}
    narrow = paged_prefill_arguments("cpu", torch.uint8, 7, True)
    yield "attention_prefill_lse", narrow, {"k_scale": 0.5, "window": 9}
    out, lse = torch.randn(3, 4, 8), torch.randn(3, 4)
    yield "merge_attention_states", (out, lse, out.clone(), lse + 1), {}
    table = torch.randn(16, SIZE)
    heads = torch.randn(5, 4, SIZE), torch.randn(5, 2, SIZE)
    yield "rope", (torch.arange(5), *heads, table, False), {}
    yield "rope_", (torch.arange(5), *heads, table, False), {}


@pytest.mark.parametrize(("name", "arguments", "named"), list(checked()))
def test_torch_finds_no_fault_with_the_operator(name, arguments, named):
    torch.library.opcheck(
        getattr(torch.ops.tensorferry, name).default, arguments, named,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("name", ["decode", "e4m3", "prefill", "prefill e4m3", "merge", "rope"])
def test_graphs_capture_the_ops(name):
    extras = on("cuda", EXTRAS[-1])
    table = torch.randn(16, SIZE, device="cuda")
    heads = [normal((5, 4, SIZE), torch.bfloat16, "cuda") for _ in range(2)]
    out, lse = normal((9, 4, SIZE), torch.bfloat16, "cuda"), torch.randn(9, 4, device="cuda")
    op, arguments, named = {
        "decode": lambda: ("attention_decode_lse", decode_arguments("cuda"), extras),
        "e4m3": lambda: (
            "attention_decode_lse", decode_arguments("cuda", cache=torch.uint8), extras),
        "prefill": lambda: ("attention_prefill_lse", prefill_arguments("cuda"), extras),
        "prefill e4m3": lambda: (
            "attention_prefill_lse", prefill_arguments("cuda", kept_as=torch.uint8), extras),
        "merge": lambda: ("merge_attention_states", (out, lse, out.clone(), lse + 1), {}),
        "rope": lambda: ("rope", (torch.arange(5, device="cuda"), *heads, table, False), {}),
    }[name]()
    call = getattr(torch.ops.tensorferry, op)
    call(*arguments, **named)  # before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*arguments, **named)
    first = arguments[1] if name == "rope" else arguments[0]
    first.copy_(normal(first.shape, first.dtype, "cuda"))
    graph.replay()
    torch.cuda.synchronize()
    is_right(captured, getattr(_formulas, op)(*arguments, **named))
