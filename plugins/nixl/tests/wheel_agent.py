"""One of two agents of NIXL's wheel, for test_wheel.py: obeys the lines of its standard input, which
are Python expressions over this module, and answers each by one line."""
import base64
import importlib.util
import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print, from their import on

import numpy

WHEEL = next(name for name in ("nixl_cu13", "nixl_cu12") if importlib.util.find_spec(name))
api = importlib.import_module(WHEEL + "._api")

DEADLINE = 30.0  # seconds of each wait


class Agent:
    """An agent with one back end and one array of bytes."""

    def __init__(self, name, backend="FERRY"):
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=[backend]))
        self.memory = None
        self.handles = {}

    def allocate(self, size, seed):
        self.memory = numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)
        self.agent.register_memory(self.agent.get_reg_descs([(self.address, size, 0, "")], "DRAM"))
        return self.address

    def parts(self, *parts):
        """Descriptors of parts of the memory, by offset and size."""
        return self.agent.get_reg_descs(
            [(self.address + offset, size, 0, "") for offset, size in parts], "DRAM")

    def register(self, *parts):
        self.agent.register_memory(self.parts(*parts))

    def deregister(self, *parts):
        self.agent.deregister_memory(self.parts(*parts))

    def partial(self, with_connection, *parts):
        metadata = self.agent.get_partial_agent_metadata(self.parts(*parts), with_connection)
        return base64.b64encode(metadata).decode()

    @property
    def address(self):
        return self.memory.ctypes.data

    def digest(self):
        return hash_of(self.memory.tobytes())

    def metadata(self):
        return base64.b64encode(self.agent.get_agent_metadata()).decode()

    def load(self, metadata):
        return self.agent.add_remote_agent(base64.b64decode(metadata)).decode()

    def prepare(self, key, operation, peer, remote, ranges=None, message=b""):
        """`ranges`: of own offset, peer's offset and length; all of the memory by default."""
        if ranges is None:
            ranges = [(0, 0, len(self.memory))]
        ranges = numpy.asarray(ranges, dtype=numpy.uint64)
        zeros = numpy.zeros(len(ranges), dtype=numpy.uint64)
        own = numpy.stack([ranges[:, 0] + numpy.uint64(self.address), ranges[:, 2], zeros], axis=1)
        peers = numpy.stack([ranges[:, 1] + numpy.uint64(remote), ranges[:, 2], zeros], axis=1)
        begun = time.monotonic()
        self.handles[key] = self.agent.initialize_xfer(
            operation, self.agent.get_xfer_descs(own, "DRAM"),
            self.agent.get_xfer_descs(peers, "DRAM"), peer, message)
        return time.monotonic() - begun

    def start(self, key):
        return self.agent.transfer(self.handles[key])

    def wait(self, key):
        end = time.monotonic() + DEADLINE
        while (state := self.agent.check_xfer_state(self.handles[key])) == "PROC":
            if time.monotonic() > end:
                return "TIMEOUT"
        return state

    def release(self, key):
        self.agent.release_xfer_handle(self.handles.pop(key))

    def await_notifications(self, sender, count):
        """Sizes and digests of `count` of them."""
        found = []
        end = time.monotonic() + DEADLINE
        while len(found) < count and time.monotonic() < end:
            found += self.agent.get_new_notifs().get(sender, [])
        return [(len(message), hash_of(message)) for message in found]


def hash_of(data):
    import zlib
    return zlib.crc32(data)


def pages(count, size, seed):
    """`count` pages of `size` bytes, shuffled on the peer's side."""
    own = numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(size)
    peers = numpy.random.default_rng(seed).permutation(own)
    return numpy.stack([own, peers, numpy.full(count, size, dtype=numpy.uint64)], axis=1)


def main():
    scope = {"Agent": Agent, "hash_of": hash_of, "pages": pages, "os": os}
    for line in sys.stdin:
        try:
            if line.startswith("let "):
                exec(line[4:], scope)
                ANSWERS.write("None\n")
            else:
                ANSWERS.write(repr(eval(line, scope)) + "\n")
        except Exception as error:  # the test is told
            ANSWERS.write(repr(f"{type(error).__name__}: {error}") + "\n")


main()
