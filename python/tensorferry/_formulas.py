"""The ops as torch's own operations: what runs where our kernels cannot, or are switched off.

Rounded where Hugging Face's layers round: sums and products in float32, results once more to the
tensors' type.
"""

import random

import torch
import torch.nn.functional as F

from tensorferry import errors


def fused_add_gelu(x, bias, approximate="none"):
    return F.gelu(x.float() + bias.float(), approximate=approximate).to(x.dtype)


def fused_add_gelu_tanh(x, bias):
    return fused_add_gelu(x, bias, "tanh")


def element_wise_mul_add(a, b, c):
    return (a.float() * b.float() + c.float()).to(a.dtype)


def _gated(x, gate):
    first, second = x.chunk(2, dim=-1)
    return (gate(first.float()) * second.float()).to(x.dtype)


def silu_and_mul(x):
    return _gated(x, F.silu)


def gelu_and_mul(x):
    return _gated(x, F.gelu)


def gelu_tanh_and_mul(x):
    return _gated(x, lambda first: F.gelu(first, approximate="tanh"))


def _normalised(x, weight, eps, dtype):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(dtype) * weight


def rms_norm(x, weight, eps=1e-6):
    return _normalised(x.float(), weight, eps, x.dtype)


def add_rms_norm(x, residual, weight, eps=1e-6):
    total = x.float() + residual.float()
    return _normalised(total, weight, eps, x.dtype), total.to(x.dtype)


def add_rms_norm_(x, residual, weight, eps=1e-6):
    for written, value in zip((x, residual), add_rms_norm(x, residual, weight, eps)):
        written.copy_(value)


_LARGEST_E4M3 = 448.0
_LEAST_SCALE = 1 / (_LARGEST_E4M3 * 512)  # of a row of zeros


def _as_e4m3(x):
    """Tensors of bytes are those of e4m3 numbers."""
    return x.view(torch.float8_e4m3fn) if x.dtype == torch.uint8 else x


def _quantise(result, values, scale):
    inverse = scale.float().reciprocal()
    inverse = inverse.masked_fill(inverse.isinf(), 0.0)
    scaled = (values.float() * inverse).clamp(-_LARGEST_E4M3, _LARGEST_E4M3)
    _as_e4m3(result).copy_(scaled.to(torch.float8_e4m3fn))


def _quantise_rows(result, values, scale, scale_ub):
    # NaN does not count, and an infinite number saturates.
    largest = values.float().abs().nan_to_num(0.0).amax(-1, keepdim=True)
    if scale_ub is not None:
        largest = torch.minimum(largest, scale_ub.reshape(()))
    made = (largest / _LARGEST_E4M3).clamp(min=_LEAST_SCALE)
    scale.copy_(made.reshape(scale.shape))
    _quantise(result, values, made)


def rms_norm_static_fp8_quant(result, input, weight, scale, epsilon):
    _quantise(result, rms_norm(input, weight, epsilon), scale)


def fused_add_rms_norm_static_fp8_quant(result, input, residual, weight, scale, epsilon):
    out, total = add_rms_norm(input, residual, weight, epsilon)
    residual.copy_(total)
    _quantise(result, out, scale)


def rms_norm_dynamic_per_token_quant(
    result, input, weight, scale, epsilon, scale_ub=None, residual=None
):
    if residual is None:
        out = rms_norm(input, weight, epsilon)
    else:
        out, total = add_rms_norm(input, residual, weight, epsilon)
        residual.copy_(total)
    _quantise_rows(result, out, scale, scale_ub)


def silu_and_mul_quant(result, input, scale):
    _quantise(result, silu_and_mul(input), scale)


def silu_and_mul_dynamic_per_token_quant(result, input, scale, scale_ub=None):
    _quantise_rows(result, silu_and_mul(input), scale, scale_ub)


def rope(positions, q, k, cos_sin_cache, is_neox=True):
    rows = cos_sin_cache.reshape(cos_sin_cache.shape[0], -1)[positions].float()
    cos, sin = rows.unsqueeze(1).chunk(2, dim=-1)
    size = rows.shape[-1]

    def rotated(x):
        turning = x[..., :size].float()
        if is_neox:
            first, second = turning.chunk(2, dim=-1)
        else:
            first, second = turning[..., ::2], turning[..., 1::2]
        both = first * cos - second * sin, second * cos + first * sin
        turned = torch.cat(both, -1) if is_neox else torch.stack(both, -1).flatten(-2)
        return torch.cat((turned.to(x.dtype), x[..., size:]), -1)

    return rotated(q), rotated(k)


def rope_(positions, q, k, cos_sin_cache, is_neox=True):
    for x, turned in zip((q, k), rope(positions, q, k, cos_sin_cache, is_neox)):
        x.copy_(turned)


def store_kvcache(k, v, k_cache, v_cache, slot_mapping, k_scale=1.0, v_scale=1.0):
    kept = slot_mapping >= 0
    slots = slot_mapping[kept].long()
    block, place = slots // k_cache.shape[1], slots % k_cache.shape[1]
    for tokens, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        stored = tokens[kept].unflatten(-1, cache.shape[2:]) if tokens.dim() == 2 else tokens[kept]
        if cache.dtype != tokens.dtype:
            stored = (stored.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        cache.view(torch.uint8 if cache.dtype.itemsize == 1 else cache.dtype)[block, place] = (
            stored.view(torch.uint8) if cache.dtype.itemsize == 1 else stored
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
    heads = qkv.unflatten(-1, (q_heads + 2 * kv_heads, -1))
    q, k, v = heads.split((q_heads, kv_heads, kv_heads), dim=1)
    q, k = rope(
        positions, rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps), cos_sin_cache, is_neox
    )
    if k_cache is not None:
        store_kvcache(k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale)
    return q, k


def _attend(q, k, v, scale, mask, softcap, sinks):
    """(out, lse) of q [queries, heads, size], k and v [keys, kv heads, size].

    mask: [queries, keys] or None; lse: [queries, heads].
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:  # a key without a value
        sinks = sinks.float().reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)[..., : len(k)]
    out = torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)
    return out, torch.logsumexp(scores, -1).transpose(0, 1)


def _wide(kept, scale):
    """What e4m3 numbers, or bytes for them, are worth; others stay."""
    return kept.view(torch.float8_e4m3fn).float() * scale if kept.dtype.itemsize == 1 else kept


def _paged(cache, blocks, first, length, scale=1.0):
    """The tokens from `first` on; entries of `blocks` before its block may be none, such as -1."""
    passed, needed = first // cache.shape[1], -(-length // cache.shape[1])
    narrow = cache.dtype.itemsize == 1
    kept = (cache.view(torch.uint8) if narrow else cache)[blocks[passed:needed].long()]
    kept = kept.flatten(0, 1)[first - passed * cache.shape[1] : length - passed * cache.shape[1]]
    return _wide(kept, scale)


def attention_decode_lse(
    q, k_cache, v_cache, block_tables, context_lens, scale, k_scale=1.0, v_scale=1.0, window=0,
    softcap=0.0, sinks=None
):
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for i, length in enumerate(context_lens.tolist()):
        first = max(length - window, 0) if window > 0 else 0
        k = _paged(k_cache, block_tables[i], first, length, k_scale)
        v = _paged(v_cache, block_tables[i], first, length, v_scale)
        one, lse[i] = _attend(q[i : i + 1], k, v, scale, None, softcap, sinks)
        out[i] = one[0]
    return out, lse


def attention_decode(*arguments, **named):
    return attention_decode_lse(*arguments, **named)[0]


def _visible(queries, keys, causal, window, device):
    """[queries, keys]: the last query stands at the last key. None: all of them."""
    if not causal and window == 0:
        return None
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        mask = mask.tril(keys - queries)
    return mask.triu(keys - queries - window + 1) if window > 0 else mask


def attention_prefill_lse(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, scale, causal=True, block_tables=None,
    k_scale=1.0, v_scale=1.0, window=0, softcap=0.0, sinks=None
):
    scales = (k_scale, v_scale)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for i in range(len(starts_q) - 1):
        here = slice(starts_q[i], starts_q[i + 1])
        queries = q[here]
        if block_tables is None:
            here_k = slice(starts_k[i], starts_k[i + 1])
            keys, values = (_wide(x[here_k], by) for x, by in zip((k, v), scales))
        else:
            length = starts_k[i + 1] - starts_k[i]
            # What the first query sees reaches furthest back.
            first = max(length - len(queries) + 1 - window, 0) if window > 0 else 0
            first = min(first, length)
            keys, values = (
                _paged(x, block_tables[i], first, length, by) for x, by in zip((k, v), scales)
            )
        mask = _visible(len(queries), len(keys), causal, window, q.device)
        if len(queries) > 0:
            out[here], lse[here] = _attend(queries, keys, values, scale, mask, softcap, sinks)
    return out, lse


def attention_prefill(*arguments, **named):
    return attention_prefill_lse(*arguments, **named)[0]


def merge_attention_states(out_a, lse_a, out_b, lse_b):
    # An lse of inf says that there are no keys, as -inf does.
    lse_a, lse_b = (x.masked_fill(x.isinf(), float("-inf")) for x in (lse_a, lse_b))
    lse = torch.logaddexp(lse_a, lse_b)
    out = 0
    for part, of_part in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(of_part - lse).where(of_part != float("-inf"), 0.0).unsqueeze(-1)
        # A part without keys counts for nothing, whatever it holds.
        out = out + torch.where(weight == 0, 0.0, weight * part.float())
    return out.to(out_a.dtype), lse


def _exponential(scores, seed, step, seeds, steps):
    """Torch's numbers, by generators that follow from the seeds: of one for all, or of each row."""
    seeds = [seed] if seeds is None else seeds.tolist()
    steps = [step] if steps is None else steps.tolist()
    rows = scores.shape[0]
    for name, numbers in (("seeds", seeds), ("steps", steps)):
        if len(numbers) not in (1, rows):
            raise errors.InvalidArgument(
                f"sample: {name} has {len(numbers)} numbers; it must have {rows}, one for each row "
                "of logits, or one for all"
            )
    count = max(len(seeds), len(steps))
    seeds, steps = (x * count if len(x) == 1 else x for x in (seeds, steps))
    noise = torch.empty_like(scores)
    for part, one_seed, one_step in zip(noise.chunk(count), seeds, steps):
        mixed = random.Random(f"{one_seed} {one_step}").getrandbits(63)
        generator = torch.Generator(device=scores.device).manual_seed(mixed)
        part.exponential_(generator=generator)
    return noise


def sample(
    logits, temperatures=None, top_k=None, top_p=None, seed=0, step=0, seeds=None, steps=None
):
    """As our kernel but for the random numbers, which are torch's."""
    logits = logits.float()
    logits = logits.masked_fill(logits.isnan(), float("-inf"))  # which are not chosen
    if temperatures is None:
        return logits.argmax(-1)
    # A tensor without sizes is that of one row.
    temperatures, top_k, top_p, seeds, steps = (
        x if x is None else x.reshape(-1) for x in (temperatures, top_k, top_p, seeds, steps)
    )
    greedy = ~(temperatures >= 1e-5)
    # An infinite temperature would make minus infinity NaN.
    scores = logits / temperatures.clamp(max=2.0**126).where(~greedy, 1.0).unsqueeze(-1)
    if top_k is not None:
        counts = top_k.long().where(top_k > 0, scores.shape[-1]).clamp(max=scores.shape[-1])
        least = scores.sort(-1, descending=True).values.gather(-1, counts.unsqueeze(-1) - 1)
        scores = scores.masked_fill(scores < least, float("-inf"))
    if top_p is not None:
        ordered = scores.softmax(-1).sort(-1, descending=True).values
        before = ordered.cumsum(-1) - ordered
        # 1, more, or NaN: all, also where a sum of probabilities exceeds 1.
        share = top_p.where(top_p < 1, float("inf")).unsqueeze(-1)
        kept = (before < share).sum(-1, keepdim=True).clamp(min=1)
        least = ordered.gather(-1, kept - 1)
        scores = scores.masked_fill(scores.softmax(-1) < least, float("-inf"))
    noise = _exponential(scores, seed, step, seeds, steps)
    drawn = (scores.softmax(-1) / noise).argmax(-1)
    return torch.where(greedy, logits.argmax(-1), drawn)
