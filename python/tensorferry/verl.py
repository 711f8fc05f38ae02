"""A checkpoint engine for verl: weights go from the trainer to all rollout workers over TCP.

    actor_rollout_ref:
      rollout:
        checkpoint_engine:
          backend: ferry
          custom_backend_module: tensorferry.verl
          engine_kwargs: {ferry: {timeout: 30}}

The rank 0 of the trainer sends, and rollout workers forward to one another. If a worker is left
out, send_weights() and the worker's receive_weights() raise; all others have the version whole, and
the one that was left out may hold a part of it. verl then ends the update with an error, and does
not resume generation.
"""

import torch

try:
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
except ImportError as missing:
    raise ImportError(
        f"tensorferry.verl needs the checkpoint engines of verl 0.9.0 ({missing}); install it: "
        "python -m pip install verl==0.9.0",
        name=missing.name,
    ) from missing

from tensorferry import _weight_stream, errors
from tensorferry.transfer import Endpoint

__all__ = ["FerryCheckpointEngine"]


@CheckpointEngineRegistry.register("ferry")
class FerryCheckpointEngine(CheckpointEngine):
    """verl makes one in each worker of the trainer and of the rollouts.

    bucket_size: bytes that travel at once; memory for two is taken between prepare() and finalize().
    device: where; a GPU if there is one. rollout_dtype: what floating-point tensors are cast to
    before they are sent, such as "bfloat16"; by default nothing. timeout: seconds after which a
    silent worker is left out. join_timeout: seconds for connecting, and for loading a bucket.
    settings: those of the Endpoint, such as {"lanes": 8}; the others come from FERRY_* variables.
    """

    def __init__(self, bucket_size, is_master=False, device=None, rollout_dtype=None, timeout=30.0,
                 join_timeout=300.0, settings=None):
        self.bucket_size, self.is_master = bucket_size, is_master
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.rollout_dtype = _dtype(rollout_dtype)
        self._timeout, self._join_timeout = timeout, join_timeout
        self._settings = dict(settings or {})
        self._endpoint, self._stream, self._rank = None, None, None

    def prepare(self):
        """Where this worker is reached; the endpoint stays for the life of the process."""
        if self._endpoint is None:
            self._endpoint = Endpoint(**self._settings)
        return {"id": self._endpoint.id, "address": self._endpoint.address.hex()}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        """The trainer's rank 0 sends, its other ranks (-1) do not, and all rollout workers receive."""
        receivers = [each["id"] for each in metadata[actor_wg_world_size:]]

        def of(ranks):
            return {"rank": ranks, "master": [metadata[0]] * len(ranks),
                    "receivers": [receivers] * len(ranks)}

        actors = of([0] + [-1] * (actor_wg_world_size - 1))
        return actors, of(list(range(1, rollout_world_size + 1)))

    def init_process_group(self, rank, master, receivers):
        """Connects the workers of one update. Blocks until all are there, up to join_timeout."""
        self.finalize()
        self._rank = rank
        if rank == 0:
            peers = _weight_stream.accept_all(
                self._endpoint, len(receivers), receivers, self._join_timeout
            )
            self._stream = _weight_stream.WeightSender(
                peers, bucket_bytes=self.bucket_size, timeout=self._timeout,
                join_timeout=self._join_timeout,
            )
        elif rank > 0:
            trainer = self._endpoint.connect(bytes.fromhex(master["address"]), self._join_timeout)
            self._stream = _weight_stream.WeightReceiver(
                trainer, device=self.device, timeout=self._join_timeout
            )

    def finalize(self):
        """Frees the buckets and closes the connections; without a group it does nothing."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @torch.no_grad()
    async def send_weights(self, weights, global_steps=None):
        """Returns metrics at rank 0: bytes and seconds. Raises PeerLost if a worker is left out."""
        if self._rank is None:
            raise errors.InvalidArgument("send_weights: call init_process_group() before")
        if self._rank < 0:  # takes part in gathering the tensors
            async for _ in _weight_stream._iterated(weights):
                pass
            return {}
        sent = await self._current().send_async(self._cast(weights), global_steps)
        if sent.left_out:
            said = "; ".join(f"{peer}: {error}" for peer, error in sent.left_out.items())
            raise errors.PeerLost(
                f"send_weights: all workers have version {global_steps} but {len(sent.left_out)}, "
                f"which must not be used before the next whole version ({said})"
            )
        return {"ferry/bytes": sent.nbytes, "ferry/seconds": sent.seconds}

    @torch.no_grad()
    async def receive_weights(self, global_steps=None):
        """Yields (name, tensor), each with memory of its own."""
        async for pair in self._current().receive_async(global_steps):
            yield pair

    def _current(self):
        if self._stream is None:
            raise errors.InvalidArgument("no workers are connected; call init_process_group() before")
        return self._stream

    async def _cast(self, weights):
        async for name, x in _weight_stream._iterated(weights):
            cast = self.rollout_dtype is not None and x.is_floating_point()
            yield name, x.to(self.rollout_dtype) if cast else x


def _dtype(named):
    found = getattr(torch, named, None) if isinstance(named, str) else named
    if named is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise errors.InvalidArgument(
            f"rollout_dtype is {named!r}; give a floating-point type of torch's, such as bfloat16"
        )
    return found
