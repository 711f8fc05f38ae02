#!/usr/bin/env python3
"""check_words.py finds the words of its list in texts and in names of files, and no others."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_words.py"
LIST = "(?!) = skipped = old/*\ncopy crews? = parallel memcpy\nboats? = ship = sea/*\n"


class CheckWords(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", root], check=True)
            for path, text in {"tests/words.txt": LIST.replace("old/*", "old/* tests/words.txt"), **files}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text, encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1 if done.stdout else 0, done.stderr)
        return done.stdout.splitlines()

    def test_a_word_is_found_whatever_joins_its_parts(self):
        for text in ("CopyCrew crew;", "copy_crew_", "COPY_CREWS", "a copy crew"):
            self.assertEqual(self.run_on({"a.cc": "\n" + text + "\n"}),
                             [f"a.cc:2: '{'copy crews' if text == 'COPY_CREWS' else 'copy crew'}': say parallel memcpy"])

    def test_a_word_is_found_in_the_name_of_a_file(self):
        self.assertEqual(self.run_on({"row_boat.h": ""}), ["row_boat.h:0: 'boat': say ship"])

    def test_other_words_and_files_in_which_a_word_is_right_pass(self):
        self.assertEqual(self.run_on({"a.md": "boating, a copy of the crew\n", "sea/a.md": "boat\n",
                                      "old/a.md": "boat\n"}), [])


if __name__ == "__main__":
    unittest.main()
