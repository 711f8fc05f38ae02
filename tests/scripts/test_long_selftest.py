#!/usr/bin/env python3
"""scripts/test_long judges no programs of another state, and no tests of nano-vllm that did not run."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Running(unittest.TestCase):
    """In a checkout whose other scripts only say what they were told."""

    def run_script(self, release_code, packages_code=0):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        (root / "scripts").mkdir()
        for name in ("test_long", "summarize_tests.py"):
            shutil.copy(SCRIPTS / name, root / "scripts")
        said = root / "said"
        for name in ("fuzz", "test_python", "test_engines", "test_nanovllm", "gpu_check", "test_distributions"):
            self.write(root / "scripts" / name, f'echo {name} "$@" >>{said}')
        self.write(root / "scripts" / "test_aarch64", f'echo test_aarch64 "$@" >>{said}; echo no Debian; exit 77')
        self.write(root / "scripts" / "release", f"exit {packages_code}")
        self.write(root / "packaging" / "test_bare", f'echo test_bare "$@" >>{said}')
        self.write(root / "bin" / "cmake", f'case "$*" in "--preset release") exit {release_code};; esac')
        self.write(root / "bin" / "nvidia-smi", "exit 0")
        environment = {**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}", "TENSORFERRY_NANOVLLM": "/a/checkout"}
        ended = subprocess.run([root / "scripts" / "test_long"], env=environment, capture_output=True, text=True,
                               timeout=300)
        return ended, said.read_text(encoding="utf-8").splitlines()

    @staticmethod
    def write(path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def test_what_a_release_build_is_needed_for_is_built_first(self):
        _, said = self.run_script(0)
        self.assertIn("test_nanovllm --from build/release /a/checkout", said)
        self.assertTrue(any(line.startswith("test_engines --from build/release") for line in said))
        self.assertIn("gpu_check", said)
        self.assertTrue(any(line.startswith("test_python --torch") for line in said))

    def test_bare_systems_get_the_packages_where_these_could_be_made(self):
        _, said = self.run_script(0)
        self.assertIn("test_bare build/long/packages", said)
        ended, said = self.run_script(0, packages_code=1)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("the packages could not be made", ended.stdout)
        self.assertFalse([line for line in said if line.startswith("test_bare")])

    def test_other_systems_are_tested_and_what_cannot_be_made_is_skipped_with_its_reason(self):
        ended, said = self.run_script(0)
        self.assertTrue(any(line.startswith("test_distributions --jobs") for line in said))
        self.assertTrue(any(line.startswith("test_aarch64 --jobs") for line in said))
        self.assertRegex(ended.stdout, r"long\.aarch64.*\n?.*no Debian")

    def test_stale_programs_are_not_judged(self):
        ended, said = self.run_script(1)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("build/release could not be built", ended.stdout)
        self.assertFalse([line for line in said if "--from build/release" in line or line.startswith("gpu_check")])


if __name__ == "__main__":
    unittest.main()
