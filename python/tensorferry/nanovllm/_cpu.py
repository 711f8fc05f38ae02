"""Runs nano-vllm's engine on the CPU, for tests, by replacing the GPU functions that it calls."""

import contextlib
import unittest.mock

import torch
import torch.distributed


@contextlib.contextmanager
def engine_on_cpu(cache_bytes=64 << 20):
    """Inside, an LLM made with enforce_eager=True runs on the CPU; caches get about cache_bytes."""
    initialise, make, default = (
        torch.distributed.init_process_group,
        torch.tensor,
        torch.set_default_device,
    )

    def alone(_backend, _address, world_size, rank):
        initialise("gloo", store=torch.distributed.HashStore(), world_size=world_size, rank=rank)

    def unpinned(*values, pin_memory=False, **options):
        return make(*values, **options)

    nothing = dict.fromkeys(
        ("set_device", "empty_cache", "reset_peak_memory_stats", "synchronize"),
        lambda *_: None,
    )
    memory = {
        "mem_get_info": lambda: (cache_bytes, cache_bytes),
        "memory_stats": lambda: {f"allocated_bytes.all.{x}": 0 for x in ("peak", "current")},
    }
    with contextlib.ExitStack() as stack:

        def replace(owner, **functions):
            stack.enter_context(unittest.mock.patch.multiple(owner, **functions))

        replace(torch.cuda, **nothing, **memory)
        replace(torch.distributed, init_process_group=alone)
        replace(torch, tensor=unpinned, set_default_device=lambda _: default("cpu"))
        replace(torch.Tensor, cuda=lambda self, **_: self)
        yield
