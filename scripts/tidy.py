#!/usr/bin/env python3
"""Runs clang-tidy: a unit for each folder, of its sources or of its tests, because nearly all of its
time goes into the headers that they have in common.

usage: tidy.py BUILD_DIR [--all | --slow] [--record] [FILE...]

Without FILE it reads the units that differ from those in scripts/tidy_clean.txt, by which --record notes
what is clean, and from those that were clean on this machine since (FERRY_TIDY_CACHE, or ferry-tidy
beside the compiler's cache). A unit differs when any file of ours that it includes does. --all reads all
of them, and --slow all by the slowest checks, which the others leave out. Exits 1 if clang-tidy found
anything, and 77 where it is not installed.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "scripts" / "tidy_clean.txt"
FOLDERS = ("ferry", "plugins", "python", "tools", "packaging", "standin", "tests", "bench")
LEFT_OUT = re.compile(r"tests/(consumer|options)/|examples/cpp/")
# Folders that are compiled only where their packages are, and what the database has then.
OPTIONAL = {"ferry/cuda/real/": "layers/cuda/real/", "python/": "layers/python/"}
# Files that cannot share a unit with others: linux/tcp.h excludes netinet/tcp.h, each fuzzer has an
# entry point of the same name, as each toy and a benchmark have, and sources of fmt's and spdlog's
# exclude their headers.
# Two test programs have helpers of the same names as others in their folder.
ALONE = {"tests/cli/transfer_safety_test.cc", "tests/peer_failure/peer_late_read_test.cc",
         "ferry/net/tcp/path_stats.cc", "ferry/tcpx/tests/toy_plugin.cc",
         "plugins/nccl/bundled.cc", "plugins/nccl/tests/nccl_net_bench.cc"}
# Over a third of the time of all.
SLOW = ("performance-unnecessary-value-param", "bugprone-reserved-identifier", "bugprone-stringview-nullptr")
FLAGS_WITH_A_WORD = {"-I", "-D", "-U", "-isystem", "-include"}
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)
SLOWEST_SHOWN = 5
MAX_REMEMBERED = 5000  # hashes of clean units on this machine


def entries_of(build):
    text = (build / "compile_commands.json").read_text(encoding="utf-8")
    return text, [entry for entry in json.loads(text) if entry["file"].endswith((".cc", ".cxx"))
                  and "_verify_interface_header_sets/" not in entry["file"]]


def entries_of_all_tests(build):
    """Those of the tests that a build leaves out, for their definitions; from a build that is only configured."""
    cache = build / "CMakeCache.txt"
    if not cache.is_file() or "FERRY_ALL_TESTS:BOOL=OFF" not in cache.read_text(encoding="utf-8"):
        return []
    everything = ROOT / "build" / "all_tests"
    subprocess.run(["cmake", "--preset", "release", "-B", everything, "-DFERRY_CUDA=OFF"], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    return entries_of(everything)[1]


def flags_of(entry):
    words = iter(shlex.split(entry["command"])[1:])
    for word in words:
        if word in FLAGS_WITH_A_WORD:
            yield (word, next(words))
        elif word == "-o":
            next(words)
        elif word.startswith("-") and word != "-c":
            yield (word,)


def units_of(paths):
    """Sources by the name of their unit; first the unit that takes longest."""
    units = {}
    for path in map(pathlib.PurePosixPath, paths):
        alone = str(path) in ALONE or path.parts[:2] == ("tests", "fuzz")
        name = path.with_suffix("") if alone else path.parent
        kind = "_test" if path.stem.endswith("_test") else ""
        units.setdefault("_".join(name.parts) + kind, []).append(str(path))
    return dict(sorted(units.items(), key=lambda unit: -len(unit[1])))


class Hashes:
    """Hashes of units: of their files and of the files of ours that these include, at any depth."""

    def __init__(self, root=ROOT):
        self.root, self.read = root, {}
        self.common = (root / ".clang-tidy").read_bytes()

    def file(self, path):
        """(content, includes of ours)"""
        if path not in self.read:
            content = (self.root / path).read_bytes()
            names = {name.decode() for name in INCLUDE.findall(content)}
            self.read[path] = content, sorted(name for name in names if (self.root / name).is_file())
        return self.read[path]

    def unit(self, paths):
        todo, seen = list(paths), set()
        while todo:
            path = todo.pop()
            if path not in seen:
                seen.add(path)
                todo += self.file(path)[1]
        digest = hashlib.sha256(self.common)
        for path in sorted(seen):
            digest.update(path.encode() + b"\0" + hashlib.sha256(self.file(path)[0]).digest())
        return digest.hexdigest()[:32]


def memory():
    """The file of hashes that were clean on this machine; none where caches are switched off."""
    if os.environ.get("CCACHE_DISABLE"):
        return None
    default = pathlib.Path(os.environ.get("CCACHE_DIR") or pathlib.Path.home() / ".cache" / "ccache")
    return pathlib.Path(os.environ.get("FERRY_TIDY_CACHE") or default.parent / "ferry-tidy") / "clean.txt"


def read_words(file, column):
    try:
        return [line.split()[column] for line in file.read_text(encoding="utf-8").splitlines()
                if line and not line.startswith("#")]
    except (OSError, AttributeError):
        return []


def write_units(build, entries, units):
    """A source for each unit, in a folder with the flags of all targets together."""
    out = build / "tidy"
    out.mkdir(exist_ok=True)
    flags, macros = [], set()
    for flag in dict.fromkeys(flag for entry in entries for flag in flags_of(entry)):
        macro = flag[0].partition("=")[0] if flag[0].startswith("-D") else None
        if macro is None or macro not in macros:  # one build's paths
            flags += flag
        macros.add(macro)
    database = []
    for name, paths in units.items():
        unit = out / f"{name}.cxx"
        unit.write_text("".join(f'#include "{ROOT / path}"\n' for path in paths), encoding="utf-8")
        database.append({"directory": str(build), "file": str(unit),
                         "arguments": ["c++", *flags, "-c", str(unit)]})
    (out / "compile_commands.json").write_text(json.dumps(database, indent=1), encoding="utf-8")
    return out


def run(folder, sources, checks):
    """(sources that are clean); prints what was found."""
    def read(source):
        since = time.monotonic()
        # g++ alone reads some of our warning flags.
        done = subprocess.run(["nice", "clang-tidy", "--quiet", "-p", folder, *checks,
                               "--extra-arg=-Wno-unknown-warning-option", source],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode == 0, time.monotonic() - since, done.stdout
    clean, times = [], []
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for source, (is_clean, took, output) in zip(sources, pool.map(read, sources)):
            times.append((took, pathlib.Path(source).name))
            if is_clean:
                clean.append(source)
            else:
                print(output, end="", flush=True)
    slowest = "".join(f"; {name} {took:.0f} s" for took, name in sorted(times, reverse=True)[:SLOWEST_SHOWN])
    print(f"clang-tidy: {len(sources)} read in {sum(took for took, _ in times):.0f} s{slowest}")
    return clean


def tidy_units(build, options):
    text, entries = entries_of(build)
    entries += entries_of_all_tests(build)
    absent = tuple(folder for folder, mark in OPTIONAL.items() if mark not in text)
    for folder in absent:
        print(f"tidy: {folder} is left out, as it is in {build}")
    paths = [file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.cc"))]
    paths = [path for path in paths if not LEFT_OUT.match(path) and not path.startswith(absent or ("\0",))]
    units, hashes = units_of(paths), Hashes()
    known = {name: hashes.unit(files) for name, files in units.items()}
    file = memory()
    remembered = read_words(file, 0)
    clean_before = set() if options.all or options.slow else {*read_words(RECORD, 1), *remembered}
    todo = [name for name in units if known[name] not in clean_before]
    print(f"clang-tidy: {len(units) - len(todo)} of {len(units)} units are as they were when clean")
    folder = write_units(build, entries, {name: units[name] for name in todo})
    # Not found in units: an alias of a namespace that nobody uses, and a using-declaration that only
    # another file uses.
    checks = ("-*," + ",".join(SLOW)) if options.slow else ",".join(["-bugprone-suspicious-include",
                                                                    *(f"-{check}" for check in SLOW)])
    sources = [str(folder / f"{name}.cxx") for name in todo]
    clean = {pathlib.Path(source).stem for source in run(folder, sources, [f"--checks={checks}"])} if todo else set()
    if file and not options.slow:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = [*remembered, *(known[name] for name in todo if name in clean)][-MAX_REMEMBERED:]
        file.write_text("".join(f"{word}\n" for word in kept), encoding="utf-8")
    if options.record and len(clean) == len(todo):
        RECORD.write_text("# Units of clang-tidy that were clean, by the hash of what they include; written by\n"
                          "# scripts/lint.sh tidy BUILD_DIR --record.\n" +
                          "".join(f"{name} {known[name]}\n" for name in sorted(units)), encoding="utf-8")
    return len(clean) == len(todo)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    if not shutil.which("clang-tidy"):
        print("skipped: clang-tidy is not installed")
        sys.exit(77)
    build = options.build.resolve()
    if not (build / "compile_commands.json").is_file():
        sys.exit(f"tidy: no {build}/compile_commands.json: configure that build first")
    if options.files:
        # In a unity build the database has units: one of each file alone then.
        units = {f"file_{index}": [os.path.relpath(file, ROOT)] for index, file in enumerate(options.files)}
        folder = write_units(build, entries_of(build)[1], units)
        clean = run(folder, [str(folder / f"{name}.cxx") for name in units], ["--checks=-bugprone-suspicious-include"])
        sys.exit(0 if len(clean) == len(units) else 1)
    sys.exit(0 if tidy_units(build, options) else 1)


if __name__ == "__main__":
    main()
