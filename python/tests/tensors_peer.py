"""The other end of test_tensors: takes weights, or sends them; commands as peer.py has them."""

import json
import sys

import numpy as np

sys.modules["torch"] = None  # takes seconds to load, and is of no use here

from tensorferry import errors, transfer  # noqa: E402

SECONDS = 30
SIZES = {"first": 4, "odd": 8}


class Peer:
    def __init__(self):
        self.endpoint = transfer.Endpoint(listen_host="127.0.0.1")
        self.tensors = self.weights(0)

    def weights(self, fill):
        return {name: np.full(size, fill, np.float32) for name, size in SIZES.items()}

    def address(self):
        return self.endpoint.address.hex()

    def accept(self):
        self.connection = self.endpoint.accept(SECONDS)

    def run(self, what, *arguments):
        """[error or None, the values that our tensors have then]."""
        error = None
        try:
            getattr(self, what)(*arguments)
        except errors.Error as raised:
            error = f"{type(raised).__name__}: {raised}"
        return [error, sorted({value for x in self.tensors.values() for value in x.tolist()})]

    def receive_weights(self):
        transfer.receive_weights(self.tensors, self.connection, SECONDS)

    def receive(self):
        transfer.BroadcastReceiver(self.tensors, self.connection).receive(SECONDS)

    def push(self, fill):
        transfer.push_weights(self.weights(fill), [self.connection], SECONDS)

    def broadcast(self, fill):
        transfer.broadcast_weights(self.weights(fill), [self.connection], fill, SECONDS)


def main():
    peer = Peer()
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(peer, call["do"])(*call["with"])), flush=True)


if __name__ == "__main__":
    main()
