"""An engine that receives streams of weights, for a test: executes commands as peer.py does."""

import json
import sys

import torch

from tensorferry import _weight_stream, errors, transfer

SECONDS = 120  # loading torch may take a minute on a busy machine


def summary(x):
    """What tells one tensor from another: dtype, shape, and a sum of its bytes by position."""
    flat = x.contiguous().reshape(-1).view(torch.uint8).long()
    return [str(x.dtype), list(x.shape), int((flat * (torch.arange(flat.numel()) % 251 + 1)).sum())]


class Engine:
    def __init__(self):
        self.endpoint = transfer.Endpoint(listen_host="127.0.0.1")
        self.receiver = None

    def join(self, address):
        trainer = self.endpoint.connect(bytes.fromhex(address), SECONDS)
        self.receiver = _weight_stream.WeightReceiver(trainer, timeout=SECONDS)
        return self.endpoint.id

    def receive(self, version, stop_after=None):
        """[version, what came by name, error]"""
        found = {}
        try:
            for name, x in self.receiver.receive(version):
                found[name] = summary(x)
                if stop_after is not None and len(found) == stop_after:
                    break
        except errors.Error as error:
            return [self.receiver.version, found, f"{type(error).__name__}: {error}"]
        return [self.receiver.version, found, None]


    def keep(self, version, inference, views):
        """[version, what came by name], which is looked at when all is there."""
        with torch.inference_mode(inference):
            kept = dict(self.receiver.receive(version, views=views))
        return [self.receiver.version, {name: summary(x) for name, x in kept.items()}]


def main():
    engine = Engine()
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(engine, call["do"])(*call["with"])), flush=True)


if __name__ == "__main__":
    main()
