"""Two agents of NIXL's wheel in two processes on one machine, for bench/nixl: every byte is compared.

  nixl_agents.py BACKEND rate --operation write|read [--blocks BYTES] [--size BYTES] [--iterations N] [--memory cuda]
  nixl_agents.py BACKEND latency [--size BYTES] [--iterations N]
  nixl_agents.py BACKEND prepare [--descriptors N]
  nixl_agents.py BACKEND stopped --operation write|read

The process that was started initiates, and polls; the one that it starts owns the other memory. Prints a JSON object.
`latency`: of writes, from transfer() to the state DONE, while the target polls for notifications. `prepare`: of
initialize_xfer for that many descriptors of 512 bytes, shuffled at the target, and of the first transfer. `stopped`: seconds from SIGSTOP of the target, in the
middle of transfers, to an error here. The libraries' own settings come from the environment.

Memory of the host, or of GPUs (needs torch): the first process has the first GPU, the second the next one if there is.
"""
import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time

LIMIT_SECONDS = 60
POISON = 0xE5
PREPARED_BYTES = 512


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def nixl_api():
    """The Python interface of the wheel that is installed."""
    for name in ("nixl_cu12", "nixl_cu13"):
        if importlib.util.find_spec(name):
            return importlib.import_module(f"{name}._api")
    sys.exit("nixl_agents: neither nixl_cu12 nor nixl_cu13 is installed")


class HostMemory:
    kind, device = "DRAM", 0

    def __init__(self, _number, values):
        self.values = values.copy()
        self.address = self.values.ctypes.data

    def fill(self, value):
        self.values[:] = value

    def show(self):
        return self.values


class GpuMemory:
    kind = "VRAM"

    def __init__(self, number, values):
        import torch

        self.device = number % torch.cuda.device_count()
        self.values = torch.from_numpy(values.copy()).to(f"cuda:{self.device}")
        self.address = self.values.data_ptr()
        self.wait = lambda: torch.cuda.synchronize(self.device)
        self.wait()

    def fill(self, value):
        self.values.fill_(value)
        self.wait()

    def show(self):
        return self.values.cpu().numpy()


class Agent:
    """An agent with one back end and `size` bytes of memory, whose pages are there before anything is measured."""

    def __init__(self, options, number):
        import numpy

        api = nixl_api()
        self.agent = api.nixl_agent(("initiator", "target")[number],
                                    api.nixl_agent_config(backends=[options.backend]))
        values = numpy.random.default_rng(number + 1).integers(0, 256, options.size, dtype=numpy.uint8)
        self.memory = {"host": HostMemory, "cuda": GpuMemory}[options.memory](number, values)
        self.agent.register_memory([(self.memory.address, options.size, self.memory.device, "")], self.memory.kind)

    def about(self):
        return {"metadata": self.agent.get_agent_metadata(), "address": self.memory.address,
                "device": self.memory.device}

    def load(self, other):
        self.peer, self.other = self.agent.add_remote_agent(other["metadata"]), other

    def descriptors(self, ranges):
        """The two lists of an array of (offset here, offset there, bytes)."""
        import numpy

        lists = []
        here = {"address": self.memory.address, "device": self.memory.device}
        for column, side in enumerate((here, self.other)):
            rows = numpy.zeros((len(ranges), 3), dtype=numpy.uint64)
            rows[:, 0] = ranges[:, column] + numpy.uint64(side["address"])
            rows[:, 1] = ranges[:, 2]
            rows[:, 2] = side["device"]
            lists.append(self.agent.get_xfer_descs(rows, self.memory.kind))
        return lists

    def initialize(self, operation, lists):
        self.handle = self.agent.initialize_xfer(operation.upper(), *lists, self.peer)

    def transfer(self, limit=LIMIT_SECONDS):
        """Polls to the end. Raises RuntimeError for an error or a transfer that does not end."""
        state = self.agent.transfer(self.handle)
        end = time.monotonic() + limit
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
            if state == "PROC" and time.monotonic() > end:
                raise TimeoutError(f"a transfer did not end within {limit} s")
        if state != "DONE":
            raise RuntimeError(f"a transfer ended with {state}")


def target(options, pipe):
    agent = Agent(options, 1)
    pipe.send(agent.about())
    while True:
        while options.what == "latency" and not pipe.poll():  # as engines do
            for _ in range(100):
                agent.agent.get_new_notifs()
        try:
            word = pipe.recv()
        except EOFError:  # the other process has what it wanted
            os._exit(0)
        if word == "poison":
            agent.memory.fill(POISON)
        pipe.send({"show": lambda: agent.memory.show().tobytes(), "cpu": cpu_seconds}.get(word, lambda: "done")())


class Pair:
    """An agent here, and the other process."""

    def __init__(self, options):
        processes = multiprocessing.get_context("spawn")
        self.pipe, theirs = processes.Pipe()
        self.process = processes.Process(target=target, args=(options, theirs), daemon=True)
        self.process.start()
        self.agent = Agent(options, 0)
        if not self.pipe.poll(LIMIT_SECONDS):
            sys.exit("nixl_agents: the other process did not start")
        self.agent.load(self.pipe.recv())

    def ask(self, word):
        self.pipe.send(word)
        if not self.pipe.poll(LIMIT_SECONDS):
            sys.exit("nixl_agents: the other process does not answer")
        return self.pipe.recv()

    def is_right_after_one_more(self, operation, ranges):
        """Whether one more transfer, into memory that holds something else, brings each range whole."""
        import numpy

        if operation == "write":
            self.ask("poison")
        else:
            self.agent.memory.fill(POISON)
        self.agent.transfer()
        ours = self.agent.memory.show()
        theirs = numpy.frombuffer(self.ask("show"), dtype=numpy.uint8)
        return bool(all((ours[a:a + size] == theirs[b:b + size]).all() for a, b, size in ranges.tolist())
                    and not (ours[: ranges[0][2]] == POISON).all())


def ranges_of(size, block, seed):
    """(offset here, offset there, bytes) of each block, shuffled on both sides."""
    import numpy

    if not block:
        return numpy.array([[0, 0, size]], dtype=numpy.uint64)
    offsets = numpy.arange(0, size - block + 1, block, dtype=numpy.uint64)
    generator = numpy.random.default_rng(seed)
    here, there = generator.permutation(offsets), generator.permutation(offsets)
    return numpy.stack([here, there, numpy.full(len(offsets), block, dtype=numpy.uint64)], axis=1)


def rate(options):
    pair = Pair(options)
    ranges = ranges_of(options.size, options.blocks, 3)
    pair.agent.initialize(options.operation, pair.agent.descriptors(ranges))
    for _ in range(3):
        pair.agent.transfer()
    cpu = cpu_seconds() + pair.ask("cpu")
    began = time.perf_counter()
    for _ in range(options.iterations):
        pair.agent.transfer()
    seconds = time.perf_counter() - began
    cpu = cpu_seconds() + pair.ask("cpu") - cpu
    gigabytes = options.size * options.iterations / 1e9
    return {"gbps": gigabytes / seconds, "cpu_seconds_per_gb": cpu / gigabytes,
            "verified": pair.is_right_after_one_more(options.operation, ranges)}


def latency(options):
    pair = Pair(options)
    ranges = ranges_of(options.size, 0, 3)
    pair.agent.initialize("write", pair.agent.descriptors(ranges))
    for _ in range(options.iterations // 10):
        pair.agent.transfer()
    times = []
    cpu = cpu_seconds() + pair.ask("cpu")
    for _ in range(options.iterations):
        began = time.perf_counter()
        pair.agent.transfer()
        times.append(time.perf_counter() - began)
    cpu = cpu_seconds() + pair.ask("cpu") - cpu
    times.sort()
    return {"us_p50": statistics.median(times) * 1e6, "us_p99": times[int(len(times) * 0.99)] * 1e6,
            "cpu_us": cpu / options.iterations * 1e6, "verified": pair.is_right_after_one_more("write", ranges)}


def prepare(options):
    import numpy

    options.size = 2 * PREPARED_BYTES * options.descriptors  # with gaps, so that neighbours are not merged
    pair = Pair(options)
    offsets = numpy.arange(options.descriptors, dtype=numpy.uint64) * numpy.uint64(2 * PREPARED_BYTES)
    there = numpy.random.default_rng(3).permutation(offsets)
    ranges = numpy.stack([offsets, there, numpy.full(len(offsets), PREPARED_BYTES, dtype=numpy.uint64)], axis=1)
    # One byte first, so that the connection is there.
    pair.agent.initialize("write", pair.agent.descriptors(ranges[:1]))
    pair.agent.transfer()
    lists = pair.agent.descriptors(ranges)
    began = time.perf_counter()
    pair.agent.initialize("write", lists)
    prepared = time.perf_counter()
    pair.agent.transfer()
    ended = time.perf_counter()
    return {"prepare_ms": (prepared - began) * 1e3, "first_ms": (ended - prepared) * 1e3,
            "verified": pair.is_right_after_one_more("write", ranges)}


def stopped(options):
    pair = Pair(options)
    pair.agent.initialize(options.operation, pair.agent.descriptors(ranges_of(options.size, 0, 3)))
    for _ in range(5):
        pair.agent.transfer()
    pair.agent.agent.transfer(pair.agent.handle)
    os.kill(pair.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        # What is on its way when the target stops may still end.
        while pair.agent.agent.check_xfer_state(pair.agent.handle) == "PROC":
            if time.monotonic() > began + LIMIT_SECONDS:
                raise TimeoutError("it did not end")
        while True:
            pair.agent.transfer(began + LIMIT_SECONDS - time.monotonic())
    except TimeoutError:
        answer = {"told": False}
    except Exception:  # NIXL has an exception class for each status
        answer = {"told": True, "seconds_to_error": time.monotonic() - began}
    os.kill(pair.process.pid, signal.SIGKILL)
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("what", choices=("rate", "latency", "prepare", "stopped"))
    parser.add_argument("--operation", choices=("write", "read"), default="write")
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--descriptors", type=int, default=100_000)
    parser.add_argument("--memory", choices=("host", "cuda"), default="host")
    options = parser.parse_args()
    answer = {"rate": rate, "latency": latency, "prepare": prepare, "stopped": stopped}[options.what](options)
    print(json.dumps(answer), flush=True)
    # The other process is a daemon; neither library's end is waited for.
    os._exit(0 if answer.get("verified", True) else 1)


if __name__ == "__main__":
    main()
