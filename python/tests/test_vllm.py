"""vLLM's weight transfers by the engine "ferry": vLLM's own classes, workers in processes of their own."""

import contextlib
import functools
import importlib.metadata
import pathlib
import signal
import threading

import pytest

import conftest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_engines installs it")

import tensorferry  # noqa: E402
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory  # noqa: E402

SECONDS = 300  # loading vLLM takes a minute
SHAPES = {"a.weight": (300, 500), "a.bias": (300,), "b.weight": (100, 300)}
BUCKET = 1 << 18  # "a.weight" is cut


class Worker(conftest.PeerProcess):
    """The process of vllm_worker.py."""

    script = pathlib.Path(__file__).with_name("vllm_worker.py")


class Client:
    """vLLM's control plane: each call goes to all workers, and raises what one of them has raised."""

    def __init__(self, workers):
        self.workers, self.lock = workers, threading.Lock()

    def __getattr__(self, name):
        return functools.partial(self._call_all, name)

    def _call_all(self, name, *arguments):
        with self.lock:
            for worker in self.workers:
                worker.begin("call", name, *arguments)
            failed = [error for error in [worker.end() for worker in self.workers] if error]
        if failed:
            raise RuntimeError("; ".join(failed))


@pytest.fixture(scope="module", autouse=True)
def patient():
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(conftest, "SECONDS", SECONDS)
        changed.setenv("FERRY_LISTEN_HOST", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def processes():
    with contextlib.ExitStack() as ended:
        made = [Worker(), Worker()]
        for each in made:
            ended.callback(each.close)
        yield made


@pytest.fixture
def workers(processes):
    for each in processes:
        each.begin("renew")
    for each in processes:
        each.end()
    return processes


def model(fill):
    made = torch.nn.Module()
    made.a, made.b = torch.nn.Linear(500, 300), torch.nn.Linear(300, 100, bias=False)
    for x in made.parameters():
        x.data.fill_(fill)
    return made


@contextlib.contextmanager
def trainer_of(source, workers, count=None, timeout=30.0, join_timeout=SECONDS):
    from tensorferry.vllm import FerryTrainerInitInfo, register

    register()
    register()  # changes nothing
    info = FerryTrainerInitInfo(num_workers=count or len(workers), rank=0, bucket_bytes=BUCKET,
                                timeout=timeout, join_timeout=join_timeout)
    made = WeightTransferTrainerFactory.trainer_init(info, client=Client(workers), source=source)
    try:
        yield made
    finally:
        made.shutdown()


def filled(value):
    return {name: [value] for name in SHAPES}


def test_workers_of_vllm_load_each_version_into_the_tensors_they_have(workers):
    trained = model(1.0)
    with trainer_of(ModuleSource(trained), workers) as trainer:
        for version in (1, 2):
            for x in trained.parameters():
                x.data.fill_(float(version))
            trainer.send_weights()
            assert trainer.version == version
            assert [each.state() for each in workers] == [[version, filled(version), True]] * 2


def test_a_worker_that_fails_ends_the_update_for_all(workers):
    workers[0].fail_at("b.weight")
    with trainer_of(ModuleSource(model(1.0)), workers) as trainer:
        with pytest.raises(Exception, match="b.weight cannot be loaded"):
            trainer.send_weights()
        assert trainer.version == 0
        assert workers[0].state()[0] is None
        with pytest.raises(Exception, match="holds parts of two versions; restart it"):
            trainer.send_weights()


class Freezing(ModuleSource):
    """Stops a process after the first tensor."""

    def __init__(self, module, process):
        super().__init__(module)
        self.process = process

    def iter_full(self):
        for pair in super().iter_full():
            yield pair
            self.process.send_signal(signal.SIGSTOP)


def test_a_worker_that_freezes_ends_the_update_for_all(workers):
    source = Freezing(model(1.0), workers[1].process)
    with trainer_of(source, workers, timeout=10.0, join_timeout=30.0) as trainer:
        try:
            with pytest.raises(tensorferry.PeerLost, match="left out of version 1"):
                trainer.send_weights()
            assert trainer.version == 0
        finally:
            workers[1].process.send_signal(signal.SIGCONT)
        assert trainer.client.lock.acquire(timeout=SECONDS)  # the call has ended, as it runs again
        trainer.client.lock.release()
        assert workers[0].state()[0] == 1 and workers[1].state()[0] is None


class Silent(Client):
    """Its calls do not return before they are let go."""

    let_go = threading.Event()

    def _call_all(self, name, *arguments):
        super()._call_all(name, *arguments)
        self.let_go.wait(SECONDS)


def test_a_control_call_that_does_not_return_ends_the_connecting(workers, monkeypatch):
    monkeypatch.setitem(globals(), "Client", Silent)
    try:
        with pytest.raises(tensorferry.Timeout, match="init_weight_transfer_engine has not returned"):
            with trainer_of(ModuleSource(model(1.0)), workers, join_timeout=20.0):
                pass
    finally:
        Silent.let_go.set()


class Other(ModuleSource):
    """Yields less than its metadata says."""

    def iter_full(self):
        yield from list(super().iter_full())[:-1]


def test_a_source_that_keeps_tensors_back_is_refused(workers):
    with trainer_of(Other(model(1.0)), workers) as trainer:
        with pytest.raises(tensorferry.InvalidArgument, match="yields 2 tensors, and its metadata has 3"):
            trainer.send_weights()
        assert [each.state()[0] for each in workers] == [None, None]


def test_the_trainer_needs_a_source_of_full_tensors():
    with pytest.raises(tensorferry.InvalidArgument, match="iter_full"):
        with trainer_of(None, [], 1):
            pass


def test_vllm_finds_the_engine_by_its_entry_point():
    (found,) = [
        each for each in importlib.metadata.entry_points(group="vllm.general_plugins")
        if each.value == "tensorferry._vllm_plugin:register"
    ]
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.plugins import load_plugins_by_group

    load_plugins_by_group("vllm.general_plugins")[found.name]()
    from tensorferry.vllm import FerryWeightTransferEngine

    assert WeightTransferEngineFactory._registry["ferry"]() is FerryWeightTransferEngine


def test_vllm_gets_our_ops_only_where_they_are_asked_for(monkeypatch):
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    from tensorferry.vllm import register

    before = dict(op_registry_oot)
    monkeypatch.delenv("TENSORFERRY_VLLM_OPS", raising=False)
    register()
    assert op_registry_oot == before
    monkeypatch.setenv("TENSORFERRY_VLLM_OPS", "1")
    try:
        register()
        register()
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
            gate, norm = SiluAndMul(), RMSNorm(16, dtype=torch.float32)
        assert type(gate).__name__ == "FerrySiluAndMul" and type(norm).__name__ == "FerryRMSNorm"
        x = torch.randn(5, 16)
        gated = torch.nn.functional.silu(x[:, :8]) * x[:, 8:]
        torch.testing.assert_close(gate.forward_cuda(x), gated)
        root = torch.nn.functional.rms_norm(x, (16,), eps=norm.variance_epsilon)
        torch.testing.assert_close(norm.forward_cuda(x), root)
        out, total = norm.forward_cuda(x, x)
        torch.testing.assert_close(total, 2 * x)
        torch.testing.assert_close(
            out, torch.nn.functional.rms_norm(2 * x, (16,), eps=norm.variance_epsilon)
        )
    finally:
        op_registry_oot.clear()
        op_registry_oot.update(before)


def test_a_worker_that_died_ends_the_update(workers):  # the last test: it is not started again
    with trainer_of(ModuleSource(model(1.0)), workers) as trainer:
        workers[1].process.kill()
        with pytest.raises((tensorferry.Error, OSError, AssertionError)):
            trainer.send_weights()
        assert trainer.version == 0
