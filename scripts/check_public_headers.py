#!/usr/bin/env python3
"""Checks the lists of public headers: cmake/public_headers.txt and cmake/public_device_headers.txt.

usage: check_public_headers.py [SOURCE_ROOT]     (default: this checkout)

Every listed header exists or is generated, includes no header of ours that is not listed, and is
listed once, in order; public_headers.txt has at most 40. Prints one line per violation and exits 1
if there is any.
"""
import pathlib
import re
import sys

MAX_HEADERS = 40
HOST = "cmake/public_headers.txt"
DEVICE = "cmake/public_device_headers.txt"
# In the build folder. What ferry/kernels.h includes, cmake/FerryKernelsHeader.cmake says.
GENERATED = {"ferry/core/version.h", "ferry/kernels.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"((?:ferry|plugins|python|tools)/[^"]+)"', re.MULTILINE)


def read_list(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def includes_of(root, header):
    file = root / header
    if header == "ferry/kernels.h":
        # The includes of all contracts together: an op includes what the others do.
        ops = [op for op in (root / "ferry/kernels").glob("*/*.h") if op.stem == op.parent.name]
        return sorted({name for op in ops for name in INCLUDE.findall(op.read_text("utf-8"))})
    return INCLUDE.findall(file.read_text(encoding="utf-8")) if file.is_file() else []


def check_list(root, name, allowed):
    headers = read_list(root / name)
    if headers != sorted(set(headers)):
        yield f"{name}: headers should be sorted, and each listed once"
    for header in headers:
        if header not in GENERATED and not (root / header).is_file():
            yield f"{name}: there is no {header}"
        for included in includes_of(root, header):
            if included not in allowed:
                yield f"{header}: is public and includes {included}, which is not"


def check(root):
    host = read_list(root / HOST)
    device = read_list(root / DEVICE)
    if len(host) > MAX_HEADERS:
        yield f"{HOST}: {len(host)} headers; the limit is {MAX_HEADERS}"
    yield from check_list(root, HOST, set(host))
    yield from check_list(root, DEVICE, set(host) | set(device))


def main():
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    violations = list(check(root))
    for violation in violations:
        print(violation)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
