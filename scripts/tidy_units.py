#!/usr/bin/env python3
"""Writes a source for each folder that includes those of FILEs that are there and in its testing/,
for clang-tidy: nearly all of its time goes into the headers that they have in common.

usage: tidy_units.py BUILD_DIR FILE...

They are BUILD_DIR/tidy/*.cxx, beside a compile_commands.json with the flags of all targets of that
build together; prints their names.
"""
import json
import pathlib
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files that cannot share a unit with others: linux/tcp.h excludes netinet/tcp.h, each fuzzer has an
# entry point of the same name, as each toy and a benchmark have, and sources of fmt's and spdlog's
# exclude their headers.
ALONE = {"ferry/net/tcp/path_stats.cc", "ferry/net/plugin/tests/toy_plugin.cc",
         "bindings/nccl_net/bundled.cc", "bindings/nccl_net/tests/nccl_net_bench.cc"}
FLAGS_WITH_A_WORD = {"-I", "-D", "-U", "-isystem", "-include"}


def stands_alone(path):
    return str(path) in ALONE or path.parts[:2] == ("tests", "fuzz")


def flags_of(entry):
    words = iter(shlex.split(entry["command"])[1:])
    for word in words:
        if word in FLAGS_WITH_A_WORD:
            yield (word, next(words))
        elif word == "-o":
            next(words)
        elif word.startswith("-") and word != "-c":
            yield (word,)


def common_flags(build):
    """Those of every target, each once, in their order."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    sources = [entry for entry in entries if entry["file"].endswith((".cc", ".cxx"))
               and "_verify_interface_header_sets/" not in entry["file"]]
    flags = dict.fromkeys(flag for entry in sources for flag in flags_of(entry))
    return [word for flag in flags for word in flag]


def units_of(files):
    """Files by the name of their unit; first the unit that will take longest."""
    units = {}
    for path in map(pathlib.Path, files):
        name = path.with_suffix("") if stands_alone(path) else path.parent
        kind = "_test" if path.stem.endswith("_test") else ""
        units.setdefault("_".join(name.parts) + kind, []).append(path)
    return sorted(units.items(), key=lambda unit: -len(unit[1]))


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    out = build / "tidy"
    out.mkdir(exist_ok=True)
    flags = common_flags(build)
    database = []
    for name, files in units_of(sys.argv[2:]):
        unit = out / f"{name}.cxx"
        unit.write_text("".join(f'#include "{ROOT / file}"\n' for file in files), encoding="utf-8")
        database.append({"directory": str(build), "file": str(unit),
                         "arguments": ["c++", *flags, "-c", str(unit)]})
        print(unit)
    (out / "compile_commands.json").write_text(json.dumps(database, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
