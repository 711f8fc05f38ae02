"""Workers of verl without GPUs, for a test: a trainer's that sends, and a rollout's that receives."""

import os

import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import tensorferry.verl  # noqa: F401 (registers)

BUCKET_BYTES = 1 << 20


def weights(version):
    yield "embedding", torch.full((700, 1000), float(version))  # larger than two buckets
    yield "norm", torch.full((1000,), version, dtype=torch.bfloat16)
    yield "none", torch.empty(0, 4)
    yield "head", torch.arange(5000.0).reshape(10, 500).t() + version
    yield "scale", torch.tensor(float(version))


class Trainer(Worker):
    """What verl's actor worker does of it: only rank 0 sends."""

    def __init__(self, engine_options):
        super().__init__()
        self.fail = False
        self.engine = CheckpointEngineRegistry.new(
            "ferry", is_master=self.rank == 0, bucket_size=BUCKET_BYTES, **engine_options
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        return await self.engine.send_weights(self._weights(global_steps), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *arguments, **named):
        return getattr(self.engine, method)(*arguments, **named)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_half_way(self):
        """In the next update."""
        self.fail = True

    def _weights(self, version):
        failing, self.fail = self.fail, False
        for number, pair in enumerate(weights(version)):
            if failing and number == 3:
                raise ZeroDivisionError("the trainer failed")
            yield pair


class Adapter:
    """In the place of a rollout's server: keeps what it is given."""

    def __init__(self):
        self.held, self.die = {}, False

    async def update_weights(self, weights, global_steps=None, wire_format=None):
        assert wire_format == "named_tensors"
        async for name, x in weights:
            self.held[name] = x.clone()
            if self.die and name == "embedding":
                os._exit(1)


class Rollout(CheckpointEngineWorker):
    """verl's own worker, and questions of the test's."""

    def __init__(self, rollout_config):
        super().__init__(rollout_config, None, Adapter())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def has_version(self, version):
        """That it holds all of a version, and nothing of another."""
        held = self.server_adapter.held
        return {*held} == {name for name, _ in weights(version)} and all(
            held[name].dtype == x.dtype and torch.equal(held[name], x) for name, x in weights(version)
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die_half_way(self):
        self.server_adapter.die = True
