#!/usr/bin/env python3
"""Sums up test runs: what failed, what was skipped and why, and how many passed.

usage: summarize_tests.py (NAME STATUS JUNIT_XML)...

STATUS is passed, skipped, or what went wrong. A test of ctest that ran many (run_gtests.py) counts as
those, which are in groups/ beside JUNIT_XML. The last line is "N passed, N failed, N skipped"; exits 1
if anything failed.
"""
import os
import re
import sys
import xml.etree.ElementTree

# How ctest marks a test that declined to run. Every other test that did not run is a failure.
DECLINED = re.compile(r"SKIP_|Disabled")
OUTPUT_LINES = 25  # of a failed test
NOISE = re.compile(r"\[[-= ]|Note: |Running main|\d+ warnings? generated")
SLOWEST_SHOWN = 20
GTEST_REASON = re.compile(r": Skipped\n(.*?)\n+\[  SKIPPED \]", re.DOTALL)


def skip_reason(case, mark):
    output = case.findtext("system-out") or ""
    match = GTEST_REASON.search(output)
    if match and match.group(1).strip():
        return " ".join(match.group(1).split())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else mark or "no reason given"


def shortened(names):
    """Names of tests; of many with the same beginning, that and their number."""
    kinds = {}
    for name in names:
        kinds.setdefault(name.split(".")[0], []).append(name)
    return ", ".join(group[0] if len(group) == 1 else f"{len(group)} of {kind}"
                     for kind, group in kinds.items())


def output_end(case, text):
    output = case.findtext("system-out") or text or ""
    lines = [line.rstrip() for line in output.splitlines()]
    return [line[:400] for line in lines if line and not NOISE.match(line)][-OUTPUT_LINES:]


class Run:
    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped, self.seconds = name, 0, [], [], 0.0
        self.notes, self.times = [], []

    def add_all(self, path):
        """The tests of a file, and of the groups that it names."""
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            group = os.path.join(os.path.dirname(path), "groups", f"{case.get('name')}.xml")
            if case.get("status") not in ("run", "fail") or not os.path.exists(group):
                self.add(case)
                continue
            failed = len(self.failed)
            for one in xml.etree.ElementTree.parse(group).getroot().iter("testcase"):
                self.add(one)
            if case.get("status") == "fail" and len(self.failed) == failed:
                self.add(case)

    def add(self, case):
        name = case.get("name")
        if case.get("classname") and not case.get("status"):  # pytest's
            name = f"{case.get('classname').rpartition('.')[2]}.{name}"
        self.seconds += float(case.get("time") or 0)
        self.times.append((float(case.get("time") or 0), name))
        note = case.find("properties/property[@name='note']")
        if note is not None:
            self.notes.append((name, note.get("value")))
        skipped = case.find("skipped")
        failure = next((case.find(kind) for kind in ("failure", "error")
                        if case.find(kind) is not None), None)
        mark = skipped.get("message") or "" if skipped is not None else ""
        if skipped is not None and skipped.get("type") == "pytest.skip":
            self.skipped.append((name, mark))
        elif skipped is not None and DECLINED.match(mark):
            self.skipped.append((name, skip_reason(case, mark)))
        elif failure is None and case.get("status", "run") == "run":
            self.passed += 1
        else:
            why = (failure.get("message") if failure is not None else mark) or case.get("status")
            text = failure.text if failure is not None else None
            self.failed.append((name, why, output_end(case, text)))

    def report(self):
        print(f"{self.name}: {self.passed} passed, {len(self.failed)} failed, "
              f"{len(self.skipped)} skipped, {self.seconds:.0f} s of tests")
        for name, note in self.notes:
            print(f"  {name}: {note}")
        reasons = {}
        for name, why in self.skipped:
            reasons.setdefault(why, []).append(name)
        for why, names in reasons.items():
            print(f"  skipped {shortened(names)}: {why}")
        for name, why, output in self.failed:
            print(f"  FAILED  {name}: {why}")
            for line in output:
                print(f"    | {line}")


def read_run(name, status, path):
    run = Run(name)
    if os.path.exists(path):
        try:
            run.add_all(path)
        except xml.etree.ElementTree.ParseError as broken:
            run.failed.append((name, f"{path} cannot be read: {broken}", []))
    if status == "skipped" and run.skipped:
        return run
    if not run.failed and (status != "passed" or not run.passed):
        run.failed.append((name, status if status != "passed" else "no test ran", []))
    return run


def print_times(times, runs):
    """Where the time went; times: {step: (seconds, seconds of CPU)}."""
    print("=== time ===")
    for name, (wall, cpu) in times.items():
        print(f"{name:18} {wall:6.0f} s" + (f", {cpu:6.0f} s of CPU" if cpu is not None else ", steps overlap"))
    print("the slowest tests:")
    tests = [(seconds, run.name, name) for run in runs for seconds, name in run.times]
    for seconds, run_name, name in sorted(tests, reverse=True)[:SLOWEST_SHOWN]:
        print(f"  {seconds:6.1f} s  {run_name}: {name}")


def summarize(results, times=None):
    """Prints all of it; results: [(name, status, path of a file of results)]. 1 if anything failed."""
    runs = [read_run(*result) for result in results]
    if times:
        print_times(times, runs)
    print("=== summary ===")
    for run in runs:
        run.report()
    failed = sum(len(run.failed) for run in runs)
    print(f"{sum(run.passed for run in runs)} passed, {failed} failed, "
          f"{sum(len(run.skipped) for run in runs)} skipped")
    return 1 if failed else 0


def main():
    arguments = sys.argv[1:]
    if not arguments or len(arguments) % 3:
        sys.exit(__doc__)
    sys.exit(summarize([arguments[i:i + 3] for i in range(0, len(arguments), 3)]))


if __name__ == "__main__":
    main()
