"""Tests of the kernels by the names that forks of nano-vllm use, and of the command that judges the MLP."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import kernels  # noqa: E402
from tensorferry.nanovllm import custom_mlp  # noqa: E402
from tensorferry.nanovllm import kernels as named  # noqa: E402

SMALL = ["--device", "cpu", "--tokens", "3", "--hidden", "48", "--intermediate", "40", "--iters", "2"]


def test_the_names_of_forks_are_our_kernels():
    x, y, weight = torch.randn(5, 48), torch.randn(5, 48), torch.randn(48)
    assert named.KERNELS_AVAILABLE == kernels.KERNELS_AVAILABLE
    torch.testing.assert_close(named.fused_add_gelu(x, weight), torch.nn.functional.gelu(x + weight))
    torch.testing.assert_close(named.element_wise_mul_add(x, y, x), x * y + x)
    out, total = named.fused_residual_rmsnorm(x, y, weight, 1e-5)
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x + y, (48,), weight, 1e-5))
    assert named.benchmark_kernel(named.fused_add_gelu, x, weight, warmup=1, iters=2, name="n") > 0


def test_one_command_runs_the_four_groups(tmp_path, capsys):
    assert custom_mlp.main([*SMALL, "--out", str(tmp_path), "--json", str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {group: len(listed) for group, listed in rows.items()} == {
        "correctness": 15, "speed": 5, "memory": 5, "profile": 0}
    assert all(row["us"] > 0 and row["torch_us"] > 0 for row in rows["speed"])
    for group in custom_mlp.GROUPS:
        assert f"\n{group}:" in said
    assert said.count("passed") == 5 * 3 and "WRONG" not in said
    assert said.count("torch's ops") == 2 * 5 and "bytes more" in said
    assert said.count("not judged: the CPU's kernels ran") == 5
    assert "not run: the GPU's kernels" in said
    assert json.loads((tmp_path / "profile_trace.json").read_text())["traceEvents"]
    assert "silu_and_mul" in (tmp_path / "profile_report.txt").read_text()


def test_a_kernel_that_is_wrong_fails_the_command(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "element_wise_mul_add", lambda a, b, c: a * b + 1.01 * c)
    assert custom_mlp.main([*SMALL, "--groups", "correctness", "--dtypes", "float32"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_kernel_is_judged_by_its_speed_over_torchs_ops():
    kernel = custom_mlp._Case("add", torch.add, torch.add, ())
    assert custom_mlp._judged(kernel, 1.21, "cuda") == "more than 1.2 times: met"
    assert custom_mlp._judged(kernel, 1.2, "cuda") == "more than 1.2 times: NOT met"
    assert custom_mlp._judged(kernel, 1.21, "cpu").startswith("not judged: the CPU's kernels ran")
    mlp = kernel._replace(ours=custom_mlp.CustomGatedMLP(8, 8))
    assert custom_mlp._judged(mlp, 1.1, "cuda") == "not judged: its matrix products are torch's"


def test_what_cannot_run_is_printed_with_the_reason(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "KERNELS_AVAILABLE", False)
    assert custom_mlp.main([*SMALL, "--groups", "correctness,memory"]) == 0
    assert capsys.readouterr().out.count("skipped: TENSORFERRY_DISABLE_KERNELS") == 2
    if not torch.cuda.is_available():
        assert custom_mlp.main([*SMALL[2:], "--device", "cuda", "--groups", "speed"]) == 0
        assert "speed: skipped: there is no GPU" in capsys.readouterr().out


def test_options_that_do_not_exist_are_refused(capsys):
    for wrong in (["--groups", "taste"], ["--dtypes", "int4"], ["--tokens", "0"]):
        with pytest.raises(SystemExit):
            custom_mlp.main(wrong)
    assert "correctness, speed, memory, profile" in capsys.readouterr().err


def test_the_guides_program_is_the_same_command(tmp_path):
    program = pathlib.Path(__file__).parents[2] / "examples" / "test_custom_kernels.py"
    ended = subprocess.run([sys.executable, program, *SMALL, "--groups", "correctness,memory"], cwd=tmp_path,
                           capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("passed") == 5 * 3 and "\nmemory:" in ended.stdout


def test_the_guides_benchmark_is_the_same_command_and_names_a_nano_vllm_that_is_absent(tmp_path):
    program = pathlib.Path(__file__).parents[2] / "examples" / "bench.py"

    def run(*options):
        # Isolated from nano-vllm's checkout, if there is one.
        variables = {name: value for name, value in os.environ.items() if name != "TENSORFERRY_NANOVLLM"}
        return subprocess.run([sys.executable, program, *options], cwd=tmp_path, env=variables,
                              capture_output=True, text=True, timeout=300)

    helped = run("--help")
    assert helped.returncode == 0, helped.stderr
    assert "python -m tensorferry.nanovllm.bench" in helped.stdout and "--check" in helped.stdout
    if importlib.util.find_spec("nanovllm") is None:
        ended = run("--device", "cpu")
        assert ended.returncode == 1 and "bench: nano-vllm is not installed" in ended.stderr
