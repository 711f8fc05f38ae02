"""Tests that the Python programs in README and the documents run."""

import importlib.util
import pathlib
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "tests/scripts/commands_test.py"


def test_programs_of_the_documents_run_to_their_end():
    pytest.importorskip("numpy")
    spec = importlib.util.spec_from_file_location("commands_test", SCRIPT)
    commands = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(commands)
    faults, count, skipped = commands.run_all(None, sys.executable)
    print(*skipped, sep="\n")
    assert not faults, "\n".join(faults)
    assert count >= 4
