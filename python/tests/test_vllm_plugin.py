"""The plug-in for vLLM where vLLM is another or missing, with modules in vLLM's place: nothing is loaded."""

import importlib
import sys
import types

import pytest

from tensorferry import _vllm_plugin

FACTORY = "vllm.distributed.weight_transfer.factory"


class Registry:
    def __init__(self):
        self.engines = {}

    def register_engine(self, name, module, cls):
        if name in self.engines:
            raise ValueError(f"{name} is already registered")
        self.engines[name] = (module, cls)


@pytest.fixture
def vllm(monkeypatch):
    """vllm(**names): a vLLM whose factory of weight transfers has these; without any there is none."""

    def make(**names):
        path = ""
        for name in FACTORY.split("."):
            path = f"{path}.{name}".lstrip(".")
            module = types.ModuleType(path)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, path, module)
        if names:
            vars(module).update(names)
            sys.modules["vllm.distributed.weight_transfer"].factory = module
        else:
            monkeypatch.setitem(sys.modules, FACTORY, None)

    monkeypatch.delenv("TENSORFERRY_VLLM_OPS", raising=False)
    return make


def test_both_engines_are_registered_once(vllm, caplog):
    engines, trainers = Registry(), Registry()
    vllm(WeightTransferEngineFactory=engines, WeightTransferTrainerFactory=trainers)
    _vllm_plugin.register()
    _vllm_plugin.register()
    assert engines.engines == {"ferry": ("tensorferry.vllm", "FerryWeightTransferEngine")}
    assert trainers.engines == {"ferry": ("tensorferry.vllm", "FerryTrainerWeightTransferEngine")}
    assert not caplog.records


@pytest.mark.parametrize(
    ("names", "raised"),
    [({}, ImportError), ({"WeightTransferEngineFactory": Registry()}, AttributeError)],
)
def test_a_vllm_without_such_transfers_starts_all_the_same(vllm, caplog, names, raised):
    vllm(**names)
    _vllm_plugin.register()
    (record,) = caplog.records
    said = record.getMessage()
    assert "'ferry' is not registered" in said and "vLLM 0.33.0 has it" in said and "\n" not in said
    with pytest.raises(raised):
        _vllm_plugin.register_engines()


def test_a_vllm_of_other_layers_keeps_its_ops(vllm, caplog, monkeypatch):
    vllm(WeightTransferEngineFactory=Registry(), WeightTransferTrainerFactory=Registry())
    monkeypatch.setenv("TENSORFERRY_VLLM_OPS", "1")
    monkeypatch.delitem(sys.modules, "tensorferry._vllm_ops", raising=False)
    _vllm_plugin.register()
    (record,) = caplog.records
    assert "vLLM keeps its own ops" in record.getMessage()
    with pytest.raises(ImportError):
        _vllm_plugin.register_ops()


@pytest.fixture
def ferry_layers(monkeypatch):
    """Our layers on the part of vLLM's that they need, which says what it was called with."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Theirs:
        approximate, has_weight, variance_size_override, variance_epsilon = "none", True, None, 1e-6
        weight = torch.nn.Parameter(torch.ones(8))

        def forward_cuda(self, *given):
            return "vLLM's"

    modules = {
        "": [], ".model_executor": [], ".model_executor.layers": [], ".model_executor.custom_op": [],
        ".model_executor.layers.activation": ["SiluAndMul", "GeluAndMul"],
        ".model_executor.layers.layernorm": ["RMSNorm"],
    }
    for path, classes in modules.items():
        module = types.ModuleType(f"vllm{path}")
        vars(module).update({name: type(name, (Theirs,), {}) for name in classes})
        module.op_registry_oot = {}
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "tensorferry._vllm_ops", raising=False)
    yield importlib.import_module("tensorferry._vllm_ops")
    del sys.modules["tensorferry._vllm_ops"]


def test_layers_leave_to_vllm_what_our_ops_refuse(ferry_layers):
    import torch

    gate, norm = ferry_layers.FerrySiluAndMul(), ferry_layers.FerryRMSNorm()
    gelu = ferry_layers.FerryGeluAndMul()
    for x in (torch.ones(2, 1, 1, 1, 3, 8), torch.ones(3, 16)[:, ::2], torch.ones(3, 8).double()):
        assert gate.forward_cuda(x) == gelu.forward_cuda(x) == norm.forward_cuda(x) == "vLLM's"
        assert norm.forward_cuda(x, x) == "vLLM's"
    x = torch.ones(2, 3, 4, 8)  # as the heads of q are
    assert norm.forward_cuda(x.bfloat16()) == norm.forward_cuda(x, x[:1]) == "vLLM's"
    assert torch.is_tensor(gate.forward_cuda(x)) and torch.is_tensor(gelu.forward_cuda(x))
    torch.testing.assert_close(norm.forward_cuda(x), x)
    torch.testing.assert_close(norm.forward_cuda(x, x)[1], 2 * x)


@pytest.mark.parametrize(
    ("module", "other", "install"),
    [
        ("tensorferry.vllm", "vllm", "python -m pip install vllm==0.33.0"),
        ("tensorferry.verl", "verl", "python -m pip install verl==0.9.0"),
    ],
)
def test_an_adapter_without_its_engine_says_what_to_install(monkeypatch, module, other, install):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == other]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, other, None)
    with pytest.raises(ImportError, match=install):
        importlib.import_module(module)
