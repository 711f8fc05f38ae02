#!/usr/bin/env python3
"""Checks that words which the project has given up do not come back.

usage: check_words.py [--count] [SOURCE_ROOT]     (default: this checkout)

Reads SOURCE_ROOT/tests/words.txt, which explains itself, and looks for its words in every text file,
and in the files' names. What scripts/make_results writes between two marks in a document is left
out: it repeats recorded results. No comment may begin with "Of " either. Prints one line per
violation, or with --count how many there are of each kind, and exits 1 if there is any.
"""
import argparse
import bisect
import collections
import dataclasses
import fnmatch
import os
import pathlib
import re
import subprocess
import sys

LIST = "tests/words.txt"
KEYS = ("find", "name", "in", "allow", "hit", "miss")
SKIPPED_FOLDERS = {".git", ".cache", "build", "__pycache__"}

# Begins and ends what scripts/make_results writes.
MADE, MADE_END = re.compile(r"<!-- made from .* by scripts/make_results"), "<!-- end -->"
# What begins and ends a line without being part of its sentence: marks of comments, quotes of a
# string that is continued.
MARGIN = re.compile(r'^[\s/!<#*>"]+|["\s\\]+$')
PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")
SPACES = re.compile(r"\s+")

OF = {
    **dict.fromkeys((".h", ".cc", ".cu", ".cuh"), re.compile(r"(?://[/!]?<?|/\*+<?|^\s*\*)\s*(Of)\b")),
    ".md": None, ".json": None,
}
OF_SCRIPT = re.compile(r'(?:(?:^|\s)#+|""")\s*(Of)\b')  # Python, shell, CMake, TOML
OF_ADVICE = 'a comment begins with "Of"; name the subject'


@dataclasses.dataclass
class Entry:
    """One entry of the list."""
    say: str
    find: list = dataclasses.field(default_factory=list)
    name: list = dataclasses.field(default_factory=list)
    globs: list = dataclasses.field(default_factory=list)
    allow: list = dataclasses.field(default_factory=list)  # (glob, pattern)
    hit: list = dataclasses.field(default_factory=list)
    miss: list = dataclasses.field(default_factory=list)

    def applies(self, path):
        return not self.globs or matches_any(path, self.globs)

    def allows(self, path, line):
        return any(fnmatch.fnmatchcase(path, glob) and pattern.search(line)
                   for glob, pattern in self.allow)


@dataclasses.dataclass
class Words:
    """The list."""
    skip: list = dataclasses.field(default_factory=list)
    ignore: list = dataclasses.field(default_factory=list)
    entries: list = dataclasses.field(default_factory=list)


def matches_any(path, globs):
    return any(fnmatch.fnmatchcase(path, glob) for glob in globs)


def add_to(words, key, value):
    """One line of the list. Raises ValueError for one that is wrong."""
    if key == "skip":
        words.skip.append(value)
    elif key == "ignore":
        words.ignore.append(re.compile(value))
    elif key == "say":
        words.entries.append(Entry(value))
    elif key not in KEYS or not words.entries:
        raise ValueError(f"'{key}:' is not expected here")
    elif key == "find":
        words.entries[-1].find.append(re.compile(rf"\b(?:{value})(?!\w)"))
    elif key == "name":
        words.entries[-1].name.append(re.compile(value))
    elif key == "in":
        words.entries[-1].globs += value.split()
    elif key == "allow":
        glob, _, pattern = value.partition(" ")
        if not pattern:
            raise ValueError("'allow:' needs a glob and a pattern")
        words.entries[-1].allow.append((glob, re.compile(pattern)))
    else:
        getattr(words.entries[-1], key).append(value)


def read_words(text):
    words = Words()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, _, value = line.partition(": ")
        try:
            add_to(words, key, value.strip())
        except (ValueError, re.error) as error:
            raise ValueError(f"{LIST}:{number}: {error}") from None
    return words


class Text:
    """A file's lines, and the same as one text of plain words, whose offsets lead back to lines."""

    def __init__(self, lines):
        self.lines = lines
        self.starts, pieces, length = [], [], 0
        for line in lines:
            self.starts.append(length)
            line = MARGIN.sub("", MARGIN.sub("", line))
            pieces.append(SPACES.sub(" ", PARTS.sub(" ", line)).lower() + " ")
            length += len(pieces[-1])
        self.plain = "".join(pieces)

    def line_at(self, offset):
        return bisect.bisect_right(self.starts, offset) - 1


def find_entry(entry, text):
    """Yields (index of the line, what was found)."""
    for pattern in entry.find:
        for match in pattern.finditer(text.plain):
            yield text.line_at(match.start()), match.group()
    for pattern in entry.name:
        for index, line in enumerate(text.lines):
            for match in pattern.finditer(line):
                yield index, match.group()


def shown_lines(content, words):
    """The lines of a file, empty where they are not checked."""
    made = False
    for line in content.splitlines():
        made = made or bool(MADE.search(line))
        ended = made and line.strip() == MADE_END
        shown = "" if made else line
        for pattern in words.ignore:
            shown = pattern.sub("", shown)
        yield shown
        made = made and not ended


def check_text(path, lines, words):
    """Yields (index of the line, what was found, advice)."""
    text = Text(lines)
    for entry in words.entries:
        if entry.applies(path):
            for index, found in find_entry(entry, text):
                if not entry.allows(path, lines[index]):
                    yield index, found, f"say {entry.say}"


def check_of(path, lines):
    pattern = OF.get(pathlib.PurePosixPath(path).suffix, OF_SCRIPT)
    for index, line in enumerate(lines if pattern else []):
        if pattern.search(line):
            yield index, "Of", OF_ADVICE


def check_file(path, content, words):
    """Yields (line number, what was found, advice); line 0 is the file's name."""
    for _, found, advice in check_text(path, list(shown_lines(path, words)), words):
        yield 0, found, advice
    lines = list(shown_lines(content, words))
    for index, found, advice in sorted({*check_text(path, lines, words), *check_of(path, lines)}):
        yield index + 1, found, advice


def files_of(root):
    """The paths of a checkout's files that git knows or would add; without git, of all."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], capture_output=True, text=True, check=False)
    if (root / ".git").exists() and listed.returncode == 0:
        return sorted(path for path in set(listed.stdout.split("\0")) if (root / path).is_file())
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        paths += [(pathlib.Path(folder) / name).relative_to(root).as_posix() for name in names]
    return sorted(paths)


def check_tree(root, words):
    """Yields (path, line number, what was found, advice)."""
    for path in files_of(root):
        if matches_any(path, words.skip):
            continue
        try:
            content = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text
        for number, found, advice in check_file(path, content, words):
            yield path, number, found, advice


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    if not (options.root / LIST).is_file():
        sys.exit(f"check_words.py: no {LIST} in {options.root}")
    try:
        words = read_words((options.root / LIST).read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"check_words.py: {error}")
    violations = list(check_tree(options.root, words))
    if options.count:
        for advice, count in collections.Counter(last for *_, last in violations).most_common():
            print(f"{count:6} {advice}")
    else:
        for path, number, found, advice in violations:
            place = f"{path}:{number}" if number else f"{path}: the file's name"
            print(f"{place}: '{found}': {advice}")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
