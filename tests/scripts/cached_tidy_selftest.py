#!/usr/bin/env python3
"""Tests which files scripts/cached_tidy.py checks again and which not. Exits 77 without its tools."""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "cached_tidy.py"
# Finds what is called "bad", and notes that it was asked; before, it makes TIDY_EDITS good.
CLANG_TIDY = '''\
#!/bin/sh
if [ "$1" = --version ]; then echo "version ${TIDY_VERSION:-1}"; exit 0; fi
echo asked >>"$TIDY_LOG"
for source; do :; done
if [ -n "$TIDY_EDITS" ]; then sed -i 's/bad/good/' "$TIDY_EDITS"; fi
if clang++ -E -C "$source" | grep -w bad; then exit 1; fi
'''


class CachedTidy(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "clang-tidy").write_text(CLANG_TIDY, encoding="utf-8")
        (tools / "clang-tidy").chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                            "FERRY_TIDY_CACHE": str(self.folder / "cache"),
                            "TIDY_LOG": str(self.folder / "log")}
        self.environment.pop("CCACHE_DISABLE", None)
        self.clone("one")

    def clone(self, name):
        """A checkout with a source that includes a header, long unchanged."""
        self.root = self.folder / name
        (self.root / "build").mkdir(parents=True)
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPT, self.root / "scripts")
        self.write(".clang-tidy", "Checks: '*'\n")
        self.write("a.h", "// good\nint a();\n")
        self.write("a.cc", '#include "a.h"\n')
        self.flags = ["-DONE"]

    def write(self, name, text):
        (self.root / name).write_text(text, encoding="utf-8")
        long_ago = time.time() - 1000
        os.utime(self.root / name, (long_ago, long_ago))

    def asks(self, *arguments, sources=("a.cc",), command=False):
        """(exit status, whether clang-tidy was asked)"""
        database = []
        for name in sources:
            source = str(self.root / name)
            words = ["c++", *self.flags, f"-I{self.root}", "-o", "out.o", "-c", source]
            flags = {"command": shlex.join(words)} if command else {"arguments": words}
            database.append({"directory": str(self.root / "build"), "file": source, **flags})
        (self.root / "build" / "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
        log = pathlib.Path(self.environment["TIDY_LOG"])
        log.write_text("", encoding="utf-8")
        # On one core, one source after the other.
        done = subprocess.run([sys.executable, self.root / "scripts" / "cached_tidy.py", self.root / "build",
                               *[entry["file"] for entry in database], "--", *arguments],
                              env=self.environment, capture_output=True, text=True, check=False,
                              preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        self.assertEqual(done.stderr, "")
        return done.returncode, bool(log.read_text(encoding="utf-8"))

    def test_what_is_clean_is_not_read_again(self):
        self.assertEqual(self.asks(), (0, True))
        self.assertEqual(self.asks(), (0, False))

    def test_another_clone_finds_the_results(self):
        self.assertEqual(self.asks(), (0, True))
        self.clone("two")
        self.assertEqual(self.asks(), (0, False))

    def test_what_is_found_is_found_again(self):
        self.write("a.h", "int bad;\n")
        self.assertEqual(self.asks(), (1, True))
        self.assertEqual(self.asks(), (1, True))
        self.write("a.h", "int good;\n")
        self.assertEqual(self.asks(), (0, True))

    def test_every_input_counts(self):
        def change(name, text):
            return lambda: self.write(name, text)

        for make in (change("a.h", "// NOLINT\nint a();\n"), change("a.cc", '#include "a.h"\n\n'),
                     change(".clang-tidy", "Checks: '-*'\n"),
                     lambda: self.flags.append("-DTWO"),
                     lambda: self.environment.update(TIDY_VERSION="2")):
            self.assertEqual(self.asks()[0], 0)
            self.assertEqual(self.asks(), (0, False))
            make()
            self.assertEqual(self.asks(), (0, True))
        self.assertEqual(self.asks("--checks=-x"), (0, True))

    def test_a_change_that_is_taken_back_is_known(self):
        self.assertEqual(self.asks(), (0, True))
        self.write("a.h", "int b();\n")
        self.assertEqual(self.asks(), (0, True))
        self.write("a.h", "// good\nint a();\n")
        self.assertEqual(self.asks(), (0, False))

    def test_an_object_file_stays_as_it_is_and_a_header_counts(self):
        for command in (False, True):
            with self.subTest(command=command):
                self.clone(f"objects_{command}")
                self.flags = ["-DNAME=a b" if command else "-DONE"]
                self.write("build/out.o", "an object")
                self.assertEqual(self.asks(command=command), (0, True))
                self.assertEqual((self.root / "build" / "out.o").read_text(encoding="utf-8"), "an object")
                self.assertEqual(self.asks(command=command), (0, False))
                self.write("a.h", "int b();\n")
                self.assertEqual(self.asks(command=command), (0, True))

    def test_a_list_of_inputs_without_the_source_is_not_believed(self):
        self.flags = ["-oelsewhere.o"]
        self.assertEqual(self.asks(), (0, True))
        self.assertEqual(self.asks(), (0, True))

    def test_a_source_that_changes_during_the_run_is_not_known(self):
        self.write("a.cc", "int bad;\n")
        self.environment["TIDY_EDITS"] = str(self.root / "a.cc")
        self.assertEqual(self.asks(), (0, True))
        del self.environment["TIDY_EDITS"]
        self.write("a.cc", "int bad;\n")
        self.assertEqual(self.asks(), (1, True))

    def test_a_header_that_changes_before_its_second_source_is_read_is_not_known(self):
        self.write("b.cc", '#include "a.h"\nint other;\n')
        self.assertEqual(self.asks(), (0, True))
        self.write("a.h", "int bad;\n")
        self.environment["TIDY_EDITS"] = str(self.root / "a.h")
        self.assertEqual(self.asks(sources=("a.cc", "b.cc")), (0, True))
        del self.environment["TIDY_EDITS"]
        self.write("a.h", "int bad;\n")
        self.assertEqual(self.asks(sources=("b.cc",)), (1, True))

    def test_without_the_compilers_cache_there_is_none(self):
        self.environment["CCACHE_DISABLE"] = "1"
        self.assertEqual(self.asks(), (0, True))
        self.assertEqual(self.asks(), (0, True))


if __name__ == "__main__":
    if not shutil.which("clang++"):
        print("skipped: clang++ is not installed")
        sys.exit(77)
    unittest.main()
