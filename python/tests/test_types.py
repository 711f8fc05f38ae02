"""Tests that the type stubs of the native module match it."""

import ast
import pathlib
import subprocess
import sys

import pytest

import tensorferry

PACKAGE = pathlib.Path(tensorferry.__file__).parent
PATTERN = pathlib.Path(__file__).parents[1] / "stubs.pattern"


def said(path):
    """A stub as a tree, whatever its lines are broken at."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.dump(tree, indent=1).splitlines()


def test_the_stubs_are_of_this_module(tmp_path):
    nanobind = pytest.importorskip("nanobind", reason="nanobind is not installed")
    if nanobind.__version__.partition(".")[0] != "3":
        pytest.skip(f"nanobind {nanobind.__version__} writes other stubs than 3")
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-m", "tensorferry._core", "-r", "-P", "-q",
         "-p", PATTERN, "-O", tmp_path],
        check=True, timeout=120,
    )
    for name in ("__init__.pyi", "kernels.pyi", "staging.pyi"):
        now, kept = said(tmp_path / "_core" / name), said(PACKAGE / "_core" / name)
        assert now == kept, f"{name} is not current; {PATTERN} says how it is made"
    assert (PACKAGE / "py.typed").exists()


USE = """
from tensorferry import transfer

async def moved(endpoint: transfer.Endpoint, key: bytes) -> int:
    connection = endpoint.connect("10.0.0.2:5555", timeout=1)
    region: transfer.Region = endpoint.register(bytearray(8))
    return await connection.write(region, connection.import_region(key))

wrong: str = transfer.Endpoint().port
transfer.Endpoint().no_such_thing()
"""


def test_type_checkers_see_through_to_the_native_module(tmp_path):
    pytest.importorskip("mypy.api", reason="mypy is not installed")
    (tmp_path / "use.py").write_text(USE)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "use.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, ended.stdout + ended.stderr
    assert lines[0].startswith("use.py:9: error: Incompatible types in assignment")
    assert lines[1].startswith('use.py:10: error: "Endpoint" has no attribute "no_such_thing"')
