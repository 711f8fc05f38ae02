"""A worker of vLLM without a GPU, for a test: executes commands, one line of JSON each, as peer.py does.

The session's rules and the layerwise reload are vLLM's own; the model is of two layers, and what
needs a GPU (making the worker, its runner) is left out.
"""

import json
import os
import sys
import types

answers = os.fdopen(os.dup(1), "w")  # vLLM logs to stdout
os.dup2(2, 1)

import torch  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig, WeightTransferConfig  # noqa: E402
from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # noqa: E402
from vllm.model_executor.model_loader.reload import (  # noqa: E402
    record_metadata_for_reloading,
)
from vllm.model_executor.model_loader.weight_utils import default_weight_loader  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

SHAPES = {"a.weight": [300, 500], "a.bias": [300], "b.weight": [100, 300]}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(500, 300), torch.nn.Linear(300, 100, bias=False)
        for x in self.parameters():
            x.data.zero_()
            x.weight_loader = default_weight_loader

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, x in weights:
            parameters[name].weight_loader(parameters[name], x)


class Engine:
    def __init__(self):
        load_general_plugins()
        self.worker = None
        self.renew()

    def renew(self):
        """Another worker: loading vLLM takes much longer than what the tests do."""
        if self.worker is not None:
            self.worker.weight_transfer_engine.shutdown()
        self.model = Model()
        record_metadata_for_reloading(self.model)
        # Kept by CUDA graphs of a real engine: these are what has to change.
        self.kept = {name: x.data for name, x in self.model.named_parameters()}
        config = VllmConfig(device_config=DeviceConfig(device="cpu"))
        worker = self.worker = Worker.__new__(Worker)
        worker.vllm_config, worker.rank = config, 0
        worker.model_runner = types.SimpleNamespace(reset_lora_state=lambda: None)
        worker._weight_update_active = worker._weight_update_is_draft = False
        object.__setattr__(config, "model_config", types.SimpleNamespace(dtype=torch.float32))
        worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend="ferry"), config, torch.device("cpu"), self.model
        )

    def call(self, name, *arguments):
        """None, or the error that the worker's method raised."""
        try:
            getattr(self.worker, name)(*arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def fail_at(self, wanted):
        """From now on the model cannot load this tensor."""
        load = self.model.load_weights

        def failing(weights):
            weights = list(weights)
            if any(name == wanted for name, _ in weights):
                raise ValueError(f"{wanted} cannot be loaded")
            load(weights)

        self.model.load_weights = failing

    def state(self):
        """[version, values by name, whether the tensors are those of the beginning]"""
        values = {name: sorted(set(x.flatten().tolist())) for name, x in self.kept.items()}
        same = all(
            x.data_ptr() == self.kept[name].data_ptr() for name, x in self.model.named_parameters()
        )
        return [self.worker.weight_transfer_engine.version, values, same]


def main():
    engine = Engine()
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(engine, call["do"])(*call["with"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
