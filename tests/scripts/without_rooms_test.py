#!/usr/bin/env python3
"""FERRY_TCPX=OFF and FERRY_KERNELS=OFF configure, and what stands for these rooms is what others call.

usage: without_rooms_test.py --compiler CXX --rooms ARCHIVE... --users ARCHIVE...

The archives are those of a build that has the rooms. scripts/test_long builds and tests the program
without them.
"""
import argparse
import json
import pathlib
import shlex
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OFF = ["-DFERRY_TCPX=OFF", "-DFERRY_KERNELS=OFF"]


def symbols(files, *options):
    """The names that nm prints for objects or archives."""
    listed = subprocess.run(["nm", "-P", *options, *files], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if " " in line}


class WithoutRooms(unittest.TestCase):
    arguments = None

    def configure(self, options):
        """The folder of a build, in which nothing is built yet."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        build = pathlib.Path(folder.name)
        done = subprocess.run(["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DFERRY_CUDA=OFF", *options,
                               f"-DCMAKE_CXX_COMPILER={self.arguments.compiler}",
                               "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return build

    def test_either_room_can_be_left_out(self):
        for option in OFF:
            self.configure([option, "-DFERRY_TESTS=OFF"])

    def test_what_stands_for_the_rooms_is_what_others_call(self):
        build = self.configure(OFF)
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
        outputs = []
        for command in commands:
            if not command["file"].endswith("_not_built.cc"):
                continue
            arguments = shlex.split(command["command"])
            outputs.append(build / arguments[arguments.index("-o") + 1])
            outputs[-1].parent.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(arguments, cwd=build, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(outputs), 3)
        called = symbols(self.arguments.users, "-u") & symbols(self.arguments.rooms, "--defined-only")
        self.assertTrue(called, "the archives are not those of the rooms and of their users")
        missing = called - symbols(outputs, "--defined-only")
        # Each user has its own copy of inline functions.
        missing -= symbols(self.arguments.users, "--defined-only")
        self.assertFalse(missing, "a *_not_built.cc has to define them, too")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--rooms", nargs="+", required=True)
    parser.add_argument("--users", nargs="+", required=True)
    WithoutRooms.arguments = parser.parse_args()
    unittest.main(argv=[__file__])
