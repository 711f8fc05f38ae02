#!/usr/bin/env python3
"""The worked examples of CONTRIBUTING.md apply to this tree, and what they add compiles.

usage: recipes_test.py [--compiler CXX] [--generated DIR]
       recipes_test.py --write DIR DOCUMENT    writes the whole files of a document below DIR

A line `<!-- recipe: PATH -->` before a block of code names the file that the block is: a whole file,
or, for a ```diff block, changes of it: lines with " " and "-" have to be in the file, those with "+"
replace them; a line "..." begins another place. Without a compiler only the text is checked.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = ("CONTRIBUTING.md", "docs/toy_provider.md", "docs/kernels/your_own.md")
BLOCK = re.compile(r"^<!-- recipe: (\S+) -->\n+```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class AlreadyApplied(Exception):
    """The tree has what an example adds."""


def blocks(document):
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def changed(text, diff, path):
    for place in diff.split("...\n"):
        lines = place.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if after in text:
            raise AlreadyApplied
        if not before.strip() or text.count(before) != 1:
            sys.exit(f"{path} has this {text.count(before)} times, where the recipe needs it once:\n{before}")
        text = text.replace(before, after)
    return text


def write(files, into):
    for path, text in files.items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(text, encoding="utf-8")


def apply(into):
    """Writes what the recipes make of the tree below `into`; returns the paths."""
    made, already = {}, []
    for document in DOCUMENTS:
        for path, language, body in blocks(document):
            try:
                if language != "diff" and (ROOT / path).exists():
                    raise AlreadyApplied
                made[path] = body if language != "diff" else changed(
                    made.get(path) or (ROOT / path).read_text(encoding="utf-8"), body, path)
            except AlreadyApplied:
                already.append(f"  {path}, by {document}")
    if already:
        sys.exit("this tree has these examples already, so they cannot be tried:\n" + "\n".join(already) +
                 "\nIf they are to stay, make the document's example another one; else undo them.")
    write(made, into)
    return sorted(made)


def is_compiled(path):
    """What a recipe adds, and the sources that it changes; not tests, nor what needs Python's headers."""
    return path.endswith(".cc") and not path.startswith(("plugins/", "python/", "tests/")) and (
        not path.endswith("_test.cc") or not (ROOT / path).exists())


def compile_one(compiler, generated, into, path):
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror",
               f"-I{into}", f"-I{ROOT}", f"-I{generated}", '-DFERRY_BUILD_TYPE="Release"', into / path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{path}:\n{done.stderr}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler")
    parser.add_argument("--generated", type=pathlib.Path)
    parser.add_argument("--write", nargs=2, metavar=("DIR", "DOCUMENT"))
    options = parser.parse_args()
    if options.write:
        folder, document = options.write
        write({path: body for path, language, body in blocks(document) if language != "diff"},
              pathlib.Path(folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder)
        paths = apply(into)
        if not any(path.endswith(".cc") for path in paths):
            sys.exit("the documents have no recipes")
        rules = into / "scripts/check_layers.py"  # with the row that a recipe adds
        checked = subprocess.run([sys.executable, rules if rules.is_file() else ROOT / "scripts" /
                                  rules.name, "--part", into], check=False, capture_output=True, text=True)
        if checked.returncode:
            sys.exit(f"the recipes break a rule of layers:\n{checked.stdout}{checked.stderr}")
        if not options.compiler:
            return
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            failed = [text for text in pool.map(
                lambda path: compile_one(options.compiler, options.generated, into, path),
                [path for path in paths if is_compiled(path)]) if text]
    sys.exit("\n".join(failed) or 0)


if __name__ == "__main__":
    main()
