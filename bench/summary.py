"""The summary that every script in bench/ writes below bench/results/, and the rules for one.

    summary = Summary("loopback", options.json, programs=[options.ferry], rounds=options.rounds)
    summary.add("write 64 MiB", gbps=Samples(rates, "GB/s"), lanes=2)
    summary.write()

A summary names the commit that the measured programs were built from. They carry it, since the machine
that measures may have no git history. Summary() refuses before anything is measured: programs without a
commit or of two commits, a changed tree, another build type than a release's, a sanitizer, a commit that
is not in the history of main, and sources that are not those of the commit. write() refuses where the
programs have changed meanwhile. Without a file to write nothing is checked.
"""
import argparse
import collections
import datetime
import json
import mmap
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORM = 1
# As cmake/note_commit.cmake writes it.
BUILT_FROM = re.compile(rb"FERRY_BUILT_FROM commit=([0-9a-f]*) clean=(yes|no) type=([^ ;]*) sanitizer=([^ ;]*);")
BUILD_TYPE = "RelWithDebInfo"  # of the preset "release"
# Paths that may have uncommitted changes when a result is written: they are not measured.
NOT_MEASURED = (":(exclude)bench/results", ":(exclude)docs", ":(exclude)README.md")
DIGITS = 6  # of what is kept


Build = collections.namedtuple("Build", "commit clean type sanitizer")


class Refused(Exception):
    """No result may be written; the sentence says why."""


class Failed(Refused):
    """A program that the measurement needs did not do its part; the sentence says which."""


def command(*words):
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)} failed with {done.returncode}: {done.stdout.strip()[-300:]}")


def parser_of(doc, rounds=None):
    """A script's parser of options, with --json, and --rounds where it has a default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json")
    return parser


def run_main(main):
    """Runs a script; a refusal ends it."""
    try:
        sys.exit(main())
    except Refused as refused:
        sys.exit(f"bench/{pathlib.Path(sys.argv[0]).name}: {refused}")


class Samples:
    """What was measured several times, in one unit."""

    def __init__(self, values, unit):
        self.values = [rounded(float(value)) for value in values]
        self.unit = unit
        if not self.values:
            raise ValueError("a summary needs at least one sample")

    def to_json(self):
        return {"unit": self.unit, "n": len(self.values), "median": rounded(statistics.median(self.values)),
                "min": min(self.values), "max": max(self.values), "samples": self.values}


def rounded(value):
    return float(f"{value:.{DIGITS}g}")


def git(*words, root=ROOT):
    """(whether it worked, what it said)."""
    try:
        done = subprocess.run(["git", *words], cwd=root, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        return False, ""
    return done.returncode == 0, done.stdout.strip()


def has_history(root=ROOT):
    """Whether commits can be looked up: the machine that measures may have a copy without them."""
    return (pathlib.Path(root) / ".git").exists() and git("rev-parse", "HEAD", root=root)[0]


def built_from(program):
    """The Build of a program or library of ours."""
    path = pathlib.Path(program)
    if not path.is_file():
        raise Refused(f"{program} is not there; build it first")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = BUILT_FROM.search(text)
        words = found.groups() if found else None
    if words is None:
        raise Refused(f"{program} does not say which commit it was built from; build it anew from a checkout")
    commit, clean, build_type, sanitizer = (word.decode() for word in words)
    return Build(commit, clean == "yes", build_type, sanitizer)


def main_branch(root=ROOT):
    """main, in a clone perhaps only the remote's; otherwise what is checked out."""
    for name in ("main", "origin/main"):
        if git("rev-parse", "--verify", "--quiet", name + "^{commit}", root=root)[0]:
            return name
    return "HEAD"


def commit_carried(programs):
    """The commit that all of them carry. Raises Refused where they are not what may be measured."""
    commits = {}
    for program in programs:
        commit, clean, build_type, sanitizer = built_from(program)
        if build_type != BUILD_TYPE or sanitizer:
            said = f"of type {build_type or 'unknown'}" + (f" with the sanitizer {sanitizer}" if sanitizer else "")
            raise Refused(f"{program} is a build {said}; measure one of {BUILD_TYPE} (cmake --preset release)")
        if not commit:
            raise Refused(f"{program} was built outside of a git checkout and names no commit; build it from one")
        if not clean:
            raise Refused(f"{program} was built from {commit[:12]} with changes on top; commit them and build anew")
        commits.setdefault(commit, program)
    if not commits:
        raise Refused("no program says which commit was measured; name one")
    if len(commits) > 1:
        said = ", ".join(f"{program} of {commit[:12]}" for commit, program in commits.items())
        raise Refused(f"the programs are of different commits ({said}); build them together")
    return next(iter(commits))


def commit_of(programs, root=ROOT):
    """The commit that was measured. Raises Refused where a result would not be one of it."""
    commit = commit_carried(programs)
    check_history(commit, programs[0], root)
    return commit


def check_history(commit, program, root):
    if not has_history(root):
        return
    if not git("cat-file", "-e", commit + "^{commit}", root=root)[0]:
        raise Refused(f"{program} was built from {commit[:12]}, which is not in this history; build it from here")
    branch = main_branch(root)
    if not git("merge-base", "--is-ancestor", commit, branch, root=root)[0]:
        raise Refused(f"{program} was built from {commit[:12]}, which is not in the history of {branch}; "
                      "measure a commit of it")
    same = git("diff", "--quiet", commit, "--", ".", *NOT_MEASURED, root=root)[0]
    status = git("status", "--porcelain", "--", ".", *NOT_MEASURED, root=root)[1]
    if not same or status:
        raise Refused(f"the files here are not those of {commit[:12]}, which {program} was built from; "
                      "commit what has changed and build anew")


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        model = re.search(r"model name\s*:\s*(.*)", info.read())
    return model.group(1).strip() if model else platform.machine()


def machine():
    """The machine in a line: cores, processor, kernel, GPUs."""
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} core{'' if cores == 1 else 's'}, {processor()}, Linux {platform.release()}"
    gpus = graphics_processors()
    return f"{gpus}, {text}" if gpus else text


def graphics_processors():
    """As "2 x NVIDIA H200, driver 580.1"; "" without any."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if "," in line]
    if done.returncode != 0 or not lines:
        return ""
    name, driver = (word.strip() for word in lines[0].split(",", 1))
    return f"{len(lines)} x {name}, driver {driver}"


def plain_environment():
    """This shell's variables without settings of NCCL and of ours, which a comparison sets itself. Some machines
    need NVLink multicast to stay off."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("NCCL_", "TORCH_NCCL_", "FERRY_")) or name == "NCCL_NVLS_ENABLE"}


class Summary:
    """What one benchmark measured. `path` is the file to write, or None: then nothing is checked or written."""

    def __init__(self, benchmark, path, programs, rounds, root=ROOT):
        self.path, self.programs = path, list(programs)
        self.commit = commit_of(programs, root) if path else ""
        self.result = {
            "form": FORM,
            "benchmark": benchmark,
            "commit": self.commit,
            "clean": True,
            "machine": machine(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": command_line(root),
            "rounds": rounds,
            "n": 0,
            "load_before": round(os.getloadavg()[0], 2),
            "rows": {},
        }

    def add(self, name, **values):
        """One row: Samples are what was measured; numbers, texts and truths are what it was measured with."""
        if name in self.result["rows"]:
            raise ValueError(f"there are two rows called {name}")
        row = {key: value.to_json() if hasattr(value, "to_json") else value for key, value in values.items()}
        self.result["rows"][name] = row
        return row

    def write(self):
        if not self.path:
            return
        now = commit_carried(self.programs)
        if now != self.commit:
            raise Refused(f"{self.programs[0]} was built from {self.commit[:12]} when measuring began, and is of "
                          f"{now[:12]} now; measure again")
        self.result["n"] = most_samples(self.result["rows"])
        if faults := problems(self.result):
            raise Refused(f"what was measured is not whole: {'; '.join(faults[:5])}")
        self.result["load_after"] = round(os.getloadavg()[0], 2)
        text = dump(self.result)
        # In one step: whoever reads it finds it whole.
        part = f"{self.path}.part"
        with open(part, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(part, self.path)


def command_line(root=ROOT):
    script = pathlib.Path(sys.argv[0]).resolve()
    name = os.path.relpath(script, root) if script.is_relative_to(root) else script.name
    return shlex.join([str(name), *sys.argv[1:]])


def dump(result):
    """JSON with a line for each value of a row, which a diff can be read by."""
    head = {key: value for key, value in result.items() if key != "rows"}
    lines = [json.dumps(key) + ": " + json.dumps(value, ensure_ascii=False) for key, value in head.items()]
    rows = []
    for name, row in result["rows"].items():
        values = [f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in row.items()]
        rows.append(f"  {json.dumps(name, ensure_ascii=False)}: {{\n" + ",\n".join(values) + "\n  }")
    lines.append('"rows": {\n' + ",\n".join(rows) + "\n }")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def is_samples(value):
    return isinstance(value, dict) and "median" in value


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def most_samples(rows):
    """The largest n of any value; 1 where all were counted once."""
    return max((value["n"] for row in rows.values() for value in row.values() if is_samples(value)), default=1)


# A field whose name ends like this was measured, in whatever form it is written.
MEASURED = re.compile(r"(^|_)(gbps|tflops|us|ms|ns|percent)(_p\d+)?$")


def problems(result, earlier=False):
    """What a result lacks, in sentences; none where it is whole. An earlier one has a note instead of programs
    that carry their commit."""
    wrong = []
    needed = ("form", "benchmark", "commit", "note" if earlier else "clean", "machine", "date", "command", "n", "rows")
    wrong += [f"it has no {key}" for key in needed if key not in result]
    if wrong:
        return wrong
    if result["form"] != FORM:
        wrong.append(f"its form is {result['form']}, not {FORM}")
    if not re.fullmatch(r"[0-9a-f]{7,40}", str(result["commit"])):
        wrong.append(f"its commit is {result['commit']!r}, not the name of a commit")
    if not earlier and result["clean"] is not True:
        wrong.append("its tree was not clean")
    if not result["rows"]:
        wrong.append("it has no rows")
    for name, row in result["rows"].items():
        wrong += [f"{name}: it has no values"] if not row else []
        for key, value in row.items():
            wrong += [f"{name}, {key}: {fault}" for fault in value_problems(key, value)]
    if not wrong and not earlier and result["n"] != most_samples(result["rows"]):
        wrong.append(f"its n is {result['n']}, and the most samples of a row are {most_samples(result['rows'])}")
    return wrong


def value_problems(key, value):
    if is_samples(value):
        return sample_problems(value)
    if isinstance(value, float) or MEASURED.search(key):
        return [f"{value!r} was measured, but has no samples"]
    if not isinstance(value, (int, str)):
        return [f"{value!r} is neither samples nor a number, a text or a truth that it was measured with"]
    return []


def sample_problems(value):
    if not isinstance(value.get("unit"), str):
        return ["it has no unit"]
    if "samples" not in value:
        return counted_problems(value)
    samples = value["samples"]
    if not isinstance(samples, list) or not samples or not all(map(is_number, samples)):
        return ["its samples are not a list of numbers"]
    if value.get("n") != len(samples):
        return [f"n is {value.get('n')}, and there are {len(samples)} samples"]
    expected = {"median": rounded(statistics.median(samples)), "min": min(samples), "max": max(samples)}
    return [f"{key} is {value.get(key)}, by the samples {right}" for key, right in expected.items()
            if not is_number(value.get(key)) or abs(value[key] - right) > 1e-4 * max(abs(right), 1e-9)]


def counted_problems(value):
    """Programs that take hundreds of samples count them, and say themselves how they are spread."""
    ordered = ("min", "p10", "median", "p90", "max")
    if not all(is_number(value.get(key)) for key in ("n", *ordered)) or value["n"] < 1:
        return ["it has neither samples nor n and a spread with p10 and p90"]
    spread = [value[key] for key in ordered]
    return [] if spread == sorted(spread) else [f"{', '.join(ordered)} are {spread}, which is not in order"]
