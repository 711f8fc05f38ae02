#!/usr/bin/env python3
"""scripts/test says what it will run, refuses in one sentence, and leaves no process behind."""
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

# A run of one step, which starts a process in a session of its own, and is interrupted then.
INTERRUPTED = f"""
import ctypes, pathlib, sys, threading, time
sys.dont_write_bytecode = True
sys.path.insert(0, {str(SCRIPTS)!r})
import test_steps
test_steps.LOGS = pathlib.Path(sys.argv[1])
ctypes.CDLL(None).prctl(test_steps.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
steps = test_steps.Steps(test_steps.Progress())
begun = pathlib.Path(sys.argv[1]) / "begun"
command = ["sh", "-c", f"setsid sh -c 'echo $$ >{{begun}}.new; mv {{begun}}.new {{begun}}; exec sleep 300' & sleep 300"]
thread = threading.Thread(target=steps.run, args=("step", command))
thread.start()
deadline = time.monotonic() + 30
while not begun.exists() and time.monotonic() < deadline:
    time.sleep(0.01)
steps.end()
thread.join(30)
print(begun.read_text().strip(), thread.is_alive(), test_steps.children())
"""


class Steps(unittest.TestCase):
    def run_script(self, *arguments, **environment):
        return subprocess.run([sys.executable, SCRIPTS / "test_steps.py", *arguments], text=True, timeout=300,
                              capture_output=True, check=False, env={**os.environ, **environment})

    def test_the_plan_says_what_runs_and_how_long_it_took(self):
        done = self.run_script("--plan")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"asan: suites about memory[\s\S]*minutes")

    def test_without_a_compiler_one_sentence_names_it(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("--only", "core", PATH=folder)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("no C++ compiler", done.stderr)

    def test_a_full_disk_is_refused_before_anything_starts(self):
        code = textwrap.dedent(f"""
            import collections, sys
            sys.dont_write_bytecode = True
            sys.path.insert(0, {str(SCRIPTS)!r})
            import test_steps
            test_steps.shutil.disk_usage = lambda path: collections.namedtuple("usage", "free")(1 << 20)
            test_steps.refuse_full_disk()
        """)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^test: .* has 0\.0 GB free and a run needs about .*\n$")

    def test_an_interrupted_run_leaves_no_process_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", INTERRUPTED, folder], capture_output=True, text=True,
                                  check=False, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        pid, is_alive, left = done.stdout.split()[-3:]
        self.assertEqual((is_alive, left), ("False", "[]"))
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())


if __name__ == "__main__":
    unittest.main()
