#!/usr/bin/env python3
"""check_words.py finds the words of its list and no others, and each entry of the list does so."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_words.py"
sys.path.insert(0, str(SCRIPT.parent))
sys.dont_write_bytecode = True
import check_words  # noqa: E402

LIST = """# A comment.
skip: results/*
ignore: \\bold_boats\\b

say: ship
find: boats?|row boat
# The sea's own.
allow: sea/* \\bthe boat\\b

say: kMax
name: \\bkTop[A-Z]\\w*

say: port
find: haven
in: docs/*
"""


class CheckWords(unittest.TestCase):
    def run_on(self, files, *options):
        """Runs the script on a tree of these files, as path: text; returns what has run."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {"tests/words.txt": LIST, **files}.items():
                file = pathlib.Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text if isinstance(text, bytes) else text.encode())
            return subprocess.run([sys.executable, SCRIPT, *options, root], capture_output=True,
                                  text=True, timeout=30, check=False)

    def check(self, path, text):
        """The violations in a tree of this one file and the list, which mentions its words itself."""
        skipped = LIST.replace("skip: ", "skip: tests/words.txt\nskip: ", 1)
        done = self.run_on({"tests/words.txt": skipped, path: text})
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def test_all_forms_of_a_word_are_found_with_their_lines(self):
        for form in ("boat", "Boats", "BOAT", "a.boat_ = 1", "kBoatLength", "old_boat_age", "HTTPBoat",
                     "FERRY_MAX_BOATS", '"boat"', "RowBoat"):
            self.assertIn("a.cc:2: 'boat", self.check("a.cc", f"\n{form}\n").replace("row ", ""), form)
        self.assertIn(": say ship\n", self.check("a.cc", "boat\n"))

    def test_parts_of_words_are_not_found(self):
        self.assertEqual(self.check("a.cc", "boatswain lifeboat Lifeboats topBoatload\n"), "")

    def test_phrases_are_found_across_lines_and_not_across_sentences(self):
        for text in ("// a row\n  // boat\n", "# a row\n# boat\n", '"a row "\n  "boat"\n', "row\nboat\n"):
            self.assertIn(":1: 'row boat'", self.check("a.cc", text), text)
        self.assertNotIn("row boat", self.check("a.cc", "a row. Boat\n"))

    def test_names_are_found_by_case(self):
        self.assertIn("'kTopSpeed': say kMax", self.check("a.cc", "int kTopSpeed;\n"))
        self.assertEqual(self.check("a.cc", "ktopspeed kTop kTops\n"), "")

    def test_names_of_files_are_checked(self):
        self.assertIn("a/row_boat.h: the file's name: 'row boat'", self.check("a/row_boat.h", "\n"))
        self.assertIn("boats/x.bin: the file's name", self.check("boats/x.bin", "\n"))

    def test_an_entry_may_be_for_some_files_only(self):
        self.assertIn("docs/a/b.md:1: 'haven': say port", self.check("docs/a/b.md", "haven\n"))
        self.assertEqual(self.check("a.cc", "haven\n"), "")

    def test_exceptions_are_lines_of_files_not_whole_files(self):
        self.assertEqual(self.check("sea/a.cc", "the boat\n"), "")
        self.assertIn("sea/a.cc:2", self.check("sea/a.cc", "the boat\na boat\n"))
        self.assertIn("a.cc:1", self.check("a.cc", "the boat\n"))

    def test_skipped_files_ignored_names_and_bytes_are_passed(self):
        self.assertEqual(self.check("results/boats.json", "boats\n"), "")
        self.assertEqual(self.check("a.py", "read('old_boats')\n"), "")
        self.assertEqual(self.check("old_boats", "\n"), "")
        self.assertEqual(self.check("a.bin", b"boat\xff\n"), "")

    def test_tables_of_recorded_results_are_passed(self):
        made = "<!-- made from results/a.json by scripts/make_results: a -->\n| boat |\n<!-- end -->\n"
        self.assertEqual(self.check("docs/results.md", made), "")
        self.assertIn("docs/results.md:4:", self.check("docs/results.md", made + "boat\n"))

    def test_comments_do_not_begin_with_of(self):
        for path, line in (("a.h", "// Of all"), ("a.h", "int a;  // Of all"), ("a.h", "/// Of all"),
                           ("a.h", "int a;  ///< Of all"), ("a.cu", "/* Of all"), ("a.cc", " * Of all"),
                           ("a.py", "# Of all"), ("a.py", '"""Of all"""'), ("a/CMakeLists.txt", "# Of all")):
            self.assertIn(f"{path}:2: 'Of': a comment", self.check(path, f"\n{line}\n"), line)
        for path, line in (("a.h", "// of all"), ("a.h", "// Off"), ("a.h", "// One. Of all"),
                           ("a.h", 'Say("Of all");'), ("a.h", "TEST(A, OfAll)"), ("a.md", "# Of all")):
            self.assertEqual(self.check(path, f"{line}\n"), "", line)

    def test_counts_kinds(self):
        done = self.run_on({"tests/words.txt": LIST.replace("results/*", "tests/*"), "a": "boat\nboats\n",
                            "b": "kTopA\n"}, "--count")
        self.assertEqual(done.stdout.split("\n"), ["     2 say ship", "     1 say kMax", ""])
        self.assertEqual(done.returncode, 1)

    def test_a_wrong_list_is_an_error_with_its_line(self):
        for line in ("fnd: boat", "find: (boat", "boat", "allow: *"):
            done = self.run_on({"tests/words.txt": f"say: ship\n{line}\n"})
            self.assertIn("tests/words.txt:2: ", done.stderr, line)
            self.assertEqual(done.returncode, 1)
        self.assertIn("not expected", self.run_on({"tests/words.txt": "find: boat\n"}).stderr)


class TheList(unittest.TestCase):
    words = check_words.read_words((ROOT / check_words.LIST).read_text(encoding="utf-8"))

    def test_each_entry_finds_its_examples_and_no_others(self):
        for entry in self.words.entries:
            self.assertTrue(entry.find or entry.name, entry.say)
            self.assertTrue(entry.hit, entry.say)
            for text in entry.hit:
                self.assertTrue(list(check_words.find_entry(entry, check_words.Text([text]))), text)
            for text in entry.miss:
                self.assertEqual(list(check_words.find_entry(entry, check_words.Text([text]))), [], text)

    def test_it_says_no_word_that_it_has_given_up(self):
        for entry in self.words.entries:
            found = [found for other in self.words.entries if not other.globs
                     for _, found in check_words.find_entry(other, check_words.Text([entry.say]))]
            self.assertEqual(found, [], entry.say)


if __name__ == "__main__":
    unittest.main()
