#!/usr/bin/env python3
"""One process reads the prompt, another writes the answer: pages of K and V go from the one to the
other by a one-sided write, and the tokens are those of a single process.

usage: kv_handover.py [--device cpu|cuda] [--prompt N] [--answer N]

The model is small, random and shaped like Qwen3. With --device cuda and two GPUs each process has
one of its own.
"""

import argparse
import multiprocessing
import time

import torch

from tensorferry import kernels, layers, transfer

SECONDS = 120
HIDDEN, HEADS, KV_HEADS, SIZE, INNER, LAYERS, WORDS = 256, 4, 2, 64, 512, 4, 1000
PAGE, PAGES = 16, 64


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = layers.RMSNorm(HIDDEN)
        self.qkv = torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
        self.q_norm, self.k_norm = layers.RMSNorm(SIZE), layers.RMSNorm(SIZE)
        self.attention = layers.PagedAttention(SIZE)
        self.out = torch.nn.Linear(HEADS * SIZE, HIDDEN, bias=False)
        self.between = layers.RMSNorm(HIDDEN)
        self.mlp = layers.CustomGatedMLP(HIDDEN, INNER)

    def forward(self, x, residual, batch, table, cache):
        x, residual = self.before(x, residual)
        q, k = kernels.qk_norm_rope_store(
            self.qkv(x), HEADS, KV_HEADS, self.q_norm.weight, self.k_norm.weight,
            batch["positions"], table, cache[0], cache[1], batch["slots"],
        )
        if batch["prefill"]:
            starts = batch["starts"]
            x = self.attention.prefill(
                q, cache[0], cache[1], starts, starts, len(q), batch["blocks"])
        else:
            x = self.attention.decode(q, cache[0], cache[1], batch["blocks"], batch["lengths"])
        x, residual = self.between(self.out(x.flatten(1)), residual)
        return self.mlp(x), residual


class Model(torch.nn.Module):
    """The same in every process: of one seed."""

    def __init__(self, device):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(WORDS, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = layers.RMSNorm(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, WORDS, bias=False)
        self.rotary = layers.RotaryEmbedding(SIZE, PAGE * PAGES)
        self.to(device, torch.bfloat16 if device.startswith("cuda") else torch.float32)
        self.device = device
        dtype = self.words.weight.dtype
        # K and V of each layer, in pages.
        self.caches = torch.zeros(
            LAYERS, 2, PAGES, PAGE, KV_HEADS, SIZE, dtype=dtype, device=device)

    @torch.no_grad()
    def next_word(self, words, first, pages):
        """Reads words, of which the first is at position `first`, and tells the next."""
        places = range(first, first + len(words))
        slots = [pages[place // PAGE] * PAGE + place % PAGE for place in places]

        def numbers(values, dtype=torch.int32):
            return torch.tensor(values, dtype=dtype, device=self.device)

        batch = {
            "prefill": len(words) > 1,
            "positions": numbers(list(places), torch.int64),
            "slots": numbers(slots),
            "starts": numbers([0, len(words)]),
            "lengths": numbers([first + len(words)]),
            "blocks": numbers([pages]),
        }
        x = self.words(numbers(words, torch.int64))
        residual = torch.zeros_like(x)
        for layer, cache in zip(self.layers, self.caches):
            x, residual = layer(x, residual, batch, self.rotary.cos_sin_cache, cache)
        x, _ = self.last(x, residual)
        return int(kernels.sample(self.head(x[-1:]))[0])

    def answer(self, word, first, pages, count):
        words = [word]
        while len(words) < count:
            words.append(self.next_word(words[-1:], first + len(words) - 1, pages))
        return words


def decode(address, device, prompt, count, answers):
    """Has pages of its own, in another order; gives their key, waits, and writes the answer."""
    model = Model(device)
    pages = list(range(PAGES))[::-1]
    connection = transfer.Endpoint().connect(address, SECONDS)
    region = connection.endpoint.register(model.caches)
    connection.send(region.key).wait(SECONDS)
    word = int.from_bytes(connection.take_notification(SECONDS), "little")
    answers.put(model.answer(word, prompt, pages, count))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--prompt", type=int, default=300, help="words")
    parser.add_argument("--answer", type=int, default=30, help="words")
    options = parser.parse_args()
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    devices = [options.device] * 2 if gpus == 0 else ["cuda:0", f"cuda:{gpus - 1}"]
    prompt = torch.randint(0, WORDS, (options.prompt,), generator=torch.Generator().manual_seed(1))

    model = Model(devices[0])
    pages = list(range(PAGES))
    first = model.next_word(prompt.tolist(), 0, pages)

    processes = multiprocessing.get_context("spawn")
    answers = processes.Queue()
    endpoint = transfer.Endpoint()
    other = processes.Process(
        target=decode,
        args=(endpoint.address, devices[1], options.prompt, options.answer, answers))
    other.start()
    connection = endpoint.accept(SECONDS)
    key = bytearray(4096)
    remote = connection.import_region(bytes(key[:connection.recv(key).wait(SECONDS)]))

    # Page p of each layer's K and V, which lie behind each other, goes to where the other has it.
    used = range(-(-options.prompt // PAGE))
    page_bytes = model.caches[0, 0, 0].nbytes
    here = [cache * PAGES + page for cache in range(2 * LAYERS) for page in used]
    there = [cache * PAGES + PAGES - 1 - page for cache in range(2 * LAYERS) for page in used]
    regions = [endpoint.register(model.caches, "")]

    def hand_over(**options):
        began = time.perf_counter()
        operation = transfer.send_kv(
            connection, regions, [remote], here, there, page_bytes, **options)
        nbytes = operation.wait(SECONDS)
        return operation, nbytes, time.perf_counter() - began

    _, _, first_seconds = hand_over()  # finds the way to the other's memory, once
    operation, nbytes, seconds = hand_over(notification=first.to_bytes(4, "little"))
    print(f"handed over {len(here)} pages, {nbytes} bytes, in {seconds * 1e3:.2f} ms (the first time "
          f"in {first_seconds * 1e3:.2f} ms): {nbytes / seconds / 1e9:.2f} GB/s by "
          f"{operation.path[0]}")

    theirs = answers.get(timeout=SECONDS)
    other.join(SECONDS)
    ours = model.answer(first, options.prompt, pages, options.answer)
    print("tokens:", *theirs)
    assert theirs == ours, f"a single process says {ours}"
    print("a single process says the same")


if __name__ == "__main__":
    main()
