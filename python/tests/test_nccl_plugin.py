"""Tests of tensorferry.nccl: the installed plug-in, and what it prints for a shell."""
import ctypes
import os
import subprocess
import sys

import pytest

from tensorferry import nccl


def installed():
    try:
        return nccl.plugin_path()
    except nccl.NotFound as error:
        pytest.skip(f"this package has no NCCL plug-in: {error}")


def test_the_installed_plugin_loads_and_has_the_tables_of_nccl():
    plugin = ctypes.CDLL(installed())
    assert plugin.ncclNetPlugin_v8 and plugin.ncclNetPlugin_v11


def test_a_shell_that_runs_the_lines_has_the_plugin_in_its_environment():
    path = installed()
    lines = subprocess.run([sys.executable, "-m", "tensorferry.nccl"], check=True, text=True,
                           capture_output=True, timeout=60).stdout
    said = subprocess.run(["sh", "-c", lines + 'echo "$NCCL_NET_PLUGIN"'], check=True, text=True,
                          capture_output=True, timeout=60).stdout
    assert said == path + "\n"


def test_a_path_with_a_space_is_quoted():
    said = subprocess.run(["sh", "-c", nccl.exports("/a b/lib.so") + 'echo "$NCCL_NET_PLUGIN"'], check=True,
                          text=True, capture_output=True, timeout=60).stdout
    assert said == "/a b/lib.so\n"


def test_a_package_without_the_plugin_says_where_it_is_to_be_had(monkeypatch, tmp_path):
    monkeypatch.setattr(nccl, "__file__", os.fspath(tmp_path / "nccl.py"))
    with pytest.raises(nccl.NotFound, match="target ferry_nccl_plugin"):
        nccl.plugin_path()
    with pytest.raises(SystemExit, match="tensorferry.nccl: .*does not exist"):
        nccl.main([])
