#!/usr/bin/env python3
"""Finds words that the project has given up, in all text files that git knows.

usage: check_words.py [SOURCE_ROOT]     (default: this checkout)

SOURCE_ROOT/tests/words.txt lists them. Prints one line per word found, and exits 1 if there is any.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")


def read_words(text):
    """[(pattern, advice, globs of files where the word is right)]"""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, advice, *right = line.split(" = ")
            yield re.compile(rf"\b(?:{pattern})\b"), advice, " ".join(right).split()


def check_tree(root):
    words = list(read_words((root / "tests/words.txt").read_text(encoding="utf-8")))
    skipped = next((globs for _, advice, globs in words if advice == "skipped"), [])
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        sys.exit(f"check_words.py: {root} is no git checkout: {listed.stderr.strip()}")
    for path in sorted(listed.stdout.splitlines()):
        if any(fnmatch.fnmatchcase(path, glob) for glob in skipped) or not (root / path).is_file():
            continue
        text = (root / path).read_text(encoding="utf-8", errors="ignore")
        plain = PARTS.sub(" ", f"{path}\n{text}").lower()
        for pattern, advice, right in words:
            if not any(fnmatch.fnmatchcase(path, glob) for glob in right):
                for found in pattern.finditer(plain):
                    line = plain.count("\n", 0, found.start())
                    yield f"{path}:{line}: '{found.group()}': say {advice}"


def main():
    root = pathlib.Path(sys.argv[1] if sys.argv[1:] else __file__).resolve()
    violations = list(check_tree(root if sys.argv[1:] else root.parent.parent))
    print(*violations, sep="\n", end="\n" if violations else "")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
