"""nano-vllm's layers on our ops: methods for its own classes, which keep what they hold."""

from tensorferry import kernels
from tensorferry.nanovllm import _needs


def replacements(nano, ops):
    """(module, name in it, function), of ops, which is tensorferry.kernels or torch's formulas."""
    return [*_rowwise(nano, ops), *_attention(nano, ops), *_sampler(nano, ops)]


def _rowwise(nano, ops):
    def silu_and_mul(self, x):
        return ops.silu_and_mul(x)

    def rms_norm(self, x, residual=None):
        if residual is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def rope(self, positions, query, key):
        return ops.rope(positions, query, key, self.cos_sin_cache)

    yield nano.activation, "SiluAndMul.forward", silu_and_mul
    yield nano.layernorm, "RMSNorm.forward", rms_norm
    yield nano.rotary_embedding, "RotaryEmbedding.forward", rope


def _attention(nano, ops):
    def attend(self, q, k, v):
        context = nano.context.get_context()
        tables = context.block_tables
        if not context.is_prefill:
            out = ops.attention_decode(
                q, self.k_cache, self.v_cache, tables, context.context_lens, self.scale
            )
            return out.unsqueeze(1)
        if tables is not None:  # a part of the keys is in the caches only
            k, v = self.k_cache, self.v_cache
        return ops.attention_prefill(
            q,
            k,
            v,
            context.cu_seqlens_q,
            context.cu_seqlens_k,
            context.max_seqlen_q,
            self.scale,
            True,
            tables,
        )

    def attention(self, q, k, v):
        if self.k_cache.numel():  # none while nano-vllm finds out how much memory it needs
            slots = nano.context.get_context().slot_mapping
            ops.store_kvcache(k, v, self.k_cache, self.v_cache, slots)
        return attend(self, q, k, v)

    before = _needs.find(nano.qwen3, "Qwen3Attention.forward")

    def block(self, positions, hidden_states):
        if self.qkv_bias:  # such models have no norms of q and k
            return before(self, positions, hidden_states)
        qkv = self.qkv_proj(hidden_states)
        cached = self.attn.k_cache.numel() > 0
        q, k = ops.qk_norm_rope_store(
            qkv,
            self.num_heads,
            self.num_kv_heads,
            self.q_norm.weight,
            self.k_norm.weight,
            positions,
            self.rotary_emb.cos_sin_cache,
            self.attn.k_cache if cached else None,
            self.attn.v_cache if cached else None,
            nano.context.get_context().slot_mapping if cached else None,
            self.q_norm.eps,
        )
        v = qkv[:, -self.kv_size :].unflatten(-1, (self.num_kv_heads, self.head_dim))
        return self.o_proj(attend(self.attn, q, k, v).flatten(1, -1))

    yield nano.attention, "store_kvcache", ops.store_kvcache
    yield nano.attention, "Attention.forward", attention
    yield nano.qwen3, "Qwen3Attention.forward", block


def _sampler(nano, ops):
    def sample(self, logits, temperatures):
        seeds = kernels._drawn_seed(logits.device)  # torch's formulas have no generator's draws
        return ops.sample(logits, temperatures, seeds=seeds)

    yield nano.sampler, "Sampler.forward", sample
