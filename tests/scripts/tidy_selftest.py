#!/usr/bin/env python3
"""scripts/tidy.py reads a unit again when, and only when, a file of ours that it includes has changed."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import tidy  # noqa: E402


class Units(unittest.TestCase):
    def test_a_folder_is_a_unit_and_its_tests_another(self):
        self.assertEqual(tidy.units_of(["ferry/core/a.cc", "ferry/core/b.cc", "ferry/core/b_test.cc",
                                        "tests/fuzz/a_fuzz.cc", "tests/fuzz/b_fuzz.cc"]),
                         {"ferry_core": ["ferry/core/a.cc", "ferry/core/b.cc"],
                          "ferry_core_test": ["ferry/core/b_test.cc"],
                          "tests_fuzz_a_fuzz": ["tests/fuzz/a_fuzz.cc"],
                          "tests_fuzz_b_fuzz": ["tests/fuzz/b_fuzz.cc"]})


class Hashes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.files = {".clang-tidy": "Checks: '*'\n", "a.cc": '#include "a.h"\n#include <vector>\n',
                      "a.h": '  #  include "deep/b.h"\n', "deep/b.h": "// b\n", "other.h": "// other\n"}
        self.before = self.hash()

    def hash(self, **changes):
        for path, text in {**self.files, **changes}.items():
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        return tidy.Hashes(self.root).unit(["a.cc"])

    def test_it_is_the_same_for_the_same_files(self):
        self.assertEqual(self.hash(), self.before)
        self.assertEqual(self.hash(**{"other.h": "// changed\n"}), self.before)

    def test_it_changes_with_the_source_its_headers_and_the_checks(self):
        for path in ("a.cc", "a.h", "deep/b.h", ".clang-tidy"):
            self.assertNotEqual(self.hash(**{path: self.files[path] + "// changed\n"}), self.before, path)


if __name__ == "__main__":
    unittest.main()
