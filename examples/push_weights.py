#!/usr/bin/env python3
"""A trainer gives its weights to two inference processes, which go on with them.

usage: push_weights.py [--device cpu|cuda]
"""

import argparse
import multiprocessing
import time

import torch

from tensorferry import transfer

SECONDS = 120


def make_model(device, seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    return torch.nn.Sequential(*layers).to(device)


def infer(address, device, answers):
    """Has weights of its own, until the trainer's come."""
    model = make_model(device, seed=2)
    connection = transfer.Endpoint().connect(address, SECONDS)
    transfer.receive_weights(model.state_dict(), connection, SECONDS)
    with torch.no_grad():
        answers.put(model(torch.ones(1, 1024, device=device)).tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    device = parser.parse_args().device
    model = make_model(device, seed=1)

    processes = multiprocessing.get_context("spawn")
    answers = processes.Queue()
    endpoint = transfer.Endpoint()
    started = [
        processes.Process(target=infer, args=(endpoint.address, device, answers))
        for _ in range(2)
    ]
    for process in started:
        process.start()
    peers = [endpoint.accept(SECONDS) for _ in started]

    began = time.perf_counter()
    nbytes = transfer.push_weights(model.state_dict(), peers, SECONDS)
    seconds = time.perf_counter() - began
    print(f"pushed {nbytes} bytes to {len(peers)} peers in {seconds * 1e3:.1f} ms: "
          f"{nbytes / seconds / 1e9:.2f} GB/s")

    with torch.no_grad():
        right = model(torch.ones(1, 1024, device=device)).tolist()
    for process in started:
        assert answers.get(timeout=SECONDS) == right, "a peer's answer differs"
    for process in started:
        process.join(SECONDS)
    print("both peers answer as the trainer does")


if __name__ == "__main__":
    main()
