#!/usr/bin/env python3
"""Tests of packaging/: symbols, exceptions on older systems, notices, folders that scripts delete, skipped suites.

usage: packages_selftest.py COMPILER
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"
THROWS = """#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
__attribute__((noinline)) void Throw(int depth) {
  std::string kept(100, 'x');
  if (depth == 0) throw std::runtime_error("caught");
  Throw(depth - 1);
  std::puts(kept.c_str());
}
int main() {
  std::random_device random("default");
  if (random() == random() && random() == random()) return 1;
  try {
    Throw(10);
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}
"""


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False,
                          **options)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compile(self, *options):
        source, program = self.folder / "throws.cc", self.folder / "throws"
        source.write_text(THROWS, encoding="utf-8")
        done = run(COMPILER, "-std=c++20", source, *options, "-o", program)
        if done.returncode:
            self.skipTest(f"{COMPILER} cannot link its C++ library so: {done.stderr}")
        return program


class Symbols(Folder):
    def test_a_program_with_the_shared_cpp_library_is_refused(self):
        checked = run(PACKAGING / "check_symbols", self.compile())
        self.assertEqual(checked.returncode, 1)
        self.assertIn("needs libstdc++.so.6", checked.stderr)
        self.assertIn("needs GLIBCXX_", checked.stderr)

    def test_exceptions_are_caught_without_a_symbol_of_a_later_glibc(self):
        program = self.compile("-static-libstdc++", "-static-libgcc", "-Wl,--gc-sections", PACKAGING / "old_glibc.cc")
        checked = run(PACKAGING / "check_symbols", program)
        self.assertEqual(checked.stderr, "")
        self.assertEqual(run(program).stdout, "caught\n")

    def test_what_is_no_program_is_named(self):
        checked = run(PACKAGING / "check_symbols", PACKAGING / "old_glibc.cc")
        self.assertEqual(checked.returncode, 1)
        self.assertIn("old_glibc.cc", checked.stderr)


class Notices(Folder):
    def test_every_component_of_the_bill_has_its_licence_in_the_notices(self):
        toolkit = self.folder / "cuda"
        info = toolkit / "dist-info" / "nvidia_cuda_runtime-1.2.96.dist-info"
        (info / "licenses").mkdir(parents=True)
        (info / "METADATA").write_text("Name: nvidia-cuda-runtime\nVersion: 1.2.96\n", encoding="utf-8")
        (info / "licenses" / "License.txt").write_text("the text of the EULA", encoding="utf-8")
        made = run(PACKAGING / "make_notices", "--version", "9.8", "--cuda", toolkit, self.folder)
        if "is not installed" in made.stderr:
            self.skipTest(made.stderr.strip())
        self.assertEqual(made.stderr, "")
        notices = (self.folder / "NOTICES").read_text(encoding="utf-8")
        bill = json.loads((self.folder / "sbom.json").read_text(encoding="utf-8"))
        self.assertEqual(bill["metadata"]["component"]["version"], "9.8")
        for component in bill["components"]:
            self.assertIn(f"{component['name']} {component['version']}\n" + "=" * 100, notices)
        self.assertIn("NVIDIA CUDA runtime 1.2.96", notices)
        self.assertIn("Attachment A", notices)
        self.assertIn("the text of the EULA", notices)
        # Debian's files refer to this one.
        self.assertIn("/usr/share/common-licenses/Apache-2.0\n" + "=" * 100, notices)

    def test_a_missing_licence_is_an_error_that_names_the_file(self):
        made = run(PACKAGING / "make_notices", "--version", "1", "--cuda", self.folder, self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertRegex(made.stderr, "make_notices: .*(version is unknown|is not installed)")


class FreshFolder(Folder):
    def test_a_folder_with_files_of_others_is_refused_and_kept(self):
        kept = self.folder / "kept"
        kept.write_text("", encoding="utf-8")
        for words in ([PACKAGING / "fresh_folder"], [PACKAGING / "fresh_folder", "--check"],
                      [PACKAGING / "build_libs"], [ROOT / "scripts/release", "--head"]):
            done = run(*words, self.folder)
            if "is missing" in done.stderr:
                continue  # build_libs, where its tools are not installed
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{self.folder} has files that Tensorferry's scripts did not make", done.stderr)
            self.assertTrue(kept.exists())

    def test_a_folder_that_was_made_is_emptied_again_but_not_by_a_check(self):
        folder = self.folder / "out"
        self.assertEqual(run(PACKAGING / "fresh_folder", folder).returncode, 0)
        (folder / "old").write_text("", encoding="utf-8")
        self.assertEqual(run(PACKAGING / "fresh_folder", "--check", folder).returncode, 0)
        self.assertTrue((folder / "old").exists())
        self.assertEqual(run(PACKAGING / "fresh_folder", folder).returncode, 0)
        self.assertEqual([path.name for path in folder.iterdir()], [".tensorferry"])


class BareSystems(Folder):
    """packaging/test_bare with programs that stand in for debootstrap, chroot and unshare."""

    def outcome(self, bookworm, trixie):
        """The exit code, where a suite can be "missing", "good" or "bad"."""
        (self.folder / "packaging").mkdir()
        for name in ("test_bare", "two_peers.py", "nixl_agent.py"):
            shutil.copy(PACKAGING / name, self.folder / "packaging")
        for name in ("cp311-cp311", "cp312-abi3"):
            (self.folder / f"tensorferry-1-{name}-any.whl").write_text("", encoding="utf-8")
        (self.folder / "ca.crt").write_text("", encoding="utf-8")
        wanted = {"bookworm": bookworm, "trixie": trixie}
        cases = "; ".join(f"*{suite}*) state={state}" for suite, state in wanted.items()).replace("; ", " ;; ")
        programs = {
            "debootstrap": f'case "$*" in {cases} ;; esac\n[[ $state != missing ]]',
            "chroot": 'case "$*" in *bookworm*python3*) echo 11 ;; *python3*) echo 13 ;; *) echo glibc ;; esac',
            "unshare": f'case "$*" in {cases} ;; esac\n[[ $state == good ]]',
        }
        (self.folder / "bin").mkdir()
        for name, body in programs.items():
            path = self.folder / "bin" / name
            path.write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
            path.chmod(0o755)
        return run(self.folder / "packaging/test_bare", self.folder,
                   env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                        "PIP_CERT": str(self.folder / "ca.crt")})

    def setUp(self):
        super().setUp()
        if os.geteuid():
            self.skipTest("test_bare needs root")

    def test_a_failure_counts_although_a_later_suite_is_skipped(self):
        done = self.outcome("bad", "missing")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("passed: none; failed: bookworm; skipped: trixie", done.stdout)

    def test_one_suite_that_passes_is_enough(self):
        self.assertEqual(self.outcome("missing", "good").returncode, 0)

    def test_it_is_skipped_where_no_suite_could_run(self):
        self.assertEqual(self.outcome("missing", "missing").returncode, 77)


if __name__ == "__main__":
    unittest.main()
