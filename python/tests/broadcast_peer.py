"""A receiver of broadcasts for a test: executes commands, one line of JSON each, as peer.py does."""

import json
import sys

import numpy as np

sys.modules["torch"] = None  # takes seconds to load, and is of no use here

from tensorferry import errors, transfer  # noqa: E402

SECONDS = 30


class Receiver:
    def __init__(self):
        self.endpoint = transfer.Endpoint(listen_host="127.0.0.1")
        self.receiver = None
        self.trainer = None

    def join(self, address, shapes, dtype="float32", in_place=False):
        self.trainer = self.endpoint.connect(bytes.fromhex(address), SECONDS)
        weights = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
        self.receiver = transfer.BroadcastReceiver(weights, self.trainer, in_place=in_place)
        return self.endpoint.id

    def receive(self):
        """[version, error], of which one is None."""
        try:
            return [self.receiver.receive(SECONDS), None]
        except errors.Error as error:
            return [None, f"{type(error).__name__}: {error}"]

    def state(self):
        """[version, the values that the tensors have]."""
        values = {v for x in self.receiver.tensors.values() for v in np.unique(x).tolist()}
        return [self.receiver.version, sorted(values)]


def main():
    receiver = Receiver()
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(receiver, call["do"])(*call["with"])), flush=True)


if __name__ == "__main__":
    main()
