"""Tests the NIXL back end that the package carries; plugins/nixl/tests has those with NIXL's wheel."""

import importlib.util
import subprocess
import sys

import pytest

from tensorferry import nixl


def run(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)


def test_the_back_end_is_in_the_package_and_can_be_loaded_without_nixl():
    ended = run("-c", "import ctypes; from tensorferry.nixl import own_plugin\n"
                      "ctypes.CDLL(str(own_plugin())).nixl_plugin_init")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(any(importlib.util.find_spec(wheel) for wheel in nixl.WHEELS), reason="NIXL's wheel is here")
def test_a_folder_of_plugins_cannot_be_made_without_nixls_wheel_and_says_what_to_install():
    ended = run("-m", "tensorferry.nixl")
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.strip() == ("tensorferry.nixl: none of nixl_cu13, nixl_cu12 is installed; "
                                    "pip install nixl")
