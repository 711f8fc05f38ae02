#!/usr/bin/env python3
"""Runs a part of a GoogleTest program's tests in one process, because a process for each costs more
than most tests do, and writes the outcome of each as ctest would.

usage: run_gtests.py [--filter FILTER] [--part I/N] [--timeout SECONDS] [--may-be-empty] --name NAME --junit FILE PROGRAM

Part I of N (from 1) has each Nth test. When a test ends its process, or takes longer than the
timeout, it has failed, and the rest go on in another process. What fails otherwise at the end of a
process (leaks, say) is the failure of NAME. Prints the output of what failed; exits 1 if anything
did, or if the filter leaves no test at all, unless that may be so.
"""
import argparse
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

BEGIN = re.compile(r"^\[ RUN      \] (\S+)$")
# Not at the start only: a test may print less than a line before.
END = re.compile(r"\[( {7}OK|  FAILED | {2}SKIPPED) \] (\S+?),?( where .*)? \(\d+ ms\)$")
REPORT = re.compile(r"WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|: runtime error: ")
DRAIN_SECONDS = 5  # for what a process has written before its end, where children hold its output
# As ctest writes it, which keeps XML readable.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


class Case:
    def __init__(self, name):
        self.name, self.state, self.why, self.seconds, self.lines = name, "notrun", "", 0.0, []

    def is_reported(self):
        """Whether a sanitizer said something while it ran."""
        return any(REPORT.search(line) for line in self.lines)


def list_tests(program, test_filter):
    done = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={test_filter}"],
                          stdout=subprocess.PIPE, text=True, check=True)
    suite, names = "", []
    for line in done.stdout.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return [name for name in names if "DISABLED_" not in name]


class Process:
    """One run of a program, whose lines are read with a limit in time for each test."""

    def __init__(self, program, names, timeout):
        self.timeout = timeout
        with tempfile.NamedTemporaryFile("w", suffix=".flags", delete=False) as self.flags:
            self.flags.write(f"--gtest_filter={':'.join(names)}\n--gtest_color=no\n")
        # Not in a session of its own, as in test_steps.Steps.
        self.process = subprocess.Popen([program, f"--gtest_flagfile={self.flags.name}"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, preexec_fn=os.setpgrp)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.deadline = time.monotonic() + timeout
        self.is_late = False

    def begin_test(self):
        self.deadline = time.monotonic() + self.timeout

    def pieces(self):
        """What is written, until the process has ended or takes too long."""
        output, ended = self.process.stdout, None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if selector.select(0.2 if ended is None else 0.05):
                    piece = output.read()
                    if piece == b"":
                        return
                    yield piece or b""
                elif ended is not None:
                    return
                if ended is None and self.process.poll() is not None:
                    ended = time.monotonic()
                if ended is not None and time.monotonic() > ended + DRAIN_SECONDS:
                    return
                if ended is None and time.monotonic() > self.deadline:
                    self.is_late = True
                    return

    def lines(self):
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def end(self):
        """Why it did not end well; empty if it did."""
        try:
            code = self.process.wait(0 if self.is_late else DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if code is None:
            return f"Timeout: no end within {self.timeout:g} s"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"exited with {code}" if code else ""


    def abandon(self):
        """Ends what is still there, also where the run is interrupted."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        pathlib.Path(self.flags.name).unlink(missing_ok=True)


def run_some(program, names, timeout):
    """Runs tests until one ends the process. Returns the cases that began, and why the process
    failed other than by them, with what it wrote at its end."""
    process = Process(program, names, timeout)
    try:
        return read_run(process)
    finally:
        process.abandon()


def read_run(process):
    """The result of run_some()."""
    cases, current, tail = [], None, []
    begun = time.monotonic()
    for line in process.lines():
        start, end = BEGIN.match(line), END.search(line)
        if start:
            current, begun = Case(start[1]), time.monotonic()
            cases.append(current)
            process.begin_test()
        (current.lines if current else tail).append(line)
        if current and end and end[2] == current.name:
            current.seconds = time.monotonic() - begun
            current.state = {"OK": "run", "FAILED": "fail", "SKIPPED": "skip"}[end[1].strip()]
            current.why = "Failed" if current.state == "fail" else ""
            current, tail = None, []
            process.begin_test()
    why = process.end()
    if current:
        current.seconds = time.monotonic() - begun
        current.state, current.why = "fail", why or "the process ended before the test"
        return cases, "", []
    if any(case.state == "fail" for case in cases) and why == "exited with 1":
        why = ""
    return cases, why, tail


def run_all(name, program, names, timeout):
    """The cases of all tests, and one for each process that failed at its end."""
    done, left = [], names
    while left:
        cases, why, tail = run_some(program, left, timeout)
        done += cases
        begun = {case.name for case in cases}
        left = [test for test in left if test not in begun]
        if why or (left and not cases):
            end = Case(name)
            end.state, end.why = "fail", (f"{program.name} {why or 'ran none of its tests'} after " +
                                          (cases[-1].name if cases else "its start"))
            # What a sanitizer reported while a test ran fails no test, but the process at its end.
            end.lines = [line for case in cases if case.is_reported() for line in case.lines] + tail
            done.append(end)
        if not cases:
            break
    return done + [Case(test) for test in left]


def write_junit(path, prefix, cases):
    suite = ElementTree.Element("testsuite", name=prefix)
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", name=case.name,
                                         time=f"{case.seconds:.3f}",
                                         status="notrun" if case.state == "skip" else case.state)
        if case.state == "skip":
            ElementTree.SubElement(element, "skipped", message="SKIP_REGULAR_EXPRESSION_MATCHED")
        elif case.state == "fail":
            ElementTree.SubElement(element, "failure", message=case.why)
        if case.state != "run":
            ElementTree.SubElement(element, "system-out").text = UNPRINTABLE.sub(
                "?", "\n".join(case.lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].splitlines()[0])
    parser.add_argument("--filter", default="*")
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--may-be-empty", action="store_true")
    parser.add_argument("--name", required=True)
    parser.add_argument("--junit", type=pathlib.Path, required=True)
    parser.add_argument("program", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.junit.unlink(missing_ok=True)
    part, parts = map(int, arguments.part.split("/"))
    program = arguments.program.resolve()
    names = list_tests(program, arguments.filter)
    if names or arguments.may_be_empty:
        cases = run_all(arguments.name, program, names[part - 1::parts], arguments.timeout)
    else:
        cases = [Case(arguments.name)]
        cases[0].why = f"{program.name} has no test that {arguments.filter} names"
    prefix = arguments.name.split(".")[0]
    for case in cases:
        if case.name != arguments.name:
            case.name = f"{prefix}.{case.name}"
    write_junit(arguments.junit, arguments.name, cases)
    bad = [case for case in cases if case.state not in ("run", "skip")]
    for case in bad:
        print(f"FAILED {case.name}: {case.why or 'did not run'}")
        print("".join(f"    {line}\n" for line in case.lines), end="")
    states = [case.state for case in cases]
    print(f"{arguments.name}: {states.count('run')} passed, {len(bad)} failed, "
          f"{states.count('skip')} skipped, {sum(case.seconds for case in cases):.1f} s")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
