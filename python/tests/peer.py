"""The peer process of a test: executes commands, one line of JSON each, and answers with one line each."""

import json
import os
import sys

import numpy as np

sys.modules["torch"] = None  # takes seconds to load, and is of no use here

from tensorferry import transfer  # noqa: E402

SECONDS = 60


class Peer:
    def __init__(self):
        self.endpoint = transfer.Endpoint(listen_host="127.0.0.1")
        self.memory = None
        self.region = None
        self.connection = None

    def address(self):
        return self.endpoint.address.hex()

    def register(self, nbytes, fill=0, rights="rw"):
        self.memory = np.full(nbytes, fill, dtype=np.uint8)
        self.region = self.endpoint.register(self.memory, rights)
        return self.region.key.hex()

    def accept(self):
        self.connection = self.endpoint.accept(SECONDS)
        return self.connection.peer

    def send(self, nbytes, fill, tag=0):
        return self.connection.send(np.full(nbytes, fill, dtype=np.uint8), tag).wait(SECONDS)

    def say(self, text, tag, size_tag):
        text = text.encode()
        self.connection.send(len(text).to_bytes(8, "little"), size_tag + tag).wait(SECONDS)
        self.connection.send(text, tag).wait(SECONDS)

    def receive(self, nbytes, tag=0):
        buffer = bytearray(nbytes)
        got = self.connection.recv(buffer, tag).wait(SECONDS)
        return bytes(buffer[:got]).hex()

    def values(self):
        return sorted(int(value) for value in np.unique(self.memory))

    def notification(self):
        return self.connection.take_notification(SECONDS).hex()

    def deregister(self):
        self.region.deregister(SECONDS)

    def die(self):
        os.kill(os.getpid(), 9)


def main():
    peer = Peer()
    for line in sys.stdin:
        call = json.loads(line)
        answer = getattr(peer, call["do"])(*call["with"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
