#!/usr/bin/env python3
"""Runs clang-tidy on sources, as many at once as there are cores, but not on those that it found
nothing in before.

usage: cached_tidy.py BUILD_DIR SOURCE... [-- ARGUMENT...]     (for clang-tidy)

A clean result is kept under the hash of what went into it: the source, its flags in
BUILD_DIR/compile_commands.json, .clang-tidy, clang-tidy itself, and every file that the source
includes, with its comments, as some checks read these. Names are relative to the checkout, so that a
fresh clone elsewhere finds the results of another. They are in FERRY_TIDY_CACHE, by default in
"ferry-tidy" beside the compiler's cache; CCACHE_DISABLE switches them off, too. What fails is not
kept. Exits 1 if clang-tidy found anything.
"""
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
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMAT = "2"  # of what is kept
MAX_RESULTS = 16  # for one source and its flags: of several branches, say
MAX_AGE_SECONDS = 60 * 24 * 3600
SLOWEST_SHOWN = 5
CLOCK_TICK_SECONDS = 0.02  # by which the time of a file may lag behind the clock
# Options for output files and dependency rules are left out; each has one argument.
OUTPUT_FLAGS = ("-o", "-MF", "-MT", "-MQ")
# The file that configuring writes names the commit, which no check reads.
QUOTED = re.compile(rb'"[^"\n]*"')


def cache_folder():
    if os.environ.get("CCACHE_DISABLE"):
        return None
    named = os.environ.get("FERRY_TIDY_CACHE")
    if named:
        return pathlib.Path(named)
    if shutil.which("ccache"):
        asked = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True,
                               text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            return pathlib.Path(asked.stdout.strip()) / "ferry-tidy"
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "ferry-tidy"


class Digests:
    """Digests of files, each read once. The names are those that Checkout.portable() gives."""

    def __init__(self, checkout):
        self.checkout, self.known, self.lock = checkout, {}, threading.Lock()

    def of(self, name):
        """None if there is no such file."""
        with self.lock:
            if name in self.known:
                return self.known[name]
        try:
            text = pathlib.Path(self.checkout.local(name)).read_bytes()
            if name.startswith("<build>/"):
                text = QUOTED.sub(b'""', text)
            digest = hashlib.sha256(text).hexdigest()
        except OSError:
            digest = None
        with self.lock:
            self.known[name] = digest
        return digest


class Checkout:
    def __init__(self, build):
        self.build = build
        # The longer one first.
        self.places = sorted([(str(build), "<build>"), (str(ROOT), "<root>")],
                             key=lambda place: -len(place[0]))

    def portable(self, text):
        for place, name in self.places:
            text = text.replace(place, name)
        return text

    def local(self, name):
        for place, short in self.places:
            name = name.replace(short, place)
        return name


def words_of(entry):
    return entry.get("arguments") or shlex.split(entry["command"])


def flags_of(entry):
    """What the compiler is told of this source, but not what it is to write."""
    words, flags = iter(words_of(entry)[1:]), []
    for word in words:
        if word in OUTPUT_FLAGS:
            next(words, None)
        elif word not in ("-c", "-MD", "-MMD", "-MP", entry["file"]):
            flags.append(word)
    return flags


class Tidy:
    def __init__(self, build, arguments, cache):
        self.begun = time.time()  # before the first file is read
        self.build, self.arguments, self.cache = build, arguments, cache
        self.checkout = Checkout(build)
        self.digests = Digests(self.checkout)
        database = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
        self.entries = {entry["file"]: entry for entry in database}
        tool = shutil.which("clang-tidy")
        version = subprocess.run([tool, "--version"], capture_output=True, check=True).stdout
        self.common = hashlib.sha256(b"\0".join([
            FORMAT.encode(), version, str(os.stat(os.path.realpath(tool)).st_size).encode(),
            (ROOT / ".clang-tidy").read_bytes(),
            self.checkout.portable("\0".join(arguments)).encode()])).hexdigest()

    def results_file(self, source):
        """Where the clean results of one source with its flags are."""
        entry = self.entries.get(str(source))
        if not self.cache or not entry:
            return None
        # The folders of system headers may lie elsewhere; the headers themselves are compared.
        words, flags = iter([words_of(entry)[0], *flags_of(entry)]), []
        for word in words:
            if word == "-isystem":
                next(words, None)
            else:
                flags.append(word)
        text = self.checkout.portable(pathlib.Path(source).read_text(encoding="utf-8"))
        key = hashlib.sha256("\0".join([self.common, self.checkout.portable("\0".join(flags)),
                                        text]).encode()).hexdigest()
        return self.cache / key[:2] / f"{key}.json"

    def read_results(self, file):
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []

    def known_clean(self, file):
        if not file:
            return False
        for result in self.read_results(file):
            if all(self.digests.of(name) == digest for name, digest in result.items()):
                os.utime(file)
                return True
        return False

    def inputs(self, source):
        """All files that a source includes, by their digests; None where that cannot be told."""
        compiler = shutil.which("clang++")
        if not compiler:
            return None
        entry = self.entries[str(source)]
        done = subprocess.run([compiler, "-M", "-MT", "unit", "-w", *flags_of(entry), str(source)],
                              cwd=entry["directory"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None
        names = {os.path.normpath(os.path.join(entry["directory"], name)) for name in
                 done.stdout.partition(":")[2].replace("\\\n", " ").split()}
        others = {name for name in names if os.path.realpath(name) != os.path.realpath(source)}
        if others == names:
            return None  # what was printed was something else
        return {name: self.digests.of(name) for name in map(self.checkout.portable, others)}

    def keep(self, file, source):
        inputs = self.inputs(source)
        if inputs is None:
            return
        for name in [str(source), *map(self.checkout.local, inputs)]:
            # Changed since this run began: who knows whether clang-tidy has read what has been hashed.
            if os.stat(name).st_ctime >= self.begun - CLOCK_TICK_SECONDS:
                return
        results = [inputs] + [old for old in self.read_results(file) if old != inputs]
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False,
                                         encoding="utf-8") as new:
            json.dump(results[:MAX_RESULTS], new)
        os.replace(new.name, file)

    def check(self, source):
        """(whether it is clean, seconds that clang-tidy took, its output); no seconds if known."""
        file = self.results_file(source)
        if self.known_clean(file):
            return True, None, ""
        since = time.monotonic()
        done = subprocess.run(["clang-tidy", "--quiet", "-p", self.build, *self.arguments, source],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        took = time.monotonic() - since
        if done.returncode == 0 and file:
            self.keep(file, source)
        return done.returncode == 0, took, done.stdout.decode(errors="replace")


def drop_old_results(cache):
    for file in cache.glob("*/*.json"):
        try:
            if file.stat().st_mtime < time.time() - MAX_AGE_SECONDS:
                file.unlink()
        except OSError:
            pass  # another run has


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 2:
        sys.exit(__doc__)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    cache = cache_folder()
    tidy = Tidy(pathlib.Path(arguments[0]).resolve(), arguments[split + 1:], cache)
    sources = [os.path.abspath(source) for source in arguments[1:split]]
    is_clean, times = True, []
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for source, (clean, took, output) in zip(sources, pool.map(tidy.check, sources)):
            if took is not None:
                times.append((took, os.path.basename(source)))
            if not clean:
                is_clean = False
                print(output, end="", flush=True)
    print(f"clang-tidy: {len(sources) - len(times)} of {len(sources)} known to be clean, "
          f"{len(times)} read in {sum(took for took, _ in times):.0f} s" +
          "".join(f"; {name} {took:.0f} s" for took, name in
                  sorted(times, reverse=True)[:SLOWEST_SHOWN]))
    if cache and cache.is_dir():
        drop_old_results(cache)
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main()
