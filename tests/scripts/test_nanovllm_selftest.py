#!/usr/bin/env python3
"""scripts/test_nanovllm says when nano-vllm's tests did not run, and never passes for that."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_nanovllm"
# An interpreter that writes this and ends with this code, whatever it is told to run.
PYTEST = """#!/bin/sh
for last in "$@"; do [ "$before" = --junit-xml ] && printf '%s' '{junit}' >"$last"; before=$last; done
printenv TENSORFERRY_NANOVLLM
echo "told: $*"
exit {code}
"""
ONE = '<testcase classname="test_nanovllm" name="a">{}</testcase>'
ALONE = '<testcase classname="test_nanovllm_alone" name="b"/>'
SKIPPED = '<skipped message="there is no triton"/>'


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.checkout = self.folder / "nano-vllm"
        (self.checkout / "nanovllm").mkdir(parents=True)
        (self.checkout / "nanovllm" / "__init__.py").touch()

    def run_script(self, *arguments, cases=None, code=0, python=None, named=None):
        command = [sys.executable, str(SCRIPT)]
        if cases is not None:
            made = self.folder / "python"
            made.write_text(PYTEST.format(code=code, junit=f"<testsuite>{cases}</testsuite>"))
            made.chmod(0o755)
            command += ["--python", str(python or made)]
        environment = {k: v for k, v in os.environ.items() if k != "TENSORFERRY_NANOVLLM"}
        if named:
            environment["TENSORFERRY_NANOVLLM"] = str(named)
        return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True,
                              env=environment, timeout=300, cwd=self.folder)

    def test_no_checkout_is_said(self):
        ended = self.run_script()
        self.assertEqual(ended.returncode, 77)
        self.assertIn("were NOT run: name a checkout", ended.stdout)

    def test_a_folder_that_is_none_is_said(self):
        ended = self.run_script(self.folder)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("has no nanovllm/__init__.py", ended.stdout)

    def test_tests_that_ran_are_counted(self):
        ended = self.run_script(self.checkout, cases=ONE.format("") + ONE.format(SKIPPED) + ALONE)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn(f"ran with {self.checkout}: 1 passed, 0 failed, 1 skipped", ended.stdout)
        self.assertIn("there is no triton", ended.stdout)
        self.assertIn(f"{self.checkout}\n", ended.stdout)  # what the tests are told

    def test_tests_that_were_all_skipped_did_not_run(self):
        whole = '<testcase classname="" name="python.tests.test_nanovllm">{}</testcase>'
        for cases in (ONE.format(SKIPPED) + ALONE, whole.format(SKIPPED) + ALONE):
            ended = self.run_script(self.checkout, cases=cases)
            self.assertEqual(ended.returncode, 1, ended.stdout)
            self.assertIn("were NOT run: not a single one ran", ended.stdout)
            self.assertIn("there is no triton", ended.stdout)

    def test_tests_that_were_not_even_found_did_not_run(self):
        ended = self.run_script(self.checkout, cases=ALONE)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("were NOT run", ended.stdout)

    def test_a_build_is_named_to_the_script_that_installs_it(self):
        scripts = self.folder / "scripts"
        scripts.mkdir()
        shutil.copy(SCRIPT, scripts)
        junit = f"<testsuite>{ONE.format(SKIPPED)}</testsuite>"
        (scripts / "test_python").write_text(f"#!/bin/sh\necho \"$@\"\nprintf '%s' '{junit}' >\"$2\"\n")
        (scripts / "test_python").chmod(0o755)
        ended = subprocess.run([sys.executable, scripts / "test_nanovllm", "--from", "build/x", self.checkout],
                               capture_output=True, text=True, timeout=300)
        self.assertIn(" --from build/x\n", ended.stdout)
        self.assertIn("were NOT run: not a single one ran", ended.stdout)
        self.assertEqual(ended.returncode, 1)

    def test_an_interpreter_may_be_named_by_a_relative_path(self):
        ended = self.run_script(self.checkout, cases=ONE.format(""), python="./python")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_an_interpreter_that_is_none_is_said(self):
        ended = self.run_script(self.checkout, cases="", python="./no_python")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("were NOT run: --python is ./no_python", ended.stdout)

    def test_arguments_for_pytest_follow_two_dashes(self):
        ended = self.run_script("--", "-k", "stage", cases=ONE.format(""), named=self.checkout)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn(f"ran with {self.checkout}", ended.stdout)
        self.assertIn(" -k stage ", ended.stdout)
        ended = self.run_script("-k", "stage", cases=ONE.format(""), named=self.checkout)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("unknown: -k; give arguments for pytest after --", ended.stderr)

    def test_a_failure_is_one(self):
        ended = self.run_script(self.checkout, cases=ONE.format("<failure/>"), code=1)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("0 passed, 1 failed", ended.stdout)


if __name__ == "__main__":
    unittest.main()
