#!/usr/bin/env python3
"""Sums up test runs: what failed, what was skipped and why, and how many passed.

usage: summarize_tests.py (NAME STATUS JUNIT_XML)...     (STATUS: passed, or what went wrong)

The last line is "N passed, N failed, N skipped"; exits 1 if anything failed.
"""
import os
import re
import sys
import xml.etree.ElementTree

# How ctest marks a test that declined to run. Every other test that did not run is a failure.
DECLINED = re.compile(r"SKIP_|Disabled")
GTEST_REASON = re.compile(r": Skipped\n(.*?)\n+\[  SKIPPED \]", re.DOTALL)


def skip_reason(case, mark):
    output = case.findtext("system-out") or ""
    match = GTEST_REASON.search(output)
    if match and match.group(1).strip():
        return " ".join(match.group(1).split())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else mark or "no reason given"


class Run:
    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped, self.seconds = name, 0, [], [], 0.0

    def add(self, case):
        name = case.get("name")
        self.seconds += float(case.get("time") or 0)
        skipped = case.find("skipped")
        failure = case.find("failure")
        mark = skipped.get("message") or "" if skipped is not None else ""
        if skipped is not None and DECLINED.match(mark):
            self.skipped.append((name, skip_reason(case, mark)))
        elif failure is None and case.get("status") == "run":
            self.passed += 1
        else:
            why = (failure.get("message") if failure is not None else mark) or case.get("status")
            self.failed.append((name, why))

    def report(self):
        print(f"{self.name}: {self.passed} passed, {len(self.failed)} failed, "
              f"{len(self.skipped)} skipped, {self.seconds:.0f} s of tests")
        for name, why in self.failed:
            print(f"  FAILED  {name}: {why}")
        for name, why in self.skipped:
            print(f"  skipped {name}: {why}")


def read_run(name, status, path):
    run = Run(name)
    if os.path.exists(path):
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            run.add(case)
    if not run.failed and (status != "passed" or not run.passed):
        run.failed.append((name, status if status != "passed" else "no test ran"))
    return run


def main():
    arguments = sys.argv[1:]
    if not arguments or len(arguments) % 3:
        sys.exit(__doc__)
    runs = [read_run(*arguments[i:i + 3]) for i in range(0, len(arguments), 3)]
    print("=== summary ===")
    for run in runs:
        run.report()
    failed = sum(len(run.failed) for run in runs)
    print(f"{sum(run.passed for run in runs)} passed, {failed} failed, "
          f"{sum(len(run.skipped) for run in runs)} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
