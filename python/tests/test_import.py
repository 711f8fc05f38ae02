"""Tests that importing the package is quick and loads heavy modules only when they are used."""

import subprocess
import sys

import pytest

import tensorferry

HEAVY = ("torch", "numpy", "asyncio")


def run(program):
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                           timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize("name", ["tensorferry", "tensorferry.transfer", "tensorferry.errors"])
def test_what_moves_tensors_loads_no_torch(name):
    assert run(f"import {name}, sys; print(*({HEAVY} & sys.modules.keys()))".replace(
        str(HEAVY), str(set(HEAVY)))) == []


def test_submodules_and_functions_are_there_when_they_are_asked_for():
    pytest.importorskip("numpy", reason="numpy is not installed")
    assert run(
        "import tensorferry, sys\n"
        "assert tensorferry.transfer.Endpoint\n"
        "assert 'tensorferry.benchmark' not in sys.modules\n"
        "from tensorferry import benchmark_kernel, profile\n"
        "import tensorferry.benchmark\n"
        "assert benchmark_kernel is tensorferry.benchmark.benchmark_kernel\n"
        "assert profile is tensorferry.profile\n"
        "assert tensorferry.kernels.rms_norm\n"
        "print('done')"
    ) == ["done"]


def test_a_star_loads_neither_torch_nor_numpy():
    assert run("from tensorferry import *\nimport sys\n"
               "print(*({'torch', 'numpy'} & sys.modules.keys()))") == []


@pytest.mark.parametrize("name", ["layers", "staging"])
def test_a_submodule_that_lacks_torch_is_no_attribute_and_its_import_says_why(name):
    assert run(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import tensorferry\n"
        f"assert not hasattr(tensorferry, '{name}')\n"
        "assert hasattr(tensorferry, 'kernels')\n"
        "try:\n"
        f"    tensorferry.{name}\n"
        "except AttributeError as error:\n"
        "    assert 'torch' in str(error), error\n"
        "try:\n"
        f"    from tensorferry import {name}\n"
        "except (ImportError, tensorferry.Unsupported) as error:\n"
        "    assert 'torch' in str(error), error\n"
        "    print('refused')"
    ) == ["refused"]


def test_the_package_lists_all_that_it_has_and_refuses_the_rest():
    assert {*tensorferry.__all__} <= {*dir(tensorferry)}
    assert {"kernels", "layers", "nanovllm", "staging", "transfer"} <= {*dir(tensorferry)}
    for name in tensorferry.__all__:
        assert getattr(tensorferry, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        tensorferry.no_such_thing
