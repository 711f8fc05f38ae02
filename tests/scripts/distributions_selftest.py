#!/usr/bin/env python3
"""scripts/in_debian, test_distributions and test_aarch64 tell what failed from what cannot run here."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import unittest.mock

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Folder(unittest.TestCase):
    """A checkout with some of the scripts, and programs of our own before the system's."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bin").mkdir()
        (self.root / "scripts").mkdir()

    def write(self, path, body):
        path = self.root / path
        path.write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_script(self, name, *arguments):
        shutil.copy(SCRIPTS / name, self.root / "scripts")
        return subprocess.run([self.root / "scripts" / name, *arguments], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"})


class InDebian(Folder):
    """scripts/in_debian with programs that stand in for debootstrap, git and unshare."""

    def setUp(self):
        super().setUp()
        if os.geteuid():
            self.skipTest("in_debian needs root")
        self.write("bin/debootstrap", 'echo made >>made; mkdir -p "$4/etc/dpkg/dpkg.cfg.d"; [[ $3 != sid ]]')
        self.write("bin/git", 'echo git "$@" >>said; [[ $1 != clone ]] || mkdir "${@: -1}"')
        self.write("bin/unshare", 'printf "%s\\n" "${@: -2}" >command; exit 3')

    def test_a_system_is_made_once_and_the_command_runs_in_a_new_clone_each_time(self):
        for _ in range(2):
            done = self.run_script("in_debian", "trixie", "true", "an argument")
            self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual((self.root / "command").read_text(encoding="utf-8"), "true\nan argument\n")
        self.assertEqual((self.root / "made").read_text(encoding="utf-8"), "made\n")
        said = (self.root / "said").read_text(encoding="utf-8")
        self.assertEqual(said.count("git clone"), 2)

    def test_a_system_that_cannot_be_made_is_a_reason_to_skip_and_is_tried_again(self):
        for count in (1, 2):
            done = self.run_script("in_debian", "sid", "true")
            self.assertEqual(done.returncode, 77)
            self.assertIn("debootstrap cannot make a Debian 'sid'", done.stdout.splitlines()[-1])
            self.assertEqual((self.root / "made").read_text(encoding="utf-8"), "made\n" * count)


class Distributions(Folder):
    """scripts/test_distributions and test_aarch64 with a stand-in for in_debian."""

    def test_a_failure_counts_although_another_release_is_skipped(self):
        self.write("scripts/in_debian", 'echo "no $1"; case $1 in bookworm) exit 1 ;; *) exit 77 ;; esac')
        done = self.run_script("test_distributions", "trixie", "bookworm")
        self.assertEqual(done.returncode, 1)
        self.assertIn("passed: none; failed: bookworm; skipped: no trixie", done.stdout)

    def test_one_release_that_passes_is_enough(self):
        self.write("scripts/in_debian", '[[ $1 == trixie ]] || exit 77')
        self.assertEqual(self.run_script("test_distributions", "bookworm", "trixie").returncode, 0)

    def test_the_reason_to_skip_is_the_last_line(self):
        self.write("scripts/in_debian", 'echo "no root"; exit 77')
        for name in ("test_distributions", "test_aarch64"):
            done = self.run_script(name)
            self.assertEqual(done.returncode, 77, name)
            self.assertEqual(done.stdout.splitlines()[-1], "no root")

    def test_a_build_that_warns_fails(self):
        self.write("scripts/in_debian", 'shift && exec "$@"')
        for name in ("bin/apt-get", "bin/ctest", "bin/g++", "bin/clang++", "scripts/install_deps", "scripts/demo"):
            self.write(name, "")
        self.write("bin/cmake", 'mkdir -p build/release build/clang\n'
                   '[[ $1 != --build || $2 != "$WARNS" ]] || echo "ld: warning: a word"')
        for warns, code in (("build/release", 1), ("build/clang", 1), ("neither", 0)):
            with unittest.mock.patch.dict(os.environ, {"WARNS": warns}):
                done = self.run_script("test_distributions")
            self.assertEqual(done.returncode, code, f"{warns}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    unittest.main()
