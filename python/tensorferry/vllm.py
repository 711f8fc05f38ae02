"""A weight transfer engine for vLLM: backend "ferry" of its weight_transfer_config.

    # at the engine: LLM(..., weight_transfer_config=WeightTransferConfig(backend="ferry"))
    # at the trainer, on each of its ranks:
    from tensorferry.vllm import FerryTrainerInitInfo
    from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

    trainer = WeightTransferTrainerFactory.trainer_init(
        FerryTrainerInitInfo(num_workers=4, rank=rank), client=client, source=ModuleSource(model)
    )
    trainer.send_weights()

Where tensorferry is installed, vLLM finds the engine by its entry point; elsewhere call register().
vLLM's control calls go to all engines at once, so one that fails ends the update for all: send_weights()
raises, and finish_weight_update() is not called. Engines may then hold a part of the version.
"""

import concurrent.futures
import threading
from dataclasses import dataclass, field
from typing import ClassVar

import torch

try:
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
except ImportError as missing:
    raise ImportError(
        f"tensorferry.vllm needs the weight transfers of vLLM 0.33.0 ({missing}); install it: "
        "python -m pip install vllm==0.33.0",
        name=missing.name,
    ) from missing

from tensorferry import _vllm_plugin, _weight_stream, errors
from tensorferry.transfer import Endpoint

__all__ = [
    "FerryInitInfo",
    "FerryTrainerInitInfo",
    "FerryTrainerWeightTransferEngine",
    "FerryUpdateInfo",
    "FerryWeightTransferEngine",
    "register",
]


def register():
    """Makes backend="ferry" known to vLLM, and our ops with TENSORFERRY_VLLM_OPS=1.

    Another call does nothing. Raises ImportError or AttributeError where this vLLM cannot have them.
    """
    _vllm_plugin.register_engines()
    _vllm_plugin.register_ops()


@dataclass
class FerryTrainerInitInfo(TrainerInitInfo):
    """num_workers: how many workers vLLM has, in all engines and all kinds of parallelism together.

    bucket_bytes: what travels at once. timeout: seconds after which a silent worker is given up, and
    that a control call may take to say why. join_timeout: seconds for connecting, for loading a
    bucket, and for a control call to end after that. settings: those of the Endpoint.
    """

    backend: ClassVar[str] = "ferry"

    num_workers: int
    bucket_bytes: int = 256 << 20
    timeout: float = 30.0
    join_timeout: float = 300.0
    settings: dict = field(default_factory=dict)


@dataclass
class FerryInitInfo(WeightTransferInitInfo):
    """What a worker is told: where the trainer is, in hexadecimal, and how long it may take."""

    address: str
    timeout: float = 300.0


@dataclass
class FerryUpdateInfo(WeightTransferUpdateInfo):
    """Which version comes; names, shapes and dtypes come with the tensors."""

    version: int


class FerryWeightTransferEngine(WeightTransferEngine[FerryInitInfo, FerryUpdateInfo]):
    """A worker's side. Weights come in the checkpoint's format, and the model loads them.

    Settings of its endpoint are FERRY_* variables of the worker's environment.
    """

    init_info_cls = FerryInitInfo
    update_info_cls = FerryUpdateInfo

    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        self._endpoint, self._stream, self._broken = None, None, ""

    @property
    def version(self):
        """The newest one that was received whole; None while one arrives, and after a failure."""
        return self._stream.version if self._stream is not None else None

    def init_transfer_engine(self, init_info):
        """Connects to the trainer; may be called again for another one."""
        self._close_stream()
        if self._endpoint is None:
            self._endpoint = Endpoint()
        trainer = self._endpoint.connect(bytes.fromhex(init_info.address), init_info.timeout)
        self._stream = _weight_stream.WeightReceiver(
            trainer, device=self.device, timeout=init_info.timeout
        )

    def start_weight_update(self):
        """Raises after an update that failed: vLLM's layers keep what they had of it."""
        if self._broken:
            raise errors.InvalidArgument(
                f"start_weight_update: an update has failed before ({self._broken}), so this engine "
                "holds parts of two versions; restart it"
            )
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self):
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info):
        # As the base, which has no other way to synchronise where there is no accelerator.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info):
        """Loads a version; it returns when the workers that are left have all of it."""
        if self._stream is None:
            raise errors.InvalidArgument(
                "receive_weights: no trainer is known; call init_transfer_engine() before"
            )
        try:
            with _incomplete_models_allowed():
                # With memory of their own: layers keep them until all of their tensors are there.
                for pair in self._stream.receive(update_info.version):
                    self.model.load_weights([pair])
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise

    def shutdown(self):
        self._close_stream()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _close_stream(self):
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def _incomplete_models_allowed():
    """Models get one tensor at a time, and some check that a call has all."""
    from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

    return disable_mtp_completeness_check()


class FerryTrainerWeightTransferEngine(TrainerWeightTransferEngine[FerryTrainerInitInfo]):
    """The trainer's side: rank 0 sends, and the other ranks take part in gathering the tensors."""

    init_info_cls = FerryTrainerInitInfo

    def __init__(self, *, client, source, is_sender=True, rank=0):
        super().__init__(client=client, source=source, is_sender=is_sender, rank=rank)
        self.version = 0  # the newest that was sent
        self._endpoint, self._stream = None, None
        self._timeout = self._join_timeout = None  # seconds

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        if source is None or not source.implements_iter_full():
            raise errors.InvalidArgument(
                "the ferry backend sends full tensors: give a source that has iter_full(), such as "
                "ModuleSource(model)"
            )
        engine = cls(
            client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank
        )
        if engine.is_sender:
            try:
                engine._connect(init_info)
            except BaseException:
                engine.shutdown()
                raise
        return engine

    def _connect(self, info):
        self._timeout, self._join_timeout = info.timeout, info.join_timeout
        endpoint = self._endpoint = Endpoint(**info.settings)
        told = {"address": endpoint.address.hex(), "timeout": info.join_timeout}
        # The call returns when all workers have connected.
        call = _begun(self.client.init_weight_transfer_engine, told)
        _when_failed(call, endpoint.close)
        try:
            peers = _weight_stream.accept_all(endpoint, info.num_workers, timeout=info.join_timeout)
        except errors.Error:
            if call.done():
                call.result()  # says why they do not come
            raise
        self._result(call, "trainer_init: all workers have connected, and init_weight_transfer_engine")
        self._stream = _weight_stream.WeightSender(
            peers, bucket_bytes=info.bucket_bytes, timeout=info.timeout,
            join_timeout=info.join_timeout,
        )

    def _result(self, call, what):
        """A control call's, which a worker that froze after its part would keep for ever."""
        if not concurrent.futures.wait([call], self._join_timeout).done:
            raise errors.Timeout(
                f"{what} has not returned {self._join_timeout} s later; see what the engines log, and "
                "restart those that do not answer"
            )
        return call.result()

    @torch.no_grad()
    def send_weights(self):
        """Sends the source's tensors as the next version, and has all engines load it.

        Raises what a control call raised; PeerLost if a worker was left out and no call says why;
        Timeout if a call does not return though all have loaded; or InvalidArgument if the source
        does not yield what its metadata says. Engines must not be used then. A call that does not
        return goes on in a thread of its own.
        """
        if not self.is_sender:
            for _ in self.source.iter_full():
                pass
            return
        if self._stream is None:
            raise errors.InvalidArgument("send_weights: no worker is connected; call trainer_init()")
        version = self.version + 1
        self.client.start_weight_update()
        stream = self._stream
        call = _begun(self.client.update_weights, {"version": version})
        _when_failed(call, lambda: [peer.close() for peer in list(stream.peers)])
        try:
            sent = stream.send(self._checked(), version)
        except BaseException as error:
            if isinstance(error, errors.Error) and not isinstance(error, errors.InvalidArgument):
                self._raise_cause(call, error)
            # The source's, or an interrupt; the call ends as the connections are closed.
            concurrent.futures.wait([call], self._timeout)
            raise
        if sent.left_out:
            said = "; ".join(f"{peer}: {error}" for peer, error in sent.left_out.items())
            self._raise_cause(call, errors.PeerLost(
                f"send_weights: workers were left out of version {version}: {said}"
            ))
        self._result(call, f"send_weights: all workers have loaded version {version}, and update_weights")
        self.client.finish_weight_update()
        self.version = version

    def _raise_cause(self, call, lost):
        """Raises what the control call raises, as it says what happened at the workers, or `lost`.

        Workers whose connection is closed end the call, but one that is frozen does not.
        """
        ended = concurrent.futures.wait([call], self._timeout).done
        if ended and call.exception() is not None:
            raise call.exception() from lost
        raise lost

    def _checked(self):
        """The source's pairs; what the metadata has and they have not would stay of the old version."""
        declared = self.source.metadata
        yielded = 0
        for name, x in self.source.iter_full():
            expected = declared[yielded] if yielded < len(declared) else None
            if expected is None or (name, x.dtype, tuple(x.shape)) != (
                expected.name, expected.dtype, tuple(expected.shape)
            ):
                raise errors.InvalidArgument(
                    f"send_weights: the source yields '{name}' {x.dtype} {list(x.shape)}, where its "
                    f"metadata has {expected}"
                )
            yielded += 1
            yield name, x
        if yielded != len(declared):
            raise errors.InvalidArgument(
                f"send_weights: the source yields {yielded} tensors, and its metadata has "
                f"{len(declared)}"
            )

    def shutdown(self):
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()


def _begun(function, *arguments):
    """A Future of a call in a thread that nothing waits for, not even the end of the process."""
    call = concurrent.futures.Future()

    def run():
        try:
            call.set_result(function(*arguments))
        except BaseException as error:
            call.set_exception(error)

    threading.Thread(target=run, name="ferry-client", daemon=True).start()
    return call


def _when_failed(call, act):
    call.add_done_callback(lambda ended: act() if ended.exception() is not None else None)
