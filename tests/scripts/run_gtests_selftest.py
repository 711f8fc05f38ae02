#!/usr/bin/env python3
"""scripts/run_gtests.py against programs that say what GoogleTest's say, and fail in many ways."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = '''\
#!{python}
import os, sys, time
TESTS = {tests}
flags = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "--gtest_list_tests" in flags:
    print("Running main() from somewhere")
    print("Suite/Of.  # TypeParam = int")
    for name in TESTS:
        print("  " + name + "  # GetParam() = 1")
    sys.exit(0)
with open(flags["--gtest_flagfile"]) as lines:
    wanted = lines.readline().strip().partition("=")[2].split(":")
failed = False
for name, act in TESTS.items():
    name = "Suite/Of." + name
    if name not in wanted:
        continue
    print("[ RUN      ] " + name, flush=True)
    if act == "crash":
        os.abort()
    if act == "hang":
        with open(sys.argv[0] + ".pid.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, sys.argv[0] + ".pid")
        time.sleep(60)
    if act == "fail":
        failed = True
        print("a.cc:1: Failure\\nbecause")
        print("[  FAILED  ] " + name + ", where GetParam() = (1, 2) (3 ms)", flush=True)
    elif act == "skip":
        print("a.cc:2: Skipped\\nno reason\\n\\n[  SKIPPED ] " + name + " (0 ms)", flush=True)
    else:
        if act == "race":
            print("WARNING: ThreadSanitizer: data race\\n  of two threads")
        print("less than a line[       OK ] " + name + " (1 ms)", flush=True)
if "leak" in TESTS.values():
    print("ERROR: LeakSanitizer")
    sys.exit(23)
if "race" in TESTS.values():
    sys.exit(66)
sys.exit(1 if failed else 0)
'''


class RunGtests(unittest.TestCase):
    def run_tests(self, tests, *arguments):
        """(exit status, outcomes by name, what was printed)"""
        with tempfile.TemporaryDirectory() as folder:
            program = self.write_program(folder, tests)
            junit = pathlib.Path(folder) / "all.xml"
            done = subprocess.run([ROOT / "scripts" / "run_gtests.py", "--name", "layer.part",
                                   "--junit", junit, *arguments, program], capture_output=True,
                                  text=True, check=False)
            cases = ElementTree.parse(junit).getroot().iter("testcase")
            return done.returncode, {case.get("name"): self.outcome(case) for case in cases}, done.stdout

    @staticmethod
    def write_program(folder, tests):
        program = pathlib.Path(folder) / "program"
        program.write_text(textwrap.dedent(PROGRAM).format(python=sys.executable, tests=tests),
                           encoding="utf-8")
        program.chmod(0o755)
        return program

    @staticmethod
    def outcome(case):
        failure = case.find("failure")
        return failure.get("message") if failure is not None else case.get("status")

    def test_each_test_has_its_outcome(self):
        code, outcomes, said = self.run_tests({"A": "pass", "B": "fail", "C": "skip"})
        self.assertEqual(code, 1)
        self.assertEqual(outcomes, {"layer.Suite/Of.A": "run", "layer.Suite/Of.B": "Failed",
                                    "layer.Suite/Of.C": "notrun"})
        self.assertIn("FAILED layer.Suite/Of.B", said)
        self.assertIn("because", said)
        self.assertIn("1 passed, 1 failed, 1 skipped", said)

    def test_the_rest_go_on_after_one_that_ends_the_process(self):
        code, outcomes, said = self.run_tests({"A": "pass", "B": "crash", "C": "pass"})
        self.assertEqual(code, 1)
        self.assertEqual(outcomes, {"layer.Suite/Of.A": "run",
                                    "layer.Suite/Of.B": "ended by SIGABRT",
                                    "layer.Suite/Of.C": "run"})
        self.assertIn("FAILED layer.Suite/Of.B: ended by SIGABRT", said)

    def test_one_that_hangs_fails_and_the_rest_go_on(self):
        code, outcomes, _ = self.run_tests({"A": "hang", "B": "pass"}, "--timeout", "1.5")
        self.assertEqual(code, 1)
        self.assertEqual(outcomes, {"layer.Suite/Of.A": "Timeout: no end within 1.5 s",
                                    "layer.Suite/Of.B": "run"})

    def test_a_process_that_fails_after_its_tests_is_a_failure(self):
        code, outcomes, said = self.run_tests({"A": "pass", "B": "leak"})
        self.assertEqual(code, 1)
        self.assertEqual(outcomes["layer.part"], "program exited with 23 after Suite/Of.B")
        self.assertIn("LeakSanitizer", said)

    def test_what_a_sanitizer_reports_in_a_test_is_shown(self):
        code, outcomes, said = self.run_tests({"A": "race", "B": "pass"})
        self.assertEqual(code, 1)
        self.assertEqual(outcomes["layer.part"], "program exited with 66 after Suite/Of.B")
        self.assertIn("ThreadSanitizer: data race", said)
        self.assertIn("of two threads", said)

    def test_parts_together_are_all_tests(self):
        tests = {name: "pass" for name in "ABCDE"}
        names = []
        for part in ("1/3", "2/3", "3/3"):
            code, outcomes, _ = self.run_tests(tests, "--part", part)
            self.assertEqual(code, 0)
            names += outcomes
        self.assertEqual(sorted(names), [f"layer.Suite/Of.{name}" for name in "ABCDE"])

    def test_no_tests_are_a_failure_unless_that_may_be_so(self):
        code, outcomes, said = self.run_tests({})
        self.assertEqual(code, 1)
        self.assertIn("FAILED layer.part: program has no test that * names", said)
        self.assertEqual(list(outcomes), ["layer.part"])
        self.assertEqual(self.run_tests({}, "--may-be-empty")[:2], (0, {}))

    def test_a_part_without_tests_is_none_where_others_have_some(self):
        self.assertEqual(self.run_tests({"A": "pass"}, "--part", "2/2")[:2], (0, {}))

    def test_an_interrupt_ends_the_program_too(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                program = self.write_program(folder, {"A": "hang"})
                process = subprocess.Popen(
                    [ROOT / "scripts" / "run_gtests.py", "--name", "layer.part", "--junit",
                     f"{folder}/all.xml", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                pid_file = pathlib.Path(f"{program}.pid")
                self.assertTrue(self.becomes_true(pid_file.exists))
                pid = int(pid_file.read_text(encoding="utf-8"))
                process.send_signal(number)
                self.assertNotEqual(process.wait(30), 0)
                gone = self.becomes_true(lambda: not pathlib.Path(f"/proc/{pid}/fd/0").exists(), 10)
                if not gone:
                    os.kill(pid, signal.SIGKILL)
                self.assertTrue(gone)

    @staticmethod
    def becomes_true(condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()


if __name__ == "__main__":
    unittest.main()
