"""One side of a transfer by NIXL (UCX inside) or Mooncake's transfer engine, for bench/peers: memory of the host,
over TCP, between two processes, one core for each, every byte compared.

  peers_python.py nixl|mooncake write|read [--blocks BYTES] [--size BYTES] [--iterations N]

The process that was started initiates; the one that it starts owns the other memory. Prints a JSON object with
"gbps". Runs with the interpreter of the environment that bench/peers makes; needs neither torch nor a GPU.
"""
import argparse
import json
import multiprocessing
import os
import random
import sys
import time

CORES = {"initiator": 0, "target": 1}
LIMIT_SECONDS = 60
POISON = 0xE5


def pinned(role):
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[CORES[role] % len(allowed)]})


def buffer_of(size):
    import numpy

    # Its pages are there before anything is measured.
    return numpy.full(size, POISON, dtype=numpy.uint8)


def fill(buffer, seed):
    import numpy

    buffer[:] = numpy.random.default_rng(seed).integers(0, 256, buffer.size, dtype=numpy.uint8)


def blocks_of(options):
    """(offset here, offset there, bytes) of each block, shuffled on both sides."""
    if not options.blocks:
        return [(0, 0, options.size)]
    here = list(range(0, options.size, options.blocks))
    there = list(here)
    generator = random.Random(1)
    generator.shuffle(here)
    generator.shuffle(there)
    return [(a, b, options.blocks) for a, b in zip(here, there)]


def is_right(blocks, ours, theirs):
    """Whether each block of ours and of theirs is the same."""
    return all((ours[a:a + size] == theirs[b:b + size]).all() for a, b, size in blocks)


# ---- NIXL ---------------------------------------------------------------------------------------


class Nixl:
    def __init__(self, role, buffer):
        from nixl_cu12 import _api

        os.environ.setdefault("UCX_TLS", "tcp,self")
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
        self.agent = _api.nixl_agent(role, _api.nixl_agent_config(backends=["UCX"]))
        self.buffer = buffer
        address = buffer.ctypes.data
        self.registered = self.agent.register_memory([(address, buffer.size, 0, "")], "DRAM")

    def about(self):
        return {"metadata": self.agent.get_agent_metadata(), "address": self.buffer.ctypes.data}

    def connect(self, other, blocks, operation):
        self.peer = self.agent.add_remote_agent(other["metadata"])
        here, there = self.buffer.ctypes.data, other["address"]
        local = self.agent.get_xfer_descs([(here + a, size, 0) for a, _, size in blocks], "DRAM")
        remote = self.agent.get_xfer_descs([(there + b, size, 0) for _, b, size in blocks], "DRAM")
        self.handle = self.agent.initialize_xfer(operation.upper(), local, remote, self.peer)

    def transfer(self):
        state = self.agent.transfer(self.handle)
        deadline = time.monotonic() + LIMIT_SECONDS
        while state not in ("DONE", "ERR"):
            state = self.agent.check_xfer_state(self.handle)
            if time.monotonic() > deadline:
                sys.exit(f"peers_python: NIXL did not end a transfer within {LIMIT_SECONDS} s")
        if state == "ERR":
            sys.exit("peers_python: NIXL failed a transfer")


# ---- Mooncake -----------------------------------------------------------------------------------


class Mooncake:
    def __init__(self, role, buffer):
        os.environ.setdefault("MC_FORCE_TCP", "true")
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            sys.exit("peers_python: Mooncake's engine did not start")
        self.buffer = buffer
        if self.engine.register_memory(buffer.ctypes.data, buffer.size) != 0:
            sys.exit("peers_python: Mooncake did not register memory")

    def about(self):
        return {"session": f"127.0.0.1:{self.engine.get_rpc_port()}", "address": self.buffer.ctypes.data}

    def connect(self, other, blocks, operation):
        self.session = other["session"]
        here, there = self.buffer.ctypes.data, other["address"]
        self.lists = ([here + a for a, _, _ in blocks], [there + b for _, b, _ in blocks],
                      [size for _, _, size in blocks])
        self.call = getattr(self.engine, f"batch_transfer_sync_{operation}")

    def transfer(self):
        if self.call(self.session, *self.lists) != 0:
            sys.exit("peers_python: Mooncake failed a transfer")


LIBRARIES = {"nixl": Nixl, "mooncake": Mooncake}


def target(options, pipe):
    pinned("target")
    buffer = buffer_of(options.size)
    fill(buffer, 2)
    library = LIBRARIES[options.library]("target", buffer)
    pipe.send(library.about())
    while (word := pipe.recv()) != "end":
        if word == "poison":
            buffer[:] = POISON
        pipe.send(buffer.tobytes() if word == "show" else "done")


def ask(pipe, word):
    pipe.send(word)
    if not pipe.poll(LIMIT_SECONDS):
        sys.exit("peers_python: the other process does not answer")
    return pipe.recv()


def run(options):
    import numpy

    processes = multiprocessing.get_context("spawn")
    pipe, theirs = processes.Pipe()
    other = processes.Process(target=target, args=(options, theirs), daemon=True)
    other.start()
    pinned("initiator")
    buffer = buffer_of(options.size)
    fill(buffer, 1)
    library = LIBRARIES[options.library]("initiator", buffer)
    if not pipe.poll(LIMIT_SECONDS):
        sys.exit("peers_python: the other process did not start")
    blocks = blocks_of(options)
    library.connect(pipe.recv(), blocks, options.operation)
    for _ in range(3):
        library.transfer()
    began = time.perf_counter()
    for _ in range(options.iterations):
        library.transfer()
    seconds = time.perf_counter() - began
    # One more, into memory that holds something else.
    if options.operation == "write":
        ask(pipe, "poison")
    else:
        buffer[:] = POISON
    library.transfer()
    there = numpy.frombuffer(ask(pipe, "show"), dtype=numpy.uint8)
    verified = is_right(blocks, buffer, there) and not (buffer == POISON).all()
    print(json.dumps({"library": options.library, "operation": options.operation, "blocks": options.blocks,
                      "gbps": options.size * options.iterations / seconds / 1e9, "verified": verified}), flush=True)
    pipe.send("end")
    other.join(5)
    # Neither library is waited for: what matters has been said.
    os._exit(0 if verified else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("operation", choices=("write", "read"))
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--iterations", type=int, default=10)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
