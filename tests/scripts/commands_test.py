"""The commands and programs in the documents work, as far as this machine can run them.

  commands_test.py --marks                           every block of code says whether it is run
  commands_test.py --ferry FERRY [--python PYTHON]   runs them; with a Python that has the package, also its
                                                     programs; exits with 77 if nothing was run, and prints
                                                     how many were left out

A block of code in PAGES stands below one of these lines:

  <!-- run: shell -->          run by bash, which stops at the first error, with `ferry` in its PATH
  <!-- run: gpu -->            the same, with a simulated GPU whose memory network plug-ins reach
  <!-- run: python -->         a whole program
  <!-- run: python shell -->   run by bash with that Python as `python`
  <!-- part of: PATH -->       lines of this file, whatever their indentation; "// ..." stands for others
  <!-- not run: REASON -->
  <!-- recipe: PATH -->        a file that recipes_test.py writes and compiles

The two of Python may end with `; needs NAME, NAME`, names of NEEDS: where one is missing the block is skipped,
and the reason is printed. TENSORFERRY_NANOVLLM may name a checkout of nano-vllm.
"""
import argparse
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/tutorials/*.md", "docs/howto/*.md", "docs/guides/*.md",
         "docs/kernels/your_own.md")
BLOCK = re.compile(r"(?:^<!-- (?P<mark>run|not run|part of|recipe): (?P<word>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
SHOWN = ("text",)  # output, which nobody runs
GPU = {"FERRY_DEVICES": "simulated:1:1:open"}
SECONDS = 120
SKIPPED = 77
OF_FERRY = ("shell", "gpu")
KINDS = (*OF_FERRY, "python", "python shell")
NEEDS = {  # a program that ends well where it is there, and the sentence where it is not
    "torch": ("import torch, tensorferry.kernels", "torch is not installed"),
    "Triton": ("import triton", "Triton is not installed"),
    "nano-vllm": ("import nanovllm.kernels", "nanovllm.kernels cannot be imported; install this package's wheel and nano-vllm 0.2, or set "
                  "TENSORFERRY_NANOVLLM to a checkout"),
}


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
        elif mark == "run":
            kind, needs = parts(word)
            if kind not in KINDS or (kind in OF_FERRY and needs):
                yield f"{place}: a block is run by {', '.join(KINDS)}, and not by {word}"
            for name in needs:
                if name not in NEEDS:
                    yield f"{place}: a block may need {', '.join(NEEDS)}, and not {name}"


def parts(word):
    """(kind, [needed]) of the text behind `run:`."""
    kind, _, needs = word.partition("; needs ")
    return kind, [name.strip() for name in needs.split(",")] if needs else []


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FERRY_", "NCCL_", "UCCL_"))}
    if checkout := kept.get("TENSORFERRY_NANOVLLM"):
        kept["PYTHONPATH"] = str(pathlib.Path(checkout).resolve())
    return kept


@functools.cache
def is_missing(python, name):
    program, sentence = NEEDS[name]
    ended = subprocess.run([python, "-c", program], capture_output=True, check=False, timeout=SECONDS, cwd="/",
                           env=environment())
    return sentence if ended.returncode else ""


def run(place, command, program, variables):
    """A sentence, or nothing. program: its folder comes first in the PATH."""
    print(f"{place} starts", flush=True)
    # A virtual environment's python is a link, and its folder has what it installed.
    path = f"{pathlib.Path(program).absolute().parent}:{os.environ['PATH']}" if program else os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, cwd=folder, env={**environment(), **variables, "PATH": path},
                                   text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
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
        pending, skipped = [], []
        for number, (place, mark, word, _, body) in enumerate(blocks()):
            if mark != "run":
                continue
            kind, needs = parts(word)
            program = ferry if kind in OF_FERRY else python
            reasons = [sentence for name in needs if python and (sentence := is_missing(python, name))]
            if program is None:
                reasons = ["the program ferry is not there" if kind in OF_FERRY else "the Python package is not there"]
            if reasons:
                skipped.append(f"{place}: skipped: {'; '.join(reasons)}")
                continue
            command = python_command(folder, number, python, body) if kind == "python" else \
                ["bash", "-euo", "pipefail", "-c", body]
            pending.append(pool.submit(run, place, command, ferry if kind == "python" else program,
                                       GPU if kind == "gpu" else {}))
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
    print("\n".join([*faults, *skipped]))
    return 1 if faults else 0 if count else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
