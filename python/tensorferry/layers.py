"""Modules for Qwen3-like decoders on our kernels; weights have the names that checkpoints have."""

import functools

import torch
from torch import nn

from tensorferry import _formulas, errors, kernels

__all__ = ["CustomGatedMLP", "RMSNorm", "RotaryEmbedding", "PagedAttention"]

_GATES = {
    "silu": "silu_and_mul",
    "swish": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
    "gelu_pytorch_tanh": "gelu_tanh_and_mul",
}


def _source(use_custom_kernels):
    return kernels if use_custom_kernels else _formulas


def _rows_source(use_custom_kernels, *tensors, vector=None):
    """The formulas also where the kernels do not take the tensors."""
    return _source(use_custom_kernels and kernels.takes_rows(*tensors, vector=vector))


def _load(name, param, loaded_weight, shard_id=None):
    """The weight_loader of a parameter, as nano-vllm calls it: shard 0 is gate_proj, 1 is up_proj."""
    part = param.data
    if shard_id is not None:
        part = part.chunk(2)[shard_id]
        name = name.replace("gate_up", ("gate", "up")[shard_id])
    if loaded_weight.shape != part.shape:
        raise errors.InvalidArgument(
            f"CustomGatedMLP: the checkpoint's {name} is {list(loaded_weight.shape)}; this layer's is "
            f"{list(part.shape)}: give the layer the checkpoint's hidden_size and intermediate_size"
        )
    part.copy_(loaded_weight)


class CustomGatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up as one product.

    Weights: gate_proj, up_proj and down_proj, as Qwen3's checkpoints have them, or gate_up_proj in
    the place of the first two; by load_state_dict(), or by nano-vllm's loader, which gives each
    parameter's weight_loader(parameter, weight, shard).
    """

    def __init__(
        self,
        hidden_size,
        intermediate_size,
        hidden_act="silu",
        bias=False,
        use_custom_kernels=True,
    ):
        super().__init__()
        if isinstance(hidden_act, bool):  # (hidden_size, intermediate_size, bias, ...), as it once was
            hidden_act, bias = "silu", hidden_act
        if hidden_act not in _GATES:
            raise ValueError(f"CustomGatedMLP: hidden_act is {hidden_act!r}; it can be one of "
                             f"{', '.join(_GATES)}")
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.use_custom_kernels = use_custom_kernels
        self._act = _GATES[hidden_act]
        self._register_load_state_dict_pre_hook(self._join)
        self._set_loaders()

    def _set_loaders(self):
        for name, param in self.named_parameters():
            param.weight_loader = functools.partial(_load, name)

    def __setstate__(self, state):
        super().__setstate__(state)
        self._set_loaders()  # a copy of a parameter has none

    @staticmethod
    def _join(state, prefix, *_):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{prefix}{part}_proj.{kind}", None) for part in ("gate", "up")]
            if all(part is not None for part in parts):
                state[f"{prefix}gate_up_proj.{kind}"] = torch.cat(parts)

    def forward(self, x):
        both = self.gate_up_proj(x)
        act = getattr(_rows_source(self.use_custom_kernels, both), self._act)
        return self.down_proj(act(both))


class RMSNorm(nn.Module):
    """forward(x) -> out; forward(x, residual) -> (out, x + residual)."""

    def __init__(self, hidden_size, eps=1e-6, use_custom_kernels=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps
        self.use_custom_kernels = use_custom_kernels

    def forward(self, x, residual=None):
        given = (x,) if residual is None else (x, residual)
        source = _rows_source(self.use_custom_kernels, *given, vector=self.weight)
        if residual is None:
            return source.rms_norm(x, self.weight, self.eps)
        return source.add_rms_norm(x, residual, self.weight, self.eps)


class RotaryEmbedding(nn.Module):
    """forward(positions, q, k) -> (q, k), by halves; q and k are [tokens, heads, head_size]."""

    def __init__(self, head_size, max_position, base=1e6, use_custom_kernels=True):
        super().__init__()
        self._sizes = (head_size, max_position, base)
        self.register_buffer("cos_sin_cache", self._table(), persistent=False)
        self.use_custom_kernels = use_custom_kernels

    def _table(self):
        head_size, max_position, base = self._sizes
        frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float64), frequencies)
        return torch.cat((angles.cos(), angles.sin()), -1).float()

    def _apply(self, fn, recurse=True):
        """The table stays float32, and exact, whatever the model is cast to."""
        super()._apply(fn, recurse)
        if self.cos_sin_cache.dtype != torch.float32:
            self.cos_sin_cache = self._table().to(self.cos_sin_cache.device)
        return self

    def forward(self, positions, q, k):
        return _source(self.use_custom_kernels).rope(positions, q, k, self.cos_sin_cache)


class PagedAttention(nn.Module):
    """Attention over caches of pages, [blocks, block, kv heads, head size] each."""

    def __init__(self, head_size, scale=None, use_custom_kernels=True):
        super().__init__()
        self.scale = scale if scale is not None else head_size**-0.5
        self.use_custom_kernels = use_custom_kernels

    def prefill(self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, block_tables=None):
        """k and v are the caches where there are block_tables."""
        return _source(self.use_custom_kernels).attention_prefill(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, self.scale, True, block_tables
        )

    def decode(self, q, k_cache, v_cache, block_tables, context_lens):
        return _source(self.use_custom_kernels).attention_decode(
            q, k_cache, v_cache, block_tables, context_lens, self.scale
        )
