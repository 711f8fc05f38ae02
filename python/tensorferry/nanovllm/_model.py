"""A model of random weights, in files as nano-vllm reads them."""

import json
import pathlib
import struct

import torch

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def _tensors(shape):
    """(name, sizes) of a Qwen3, as its checkpoints have them."""
    hidden, inner, size = shape["hidden"], shape["intermediate"], shape["head_size"]
    queries, keys = shape["heads"] * size, shape["kv_heads"] * size
    yield "model.embed_tokens.weight", (shape["vocab"], hidden)
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (queries, hidden)
        yield at + "self_attn.k_proj.weight", (keys, hidden)
        yield at + "self_attn.v_proj.weight", (keys, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, queries)
        yield at + "self_attn.q_norm.weight", (size,)
        yield at + "self_attn.k_norm.weight", (size,)
        yield at + "mlp.gate_proj.weight", (inner, hidden)
        yield at + "mlp.up_proj.weight", (inner, hidden)
        yield at + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (shape["vocab"], hidden)


def _random(name, sizes, generator):
    values = torch.randn(sizes, generator=generator)
    if len(sizes) == 1:
        return 1 + 0.1 * values
    # Embeddings so small that the layers decide which token comes, and not the last token alone.
    return 0.1 * values if "embed" in name else values / sizes[-1] ** 0.5


def _config(shape, dtype):
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": shape["head_size"],
        "hidden_act": "silu",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["intermediate"],
        "max_position_embeddings": 40960,
        "num_attention_heads": shape["heads"],
        "num_hidden_layers": shape["layers"],
        "num_key_value_heads": shape["kv_heads"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        # Tied, random weights would repeat each token for ever, whatever the layers do.
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": shape["vocab"],
    }


def write(folder, shape, dtype, seed=0):
    """config.json and model.safetensors, of weights that the seed decides."""
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(_config(shape, dtype)))
    header, end = {}, 0
    for name, sizes in _tensors(shape):
        start, end = end, end + torch.Size(sizes).numel() * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype], "shape": list(sizes), "data_offsets": [start, end]
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(seed)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, sizes in _tensors(shape):
            tensor = _random(name, sizes, generator).to(dtype)
            file.write(tensor.flatten().view(torch.uint8).numpy())
