"""Tests of nanovllm.kernels and nanovllm.layers.custom_mlp, which the package gives nano-vllm by those names."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

if "_tensorferry_nanovllm" not in sys.modules:
    pytest.skip("no .pth file gives these names: the package is not installed, or was unpacked on PYTHONPATH",
                allow_module_level=True)

NAMES = "from nanovllm.kernels import benchmark_kernel, element_wise_mul_add, fused_add_gelu\n"
SMALL = ["--device", "cpu", "--tokens", "3", "--hidden", "48", "--intermediate", "40", "--groups",
         "correctness"]


@pytest.fixture
def nano(tmp_path):
    """Makes a nano-vllm of files and a version: a folder for PYTHONPATH."""

    def make(files=(), version="0.2.0"):
        for path, text in {"nanovllm/__init__.py": "", "nanovllm/layers/activation.py": "",
                           "pyproject.toml": f'[project]\nname = "nano-vllm"\nversion = "{version}"\n',
                           **dict(files)}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return make


def python(*arguments, path="", **environment):
    """(exit status, output, errors) of a new interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENSORFERRY_")}
    ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300,
                           cwd="/", env=kept | {"PYTHONPATH": str(path)} | environment)
    return ended.returncode, ended.stdout, ended.stderr


def test_the_names_of_forks_are_found_beside_nano_vllm(nano):
    assert python("-c", NAMES + "import torch\n"
                  "x, bias = torch.randn(3, 8), torch.randn(8)\n"
                  "assert torch.allclose(fused_add_gelu(x, bias), torch.nn.functional.gelu(x + bias), "
                  "rtol=1e-5, atol=2e-6)\n"
                  "from nanovllm.layers.custom_mlp import CustomGatedMLP\n"
                  "import tensorferry.layers, nanovllm.kernels\n"
                  "assert CustomGatedMLP is tensorferry.layers.CustomGatedMLP\n"
                  "print(nanovllm.kernels.__name__)", path=nano())[:2] == (0, "nanovllm.kernels\n")


def test_the_command_of_the_mlp_has_its_name_beside_nano_vllm(nano):
    code, output, errors = python("-m", "nanovllm.layers.custom_mlp", *SMALL, path=nano())
    assert code == 0 and "CustomGatedMLP" in output and "WRONG" not in output, errors


def test_a_module_of_that_name_in_nano_vllm_comes_first(nano):
    path = nano({"nanovllm/kernels/__init__.py": "fused_add_gelu = 'theirs'",
                 "nanovllm/layers/custom_mlp.py": "print('theirs')"}, "0.7.0")
    assert python("-c", "from nanovllm.kernels import fused_add_gelu; print(fused_add_gelu)",
                  path=path)[:2] == (0, "theirs\n")
    assert python("-m", "nanovllm.layers.custom_mlp", path=path)[:2] == (0, "theirs\n")


def test_another_version_of_nano_vllm_is_named(nano):
    path = nano(version="0.3.1")
    said = (f"tensorferry has nanovllm.kernels for nano-vllm 0.2, and {path} has 0.3.1: install nano-vllm "
            "0.2, or import tensorferry.nanovllm.kernels")
    code, _, errors = python("-c", NAMES, path=path)
    assert code == 1 and f"ImportError: {said}" in errors
    code, _, errors = python("-m", "nanovllm.layers.custom_mlp", path=path)
    assert code == 1 and "has nanovllm.layers.custom_mlp for nano-vllm 0.2" in errors
    assert python("-c", "import nanovllm", path=path)[0] == 0


def test_a_version_that_is_installed_counts(nano):
    path = nano({"nano_vllm-0.1.0.dist-info/METADATA": "Name: nano-vllm\nVersion: 0.1.0\n",
                 "pyproject.toml": ""})
    assert "has 0.1.0: install nano-vllm 0.2" in python("-c", NAMES, path=path)[2]


def test_without_nano_vllm_the_error_says_so_and_nobody_believes_it_is_there():
    # In a new interpreter: other tests put a checkout into the path of this one.
    if python("-c", "import importlib.util as u; raise SystemExit(u.find_spec('nanovllm') is not None)")[0]:
        pytest.skip("nano-vllm is installed")
    code, _, errors = python("-c", NAMES)
    assert code == 1
    assert "ModuleNotFoundError: No module named 'nanovllm': nano-vllm is not installed; install" in errors
    assert "tensorferry.nanovllm.kernels, which needs no nano-vllm" in errors
    assert "nano-vllm is not installed" in python("-m", "nanovllm.layers.custom_mlp")[2]
    assert python("-c", "import importlib.util as u, sys\nassert u.find_spec('nanovllm') is None\n"
                  "try: import nanovllm\nexcept ImportError: print('none')")[:2] == (0, "none\n")


def test_a_variable_switches_it_off(nano):
    code, _, errors = python("-c", NAMES, path=nano(), TENSORFERRY_NANOVLLM_IMPORTS="0")
    assert code == 1 and "No module named 'nanovllm.kernels'\n" in errors


def test_an_interpreter_starts_with_one_small_module_more():
    loaded = python("-c", "import sys\nassert '_tensorferry_nanovllm' in sys.modules\n"
                    "assert not {'torch', 'numpy', 'tensorferry'} & sys.modules.keys()\n"
                    "del sys.modules['_tensorferry_nanovllm']\nbefore = {*sys.modules}\n"
                    "import _tensorferry_nanovllm\nprint(*{*sys.modules} - before)")
    assert loaded[:2] == (0, "_tensorferry_nanovllm\n")


def test_flash_attn_is_ours_only_while_nano_vllm_is_imported(nano):
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    path = nano({"nanovllm/__init__.py": "from flash_attn import flash_attn_varlen_func"})
    assert python("-c", NAMES + "import sys, nanovllm\nprint(nanovllm.flash_attn_varlen_func.__module__, "
                  "'flash_attn' in sys.modules)", path=path)[:2] == (0, "tensorferry.nanovllm._missing False\n")


def test_the_names_are_found_beside_the_real_nano_vllm():
    """With a checkout of TENSORFERRY_NANOVLLM."""
    checkout = os.environ.get("TENSORFERRY_NANOVLLM")
    if not checkout:
        pytest.skip("set TENSORFERRY_NANOVLLM to a checkout of nano-vllm")
    for needed in ("transformers", "xxhash", "safetensors", "triton", "tqdm"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"nano-vllm needs {needed}, which is not installed")
    path = pathlib.Path(checkout).resolve()
    code, output, errors = python(
        "-c", NAMES + "import nanovllm\nprint(nanovllm.LLM.__name__, nanovllm.kernels.__file__)", path=path)
    assert code == 0 and output.startswith("LLM ") and "tensorferry" in output, errors
    code, output, errors = python("-m", "nanovllm.layers.custom_mlp", *SMALL, path=path)
    assert code == 0 and "CustomGatedMLP" in output and "WRONG" not in output, errors
