#!/usr/bin/env python3
"""Tests of cmake/FerryCudaArchitectures.cmake: which GPUs a build has device code for.

usage: cuda_architectures_selftest.py CMAKE
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop(1) if len(sys.argv) > 1 else "cmake"
SCRIPT = """
cmake_minimum_required(VERSION 3.25)
include({module})
ferry_cuda_architectures(found "{wanted}")
message("<${{found}}>")
"""


class CudaArchitectures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def found(self, wanted, smi="exit 9"):
        """The entries, on a machine whose nvidia-smi is this shell script."""
        program = self.folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{smi}\n", encoding="utf-8")
        program.chmod(0o755)
        script = self.folder / "script.cmake"
        module = ROOT / "cmake" / "FerryCudaArchitectures.cmake"
        script.write_text(SCRIPT.format(module=module, wanted=wanted), encoding="utf-8")
        path = f"{self.folder}:{os.environ.get('PATH', '')}"
        done = subprocess.run([CMAKE, "-P", str(script)], capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": path})
        return done.stderr.strip()

    def test_without_a_gpu_they_are_ampere_hopper_and_ptx(self):
        self.assertEqual(self.found("AUTO"), "<80;90a-real>")
        self.assertEqual(self.found("AUTO", "echo"), "<80;90a-real>")
        self.assertEqual(self.found("AUTO", "echo '[N/A]'"), "<80;90a-real>")

    def test_with_gpus_they_are_these_each_once(self):
        self.assertEqual(self.found("AUTO", "echo 9.0; echo 9.0"), "<90a-real>")
        self.assertEqual(self.found("AUTO", "echo 8.6; echo 12.0"), "<86-real;120-real>")

    def test_gpus_for_which_kernels_do_not_compile_are_left_out(self):
        self.assertEqual(self.found("AUTO", "echo 7.5; echo 8.6"), "<86-real>")
        self.assertEqual(self.found("AUTO", "echo 7.5"), "<80;90a-real>")

    def test_a_release_has_all(self):
        self.assertEqual(self.found("RELEASE"), "<80;86-real;89-real;90a-real;100-real;120>")

    def test_entries_stay_as_they_are(self):
        self.assertEqual(self.found("86-real;80-virtual"), "<86-real;80-virtual>")

    def test_names_that_nobody_can_judge_are_refused(self):
        self.assertIn("FERRY_CUDA_ARCH has 'native'", self.found("native"))


if __name__ == "__main__":
    unittest.main()
