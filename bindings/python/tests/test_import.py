"""Importing the package is quick, and brings what is heavy only when that is used."""

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


def test_the_package_lists_all_that_it_has_and_refuses_the_rest():
    assert {*tensorferry.__all__} <= {*dir(tensorferry)}
    assert {"kernels", "layers", "nanovllm", "staging", "transfer"} <= {*dir(tensorferry)}
    for name in tensorferry.__all__:
        assert getattr(tensorferry, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        tensorferry.no_such_thing
