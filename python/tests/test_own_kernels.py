"""Tests of examples/own_kernel, a CUDA kernel and its torch operator outside of this project's tree."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "own_kernel"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    nvcc = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is neither in PATH nor in /usr/local/cuda/bin; install the CUDA toolkit")
    path = tmp_path_factory.mktemp("own") / "libswish.so"
    arch = "native" if torch.cuda.is_available() else "sm_90a"
    subprocess.run([nvcc, "-O3", f"-arch={arch}", "-Werror", "all-warnings", "-Xcompiler",
                    "-fPIC,-Wall,-Wextra", "-shared", FOLDER / "swish.cu", "-o", path], check=True,
                   timeout=300)
    return path


@pytest.fixture(scope="module")
def swish(library):
    spec = importlib.util.spec_from_file_location("swish", FOLDER / "swish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(str(library))


def test_the_program_checks_the_kernel_or_says_why_it_did_not(library):
    ended = subprocess.run([sys.executable, FOLDER / "swish.py", library], capture_output=True, text=True,
                           timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "the formula for the CPU is right" in ended.stdout
    if torch.cuda.is_available():
        assert "the kernel is right" in ended.stdout and "of a copy's" in ended.stdout
    else:
        assert "skipped the kernel: torch finds no GPU" in ended.stdout


def test_a_library_that_cannot_be_loaded_is_named(tmp_path):
    ended = subprocess.run([sys.executable, FOLDER / "swish.py", tmp_path / "none.so"], capture_output=True,
                           text=True, timeout=300)
    assert ended.returncode == 1 and "none.so cannot be used" in ended.stderr


def test_the_operator_is_whole(swish):
    for device in ["cpu", *["cuda"] * torch.cuda.is_available()]:
        x = torch.randn(3, 16, device=device, requires_grad=True)
        torch.library.opcheck(swish, (x, 1.5))
        torch.library.opcheck(swish, (torch.randn(16, 3, device=device).t(),))
        (mine,) = torch.autograd.grad(swish(x).sum(), x)
        (right,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
        torch.testing.assert_close(mine, right)
        compiled = torch.compile(lambda x: swish(x) * 2, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), 2 * torch.nn.functional.silu(x))
