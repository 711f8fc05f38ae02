#!/usr/bin/env python3
"""The worked examples of CONTRIBUTING.md apply to this tree, and what they add compiles.

usage: recipes_test.py [--compiler CXX] [--generated DIR]

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
DOCUMENTS = ("CONTRIBUTING.md", "docs/toy_provider.md")
BLOCK = re.compile(r"^<!-- recipe: (\S+) -->\n+```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def changed(text, diff, path):
    for place in diff.split("...\n"):
        lines = place.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if not before.strip() or text.count(before) != 1:
            sys.exit(f"{path} has this {text.count(before)} times, where the recipe needs it once:\n{before}")
        text = text.replace(before, after)
    return text


def apply(root, into):
    """Writes what the recipes make of the tree below `into`; returns the paths."""
    made = {}
    for document in DOCUMENTS:
        for path, language, body in BLOCK.findall((root / document).read_text(encoding="utf-8")):
            if language == "diff":
                before = made.get(path) or (root / path).read_text(encoding="utf-8")
                made[path] = changed(before, body, path)
            elif (root / path).exists():
                sys.exit(f"{document}: {path} is in the tree already")
            else:
                made[path] = body
    for path, text in made.items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(text, encoding="utf-8")
    return sorted(made)


def is_compiled(path):
    """What a recipe adds, and the sources that it changes; not tests, nor what needs Python's headers."""
    return path.endswith(".cc") and not path.startswith(("bindings/", "tests/")) and (
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder)
        paths = apply(ROOT, into)
        if not any(path.endswith(".cc") for path in paths):
            sys.exit("the documents have no recipes")
        rules = into / "scripts/check_layers.py"  # with the row that a recipe adds
        checked = subprocess.run([sys.executable, rules if rules.is_file() else ROOT / "scripts" /
                                  rules.name, into], check=False, capture_output=True, text=True)
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
