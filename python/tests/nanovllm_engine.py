"""Small models with their expected outputs, for the tests of tensorferry.nanovllm."""

import contextlib
import random

import torch
import torch.nn.functional as F

from tensorferry import nanovllm
from tensorferry.nanovllm import _cpu, _missing, _model, _run

SHAPE = dict(layers=2, hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=64, vocab=500)


def write_model(folder, dtype=torch.float32, **changes):
    _model.write(folder, SHAPE | changes, dtype)
    return folder


def prompts_of(*lengths):
    generator = random.Random(3)
    return [[generator.randrange(SHAPE["vocab"]) for _ in range(n)] for n in lengths]


@contextlib.contextmanager
def engine(folder, way="kernels", cpu=True, stage_decode=True, **changes):
    """nano-vllm's LLM on the model, ended afterwards; of `changes`, cache_bytes is for the CPU."""
    cache_bytes = changes.pop("cache_bytes", 64 << 20)
    options = dict(enforce_eager=cpu, max_model_len=512, max_num_batched_tokens=1024,
                   max_num_seqs=8, gpu_memory_utilization=1.0 if cpu else 0.3) | changes
    nanovllm.load()
    with _cpu.engine_on_cpu(cache_bytes) if cpu else contextlib.nullcontext():
        settings = {"way": way, "model": str(folder), "engine": options}
        _, llm = _run.make_engine(settings | {"stage_decode": stage_decode})
        try:
            yield llm
        finally:
            _run.end(llm)


def greedy(llm, prompts, new=6):
    from nanovllm import SamplingParams

    parameters = SamplingParams(temperature=1e-6, max_tokens=new, ignore_eos=True)
    return _run.generate(llm, prompts, parameters)[0]


class Reference:
    """The model in float64, of plain operations; it computes all anew for each token."""

    def __init__(self, folder):
        weights = _missing._Weights(folder / "model.safetensors", "pt", "cpu")
        self.weights = {name: weights.get_tensor(name).double() for name in weights.keys()}

    def _norm(self, x, name):
        scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return x * scale * self.weights[name + ".weight"]

    def _linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    @staticmethod
    def _turned(x):
        half = x.shape[-1] // 2
        rates = 1e6 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * rates
        a, b = x.split(half, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()),
                         -1)

    def _attention(self, x, at):
        size = SHAPE["head_size"]
        q, k, v = (self._linear(x, f"{at}{part}_proj").unflatten(-1, (-1, size)) for part in "qkv")
        q = self._turned(self._norm(q, at + "q_norm"))
        k = self._turned(self._norm(k, at + "k_norm"))
        group = q.shape[1] // k.shape[1]
        q, k, v = (y.transpose(0, 1) for y in (q, k.repeat_interleave(group, 1),
                                               v.repeat_interleave(group, 1)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._linear(out.transpose(0, 1).flatten(1), at + "o_proj")

    def logits(self, tokens):
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        for layer in range(SHAPE["layers"]):
            at = f"model.layers.{layer}."
            x = x + self._attention(self._norm(x, at + "input_layernorm"), at + "self_attn.")
            y = self._norm(x, at + "post_attention_layernorm")
            gate = F.silu(self._linear(y, at + "mlp.gate_proj"))
            x = x + self._linear(gate * self._linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
        return self._linear(self._norm(x[-1], "model.norm"), "lm_head")

    def greedy(self, prompts, new=6):
        answers = []
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(new):
                tokens.append(int(self.logits(tokens).argmax()))
            answers.append(tokens[len(prompt) :])
        return answers
