#!/usr/bin/env python3
"""Runs the steps of scripts/test: builds one after another in the background, at the lowest priority,
and beside them the tests of what has been built.

usage: test_steps.py [--plan] [--only WHAT]

Each step's output is in build/log/STEP.log. build/times.json keeps how long the steps of the last whole
run took. Ends with a table of times, the slowest tests, how to rerun what failed, and a summary; exits
1 if anything failed, and 130 when interrupted, after which nothing that it started runs on.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import summarize_tests

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "log"
TIMES = ROOT / "build" / "times.json"
PRESETS = ("release", "asan", "tsan")
SKIPPED = 77
MIN_FREE_BYTES = 12 << 30  # three builds, two virtual environments and their packages
TERMINATION_SECONDS = 5
DRAIN_SECONDS = 5  # for what a step has written before its end
PR_SET_CHILD_SUBREAPER = 36
CTEST_LINE = re.compile(r"\s*(\d+)/(\d+) Test +#\d+: (\S+) \.*\s*(\*{3}\S+|Passed)")
NINJA_LINE = re.compile(r"\[(\d+)/(\d+)\]")
PYTEST_LINE = re.compile(r"\[ *(\d+)%\]")
# Where no run has been here.
GUESS = "30 to 60 minutes on two cores from nothing, less where the compiler's cache is full"


class Progress:
    """What runs now, on one line of a terminal; elsewhere the beginning and the end of each step."""

    def __init__(self):
        self.lock = threading.Lock()
        self.states, self.failed, self.begun = {}, [], time.monotonic()
        self.on_terminal = sys.stdout.isatty()

    def say(self, text):
        with self.lock:
            if self.on_terminal:
                print("\r\033[K", end="")
            print(text, flush=True)
        self.draw()

    def set(self, step, state):
        with self.lock:
            if state is None:
                self.states.pop(step, None)
            else:
                self.states[step] = state
        self.draw()

    def fail(self, test):
        self.failed.append(test)
        self.say(f"FAILED {test}")

    def draw(self):
        if not self.on_terminal:
            return
        with self.lock:
            minutes, seconds = divmod(int(time.monotonic() - self.begun), 60)
            parts = [f"{step} {state}" for step, state in self.states.items()]
            line = f"{minutes}:{seconds:02}  {len(self.failed)} failed  {' | '.join(parts)}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", flush=True)


class Steps:
    """Starts commands, each in a process group of its own, and ends what they leave. Not in a session of
    its own: Linux shares CPUs equally between sessions, whatever the priorities in them."""

    def __init__(self, progress):
        self.progress, self.times, self.running, self.lock = progress, {}, set(), threading.Lock()
        self.is_ending = False

    def run(self, name, command, background=False, quiet=False):
        """The exit status; lines go to build/log and, where they tell progress, to the terminal."""
        begun = time.monotonic()
        priority = ["nice", "-n", "19"] if background else []
        with self.lock:
            if self.is_ending:
                return 1
            process = subprocess.Popen([*priority, *map(str, command)], cwd=ROOT, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", preexec_fn=os.setpgrp)
            self.running.add(process.pid)
        self.progress.set(name, "")
        reader = threading.Thread(target=self._read, args=(name, process.stdout), daemon=True)
        reader.start()
        _, status, usage = os.wait4(process.pid, 0)
        reader.join(DRAIN_SECONDS)  # a process left behind may hold the pipe
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen waits no more
        with self.lock:
            self.running.discard(process.pid)
        wall, cpu = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
        before = self.times.get(name, (0.0, 0.0))
        self.times[name] = (before[0] + wall, before[1] + cpu)
        self.progress.set(name, None)
        if not quiet and not self.is_ending:
            outcome = {0: "done", SKIPPED: "skipped"}.get(process.returncode, f"exited with {process.returncode}")
            self.progress.say(f"{name}: {outcome} after {wall:.0f} s, {cpu:.0f} s of CPU")
        return process.returncode

    def _read(self, name, lines):
        for line in lines:  # always to the end: a step whose pipe is full would wait for good
            try:
                with open(LOGS / f"{name}.log", "a", encoding="utf-8") as log:
                    log.write(line)
                self._tell(name, line)
            except OSError:  # a full disk, or nobody reads what is printed
                pass

    def _tell(self, name, line):
        for pattern, form in ((CTEST_LINE, "{}/{}"), (NINJA_LINE, "{}/{}"), (PYTEST_LINE, "{}%")):
            match = pattern.search(line)
            if match:
                self.progress.set(name, form.format(*match.groups()))
                if pattern is CTEST_LINE and match[4] not in ("Passed", "***Skipped"):
                    self.progress.fail(f"{name}: {match[3]}")
                return

    def end(self):
        """Ends what was started, and what that started in sessions of its own."""
        with self.lock:
            self.is_ending = True
            groups = list(self.running)
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for pid in groups:
                try:
                    os.killpg(pid, kind)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + TERMINATION_SECONDS
            while children() and time.monotonic() < deadline:
                time.sleep(0.05)  # processes that are no children yet give no event when they end
        while children():
            for pid in children():
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def children():
    """Children of this process that are not zombies of threads that still wait for them."""
    found = []
    for entry in pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for pid in map(int, entry.read_text().split()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                        found.append(pid)
    return found


class Builds(threading.Thread):
    """Configures and builds the presets in order; tells each outcome."""

    def __init__(self, steps, with_python):
        super().__init__(daemon=True)
        self.steps, self.with_python = steps, with_python
        self.configured = threading.Event()
        self.outcomes = {preset: queue.Queue() for preset in PRESETS}

    def run(self):
        for preset in PRESETS:
            failed = "configure"
            try:
                if self.steps.run(f"{preset}.configure", self._configure(preset), quiet=True) == 0:
                    self.configured.set()
                    # The release build is what everything waits for.
                    code = self.steps.run(f"{preset}.build",
                                          ["cmake", "--build", "--preset", preset, "-j", os.cpu_count()],
                                          background=preset != "release")
                    failed = "" if code == 0 else "build"
            finally:
                self.configured.set()
                self.outcomes[preset].put(failed)

    def _configure(self, preset):
        # A suite that a sanitizer runs is not compiled once more without; those for GPUs run in none.
        every = "ON" if preset == "release" and os.path.exists("/dev/nvidiactl") else "OFF"
        arguments = ["cmake", "--preset", preset, f"-DFERRY_ALL_TESTS={every}"]
        if preset == "release" and self.with_python:
            arguments += ["-DFERRY_PYTHON=ON", f"-DPython_EXECUTABLE={ROOT}/build/python/venv/bin/python"]
        return arguments


def environment():
    """What the compiler's cache and the tests need."""
    # One checkout's compilations serve another's: with paths relative to it, whatever it is called.
    os.environ.setdefault("CCACHE_BASEDIR", str(ROOT))
    os.environ["CCACHE_NOHASHDIR"] = "1"


def steady():
    """ThreadSanitizer of g++ 12 stops at start when the kernel randomizes more address bits than it knows."""
    try:
        bits = int(pathlib.Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    except OSError:
        bits = 28
    command = ["setarch", os.uname().machine, "-R"]
    if bits > 28 and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    return []


def ctest(steps, name, preset, *arguments):
    """Runs tests; (name, outcome, file of results) for the summary."""
    results = ROOT / "build" / preset / f"{name}.xml"
    results.unlink(missing_ok=True)
    # More at once than there are cores: tests wait for half of their time.
    code = steps.run(name, [*steady(), "ctest", "--preset", preset, "-j", os.cpu_count() + 2,
                            "--output-junit", results, *arguments])
    return name, "passed" if code == 0 else "ctest failed", results


def script(steps, name, results, *command):
    """Runs a script that exits with 77 where it must be skipped."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    code = steps.run(name, command)
    return name, {0: "passed", SKIPPED: "skipped"}.get(code, "failed"), results


def run_all(steps):
    with_python = steps.run("venv", ["scripts/test_python", "--set-up-build"], quiet=True) == 0
    builds = Builds(steps, with_python)
    builds.start()
    set_up = threading.Thread(daemon=True, target=lambda: (
        with_python and steps.run("venv", ["scripts/test_python", "--set-up"], background=True),
        steps.run("nixl_venv", ["scripts/test_nixl", "--set-up"], background=True)))
    set_up.start()
    builds.configured.wait()
    results = [ctest(steps, "lint", "release", "-L", "^lint$")]
    packages = concurrent.futures.ThreadPoolExecutor(1)
    tested = []
    for preset in PRESETS:
        failed = builds.outcomes[preset].get()
        if failed:
            results.append((preset, f"{failed} failed: build/log/{preset}.{failed}.log", ROOT / "nothing"))
        else:
            shutil.rmtree(ROOT / "build" / preset / "groups", ignore_errors=True)
            # Several -LE leave out what matches all of them, and the presets of sanitizers have one.
            results.append(ctest(steps, preset, preset, *(["-LE", "^lint$"] if preset == "release" else [])))
        if preset == "release":
            # Beside the tests with sanitizers, which wait for half of their time.
            set_up.join()
            tested = [packages.submit(test_package, steps, name) for name in ("nixl", "python")]
    return results + [outcome.result() for outcome in tested]


def test_package(steps, name):
    file = ROOT / "build" / name / "pytest.xml"
    return script(steps, name, file, f"scripts/test_{name}", "--from", "build/release", "--junit", file)


# --- a part -----------------------------------------------------------------------------------------

def run_only(steps, what):
    """The tests of one room, label or name, after building what they need."""
    preset, _, what = what.rpartition(":")
    preset = preset or "release"
    if preset not in PRESETS:
        sys.exit(f"test: --only {preset}: is no build; they are {', '.join(PRESETS)}")
    with_python = (ROOT / "build/python/venv/bin/python").exists()
    if what == "python" and not with_python:
        with_python = steps.run("venv", ["scripts/test_python", "--set-up"]) == 0
    arguments = ["cmake", "--preset", preset, "-DFERRY_ALL_TESTS=ON"]
    if preset == "release" and with_python:
        arguments += ["-DFERRY_PYTHON=ON", f"-DPython_EXECUTABLE={ROOT}/build/python/venv/bin/python"]
    if steps.run(f"{preset}.configure", arguments, quiet=True):
        return [(preset, f"cannot be configured: build/log/{preset}.configure.log", ROOT / "nothing")]
    chosen, targets = selection(preset, what)
    build = ["cmake", "--build", "--preset", preset, "-j", os.cpu_count()]
    if what != "lint" and steps.run(f"{preset}.build", build + (["--target", *targets] if targets else [])):
        return [(preset, f"build failed: build/log/{preset}.build.log", ROOT / "nothing")]
    if what in ("python", "nixl"):
        return [test_package(steps, what)]
    return [ctest(steps, preset, preset, *chosen)]


def selection(preset, what):
    """(ctest's arguments, the targets to build: all where empty)."""
    labels = {"lint", "unit", "multi", "slow", "gpu", "headers", "memory", "threads"}
    if what in labels:
        return ["-L", f"^{what}$"], []
    if what in ("python", "nixl"):
        return [], ["ferry_python" if what == "python" else "ferry_nixl_plugin"]
    layer = "ferry_" + what.replace("/", "_")
    found = subprocess.run(["ninja", "-C", f"build/{preset}", "-t", "targets", "all"], cwd=ROOT,
                           capture_output=True, text=True, check=False).stdout
    if f"\n{layer}_test: " in found:
        return ["-R", rf"^{layer}\."], [f"{layer}_test"]
    name = {"nccl": "nccl_net", "tests": ""}.get(what, what)
    target = {"nccl_net": "nccl_net_test", "plugin": "plugin_test", "standin": "standin_test"}.get(name, name)
    if f"\n{target}: " in found:
        return ["-R", rf"^{name.removesuffix('_test')}(_test)?\."], [target]
    return ["-R", name], []


# --- what a person sees -----------------------------------------------------------------------------

def plan():
    """What will run, and how long it took last."""
    print("test: text checks and clang-tidy of what changed; then, each as soon as it is built, release: whole\n"
          "programs; NIXL and Python with their wheels; asan: suites about memory and untrusted input, and\n"
          "the corpora of the fuzz targets; tsan: suites about threads. Left to --long: docs/testing.md.")
    try:
        times = json.loads(TIMES.read_text(encoding="utf-8"))
        steps = ", ".join(f"{name} {seconds[0] / 60:.1f}" for name, seconds in times["steps"].items()
                          if seconds[0] >= 30)
        print(f"The last run here took {times['all'] / 60:.0f} minutes (steps overlap, in minutes: {steps}).")
    except (OSError, ValueError, KeyError):
        print(f"It has not run here before: {GUESS}.")
    sys.stdout.flush()


def refuse_full_disk():
    free = shutil.disk_usage(ROOT).free
    have = sum(1 for preset in PRESETS if (ROOT / "build" / preset / "build.ninja").exists())
    needed = MIN_FREE_BYTES * (3 - have) // 3 + (1 << 29)
    if free < needed:
        sys.exit(f"test: {ROOT} has {free / 1e9:.1f} GB free and a run needs about {needed / 1e9:.1f} GB: "
                 "make room and run it again")


def print_reruns(results):
    for name, outcome, _ in results:
        if outcome not in ("passed", "skipped"):
            logs = [LOGS / f"{name}{step}.log" for step in ("", ".build", ".configure")]
            log = next((log for log in logs if log.exists()), LOGS)
            print(f"  {name}: its output is {log.relative_to(ROOT)}")
    for test in dict.fromkeys(progress.failed):
        step, _, name = test.partition(": ")
        preset = step if step in PRESETS else "release"
        print(f"  to rerun: ctest --preset {preset} -R '^{re.escape(name)}$'")


progress = Progress()


def main():
    parser = argparse.ArgumentParser(usage="test [--plan] [--only WHAT] [--long]")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--only", metavar="WHAT")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    if not arguments.only:
        plan()
    if arguments.plan:
        return 0
    if not shutil.which("c++") and not shutil.which("g++"):
        sys.exit("test: there is no C++ compiler: install g++ (scripts/install_deps does where it may)")
    refuse_full_disk()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    environment()
    # What our children leave behind becomes ours, and is ended with them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    steps = Steps(progress)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        results = run_only(steps, arguments.only) if arguments.only else run_all(steps)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        steps.end()
        print("\ntest: interrupted; what it had started was ended, and a new run goes on from what is built")
        return 130
    finally:
        steps.end()
    whole = time.monotonic() - progress.begun
    code = summarize_tests.summarize([(name, outcome, str(file)) for name, outcome, file in results],
                                     {**steps.times, "all": (whole, None)})
    if code:
        print_reruns(results)
        if shutil.disk_usage(ROOT).free < 1 << 28:
            print(f"test: {ROOT} has no space left, which may be why")
    elif not arguments.only:
        TIMES.write_text(json.dumps({"all": whole, "steps": steps.times}), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
