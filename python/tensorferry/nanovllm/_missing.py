"""What nano-vllm imports, where it is not installed: only as much as nano-vllm uses of it.

flash_attn is our attention. The others are for machines that can install nothing, and only bench.py
takes them: none of them touches what is measured.
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import json
import pathlib
import struct
import sys
import types

import torch

from tensorferry import kernels


def _module(name, **contents):
    module = types.ModuleType(name, f"tensorferry's, for nano-vllm: {name} is not installed")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(contents)
    return module


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    softmax_scale,
    causal=False,
    block_table=None,
):
    return kernels.attention_prefill(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, softmax_scale, causal, block_table
    )


def flash_attn_with_kvcache(
    q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal=False
):
    out = kernels.attention_decode(
        q.squeeze(1), k_cache, v_cache, block_table, cache_seqlens, softmax_scale
    )
    return out.unsqueeze(1)


@contextlib.contextmanager
def flash_attn():
    """While nano-vllm is imported, which keeps the functions: nobody else shall find them."""
    if _imports("flash_attn"):
        yield
        return
    # First, as it looks for flash_attn, too, and would take ours for the whole of it.
    with contextlib.suppress(ImportError):
        from transformers import AutoConfig, AutoTokenizer, Qwen3Config  # noqa: F401
    sys.modules["flash_attn"] = _module(
        "flash_attn",
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )
    try:
        yield
    finally:
        del sys.modules["flash_attn"]


def _imports(name):
    try:  # it may be there, and made for another torch
        importlib.import_module(name)
    except ImportError:
        return False
    return True


# ---- for the benchmark only ---------------------------------------------------------------------


class _Hash:
    """64 bits of another hash: blocks are told apart as well by it."""

    def __init__(self):
        self._hash = hashlib.blake2b(digest_size=8)
        self.update = self._hash.update

    def intdigest(self):
        return int.from_bytes(self._hash.digest(), "big")


class _Config:
    """config.json, as attributes."""

    @classmethod
    def from_pretrained(cls, folder):
        self = cls()
        self.__dict__.update(json.loads((pathlib.Path(folder) / "config.json").read_text()))
        self.dtype = self.torch_dtype = getattr(torch, self.torch_dtype)
        return self


class _Weights:
    """safetensors.safe_open(): a header of JSON, then the tensors' bytes."""

    def __init__(self, path, _framework, _device):
        # On the host, whatever torch's default device is just then.
        self._bytes = torch.from_file(
            str(path), size=pathlib.Path(path).stat().st_size, dtype=torch.uint8, device="cpu"
        )
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self._header = json.loads(file.read(length))
        self._header.pop("__metadata__", None)
        self._start = 8 + length

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def keys(self):
        return list(self._header)

    def get_tensor(self, name):
        entry = self._header[name]
        begin, end = (self._start + offset for offset in entry["data_offsets"])
        dtype = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
        # Copied: a part of the file need not begin where a tensor of its type may.
        return self._bytes[begin:end].clone().view(dtype[entry["dtype"]]).view(entry["shape"])


class _Progress:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _):
        return lambda *_, **__: None


def _others():
    return {
        "xxhash": lambda: {"xxhash": _module("xxhash", xxh64=_Hash)},
        "transformers": lambda: {
            "transformers": _module(
                "transformers", AutoConfig=_Config, Qwen3Config=_Config, AutoTokenizer=None
            )
        },
        "safetensors": lambda: {"safetensors": _module("safetensors", safe_open=_Weights)},
        "tqdm": lambda: {
            "tqdm": _module("tqdm", __path__=[]),
            "tqdm.auto": _module("tqdm.auto", tqdm=_Progress),
        },
    }


def provide_others():
    """Puts something in the place of what nano-vllm imports and is missing; returns its names."""
    provided = []
    for name, make in _others().items():
        if not _imports(name):
            sys.modules.update(make())
            provided.append(name)
    return provided
