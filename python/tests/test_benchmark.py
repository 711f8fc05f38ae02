"""Tests that benchmarks report their measurements; the values are not judged."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tensorferry
from tensorferry import kernels


def test_a_measurement_is_seconds_per_call_and_says_more():
    x, weight = np.ones((64, 256), np.float32), np.ones(256, np.float32)
    measured = tensorferry.benchmark_kernel(kernels.rms_norm, x, weight, warmup=1, iters=10)
    assert isinstance(measured, float)
    assert 0 < measured.p10 <= measured <= measured.p90
    assert measured.nbytes == 2 * x.nbytes + weight.nbytes
    assert measured.gbps == pytest.approx(measured.nbytes / measured / 1e9)
    assert measured.ceiling_gbps > 0
    assert "rms_norm: " in str(measured)
    assert "named" in str(tensorferry.benchmark_kernel(lambda: None, iters=1, name="named"))
    with pytest.raises(ValueError, match="iters is 0"):
        tensorferry.benchmark_kernel(lambda: None, iters=0)


def test_a_profile_is_a_trace_and_a_report(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with tensorferry.profile(tmp_path / "out"):
        kernels.silu_and_mul(torch.ones(4, 8))
    trace = json.loads((tmp_path / "out" / "profile_trace.json").read_text())
    assert any("silu_and_mul" in event.get("name", "") for event in trace["traceEvents"])
    report = (tmp_path / "out" / "profile_report.txt").read_text()
    assert "silu_and_mul" in report
    assert "bytes allocated" in report


def test_a_memory_report_has_the_peak_of_a_call():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones(1000, dtype=torch.float32)

    def call(x):
        return (x + 1) * 2 + 3  # each temporary goes when the next one is there

    report = tensorferry.memory_report(call, x)
    assert report.result_bytes == x.nbytes and report.device == "cpu"
    assert 2 * x.nbytes <= report.peak_bytes <= 2 * x.nbytes + 1024
    assert tensorferry.memory_report(x.add_, 1).result_bytes == x.nbytes  # x itself is not passed
    in_place = tensorferry.memory_report(lambda x: x.add_(1), x)
    assert in_place.result_bytes == 0 and in_place.peak_bytes < 1024


def test_a_memory_report_of_arrays_needs_no_torch():
    x = np.ones((64, 256), np.float32)
    report = tensorferry.memory_report(kernels.rms_norm, x, np.ones(256, np.float32))
    assert report.result_bytes == x.nbytes
    assert x.nbytes <= report.peak_bytes <= x.nbytes + 65536


def test_the_example_in_triton_is_right_timed_and_profiled(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    example = pathlib.Path(__file__).parents[2] / "examples" / "triton_kernel.py"
    ended = subprocess.run([sys.executable, example, "--out", tmp_path], capture_output=True,
                           text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "the kernel is right" in ended.stdout and "bytes more" in ended.stdout
    assert (tmp_path / "profile_trace.json").exists() and (tmp_path / "profile_report.txt").exists()


def test_without_triton_the_example_says_so(tmp_path):
    (tmp_path / "triton.py").write_text("raise ImportError('there is none')")
    example = pathlib.Path(__file__).parents[2] / "examples" / "triton_kernel.py"
    ended = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300,
                           env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 1
    assert "skipped: Triton is not installed; python -m pip install triton" in ended.stderr
