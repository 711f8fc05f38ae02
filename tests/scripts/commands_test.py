"""The commands and programs in the documents work, as far as this machine can run them.

  commands_test.py --marks                           every block of code says whether it is run
  commands_test.py --ferry FERRY [--python PYTHON]   runs them; with a Python that has the package, also its
                                                     programs; exits with 77 if nothing was run, and prints
                                                     how many were left out

A block of code in PAGES stands below one of these lines:

  <!-- run: shell -->        run by bash, which stops at the first error, with `ferry` in its PATH
  <!-- run: gpu -->          the same, with a simulated GPU whose memory network plug-ins reach
  <!-- run: python -->       a whole program
  <!-- part of: PATH -->     lines of this file, whatever their indentation; "// ..." stands for others
  <!-- not run: REASON -->
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
PAGES = ("README.md", "docs/tutorials/*.md", "docs/howto/*.md", "docs/guides/*.md")
BLOCK = re.compile(r"(?:^<!-- (?P<mark>run|not run|part of): (?P<word>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
SHOWN = ("text",)  # output, which nobody runs
KINDS = ("shell", "gpu", "python")
GPU = {"FERRY_DEVICES": "simulated:1:1:open"}
SECONDS = 120
SKIPPED = 77


def blocks():
    """(place, mark, word, language, body) of every block."""
    for page in sorted(path for glob in PAGES for path in ROOT.glob(glob)):
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            yield place, found["mark"], found["word"], found["language"], found["body"]


def stripped(text):
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())


def missing(path, body):
    """The first stretch of a block that the file does not have, or nothing."""
    text = "\n" + stripped((ROOT / path).read_text(encoding="utf-8")) if (ROOT / path).is_file() else ""
    return next((part for part in stripped(body).split("// ...\n") if f"\n{part}" not in text), "")


def marks():
    """Sentences about blocks that do not say whether they are run, or are not in their file."""
    for place, mark, word, language, body in blocks():
        if language in SHOWN:
            continue
        if mark is None:
            yield f"{place}: write `<!-- run: shell -->` or `<!-- not run: REASON -->` above the block"
        elif mark == "part of":
            if lines := missing(word, body):
                yield f"{place}: {word} does not have these lines:\n{lines}"
        elif mark == "run" and word not in KINDS:
            yield f"{place}: a block is run by one of {', '.join(KINDS)}, not by {word}"


def run(place, command, ferry, variables):
    """A sentence, or nothing."""
    print(f"{place} starts", flush=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FERRY_", "NCCL_", "UCCL_"))}
    path = f"{pathlib.Path(ferry).resolve().parent}:{os.environ['PATH']}" if ferry else os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, cwd=folder, env={**kept, **variables, "PATH": path}, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            return f"{place}: did not end within {SECONDS} s:\n{output}"
    return f"{place}: ended with {process.returncode}:\n{output}" if process.returncode else ""


def python_command(folder, number, python, body):
    """As a file, which multiprocessing needs."""
    path = pathlib.Path(folder) / f"program_{number}.py"
    path.write_text(body, encoding="utf-8")
    return [python, str(path)]


def run_all(ferry, python):
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        pending, skipped = [], 0
        for number, (place, mark, word, _, body) in enumerate(blocks()):
            if mark != "run":
                continue
            command = python_command(folder, number, python, body) if word == "python" else \
                ["bash", "-euo", "pipefail", "-c", body]
            if (python if word == "python" else ferry) is None:
                skipped += 1
                continue
            pending.append(pool.submit(run, place, command, ferry, GPU if word == "gpu" else {}))
        return [fault for one in pending if (fault := one.result())], len(pending), skipped


def has_package(python):
    return subprocess.run([python, "-c", "import numpy, tensorferry.transfer"], capture_output=True, check=False,
                          timeout=SECONDS).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--marks", action="store_true")
    parser.add_argument("--ferry")
    parser.add_argument("--python")
    options = parser.parse_args()
    if options.marks:
        faults = list(marks())
        print("\n".join(faults), end="\n" if faults else "")
        return 1 if faults else 0
    python = options.python if options.python and has_package(options.python) else None
    faults, count, skipped = run_all(options.ferry, python)
    print(f"{count} blocks run, {len(faults)} failed")
    print("\n".join(faults))
    if skipped:
        print(f"skipped: {skipped} blocks whose {'program ferry' if python else 'Python package'} is not there")
    return 1 if faults else 0 if count else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
