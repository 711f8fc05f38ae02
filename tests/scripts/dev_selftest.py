#!/usr/bin/env python3
"""scripts/dev selects the targets and tests of a change, from what ninja knows of a tree."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "dev"
sys.dont_write_bytecode = True
loader = SourceFileLoader("dev", str(SCRIPT))
dev = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(dev)

TARGETS = ("ferry_core", "ferry_core_test", "ferry_core_testing", "ferry_net", "ferry_net_test",
           "ferry_tools", "ferry_tools_test", "ferry", "cli_test", "doctor_test", "limits_test",
           "toy_provider_test")
NINJA = "".join(f"build {name}: phony some/{name}\n" for name in TARGETS) + """
build layers/core/CMakeFiles/ferry_core.dir/fd.cc.o: CXX_COMPILER__ferry_core_unscanned_Release ROOT/ferry/core/fd.cc || x
build layers/tools/CMakeFiles/ferry_tools.dir/doctor.cc.o: CXX_COMPILER__ferry_tools ROOT/ferry/tools/doctor.cc || x
build tests/CMakeFiles/limits_test.dir/limits_test.cc.o: CXX_COMPILER__limits_test ROOT/tests/limits/limits_test.cc || x
"""
DEPS = """layers/core/CMakeFiles/ferry_core.dir/fd.cc.o: #deps 3, deps mtime 1 (VALID)
    ROOT/ferry/core/fd.cc
    ROOT/ferry/core/fd.h
    /usr/include/stdio.h

layers/core/CMakeFiles/ferry_core_test.dir/Unity/unity_0_cxx.cxx.o: #deps 2, deps mtime 1 (VALID)
    layers/core/CMakeFiles/ferry_core_test.dir/Unity/unity_0_cxx.cxx
    ../../ferry/core/fd_test.cc
    ROOT/ferry/core/fd.h

layers/net/CMakeFiles/ferry_net.dir/address.cc.o: #deps 2, deps mtime 1 (VALID)
    ROOT/ferry/net/address.cc
    ROOT/ferry/core/fd.h

layers/tools/CMakeFiles/ferry_tools.dir/doctor.cc.o: #deps 1, deps mtime 1 (VALID)
    ROOT/ferry/tools/doctor.cc

tests/CMakeFiles/limits_test.dir/limits_test.cc.o: #deps 1, deps mtime 1 (VALID)
    ROOT/tests/limits/limits_test.cc
"""


class Selecting(unittest.TestCase):
    def select(self, *changed, selftests=None):
        root = "/tree"
        users = dev.parse_deps(DEPS.replace("ROOT", root), root, dev.BUILD)
        names, folders = dev.parse_targets(NINJA.replace("ROOT", root))
        folders = {folder.removeprefix("/tree/"): targets for folder, targets in folders.items()}
        for path, targets in users.items():
            if path.endswith(".cc"):
                folders.setdefault(os.path.dirname(path), set()).update(targets)
        return dev.Selection(changed, users, names, folders, selftests or {})

    def test_a_source_selects_its_target_and_the_layer_s_tests(self):
        chosen = self.select("ferry/core/fd.cc")
        self.assertEqual(chosen.targets, {"ferry_core", "ferry_core_test"})
        self.assertEqual(chosen.tests, {"ferry_core.part_"})
        self.assertEqual(chosen.test_regex(), r"^ferry_core\.part_")

    def test_a_test_in_a_unity_build_selects_its_program_only(self):
        chosen = self.select("ferry/core/fd_test.cc")
        self.assertEqual(chosen.targets, {"ferry_core_test"})
        self.assertIn("ferry_core.part_", chosen.tests)

    def test_a_header_selects_all_that_include_it(self):
        chosen = self.select("ferry/core/fd.h")
        self.assertEqual(chosen.targets, {"ferry_core", "ferry_core_test", "ferry_net", "ferry_net_test"})
        self.assertNotIn("ferry_tools.part_", chosen.tests)

    def test_a_new_file_joins_the_targets_of_its_folder(self):
        self.assertEqual(self.select("ferry/core/new.cc").targets, {"ferry_core", "ferry_core_test"})
        self.assertEqual(self.select("ferry/core/new_test.cc").targets, {"ferry_core_test"})
        self.assertEqual(self.select("ferry/core/room/new.h").targets, {"ferry_core", "ferry_core_test"})

    def test_a_program_in_tests_is_a_target_of_its_own(self):
        chosen = self.select("tests/limits/limits_test.cc")
        self.assertEqual(chosen.targets, {"limits_test"})
        self.assertIn("limits_test.", chosen.tests)
        self.assertNotIn("doctor_test.", chosen.tests)
        self.assertNotIn("limits_test", self.select("tests/limits/new_test.cc").targets)

    def test_the_program_s_sources_select_its_tests(self):
        chosen = self.select("ferry/tools/doctor.cc")
        self.assertEqual(chosen.targets, {"ferry_tools", "ferry_tools_test", "cli_test", "doctor_test"})

    def test_a_script_selects_the_selftests_that_name_it(self):
        selftests = {"tests/scripts/layers_selftest.py": 'run("check_layers.py")', "tests/a_selftest.py": "other"}
        chosen = self.select("scripts/check_layers.py", selftests=selftests)
        self.assertEqual((chosen.targets, chosen.tests), (set(), {"layers_selftest$"}))
        self.assertEqual(chosen.test_regex(), r"^(lint\.|nccl_net\.)?layers_selftest$")
        self.assertEqual(self.select("scripts/lonely", selftests=selftests).notes,
                         ["scripts/lonely: no selftest names it"])
        self.assertEqual(self.select("tests/a_selftest.py").tests, {"a_selftest$"})

    def test_documents_select_their_checks_and_build_rules_everything(self):
        chosen = self.select("docs/wire.md")
        self.assertEqual((chosen.targets, chosen.tests), (set(), set(dev.DOC_TESTS)))
        self.assertEqual(self.select("ferry/core/CMakeLists.txt").targets, {"all"})

    def test_the_page_of_the_toy_provider_selects_its_suite(self):
        chosen = self.select("docs/toy_provider.md")
        self.assertEqual(chosen.targets, {"toy_provider_test"})
        self.assertIn("toy_provider_test.", chosen.tests)

    def test_what_nothing_compiles_is_said(self):
        self.assertEqual(self.select("other/x.cc").notes, ["other/x.cc: no target compiles it"])


class DryRun(unittest.TestCase):
    def test_prints_commands_for_committed_and_new_files_and_runs_none(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(os.path.realpath(folder)) / "tree"
            tools = root.parent / "bin"
            tools.mkdir(parents=True)
            for path in ("ferry/core/fd.cc", "ferry/core/fd.h", "docs/a.md", "tests/x_selftest.py"):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text("int a;\n", encoding="utf-8")
            (root / ".gitignore").write_text("build/\n", encoding="utf-8")
            (root / dev.BUILD).mkdir(parents=True)
            (root / dev.BUILD / "build.ninja").write_text(NINJA.replace("ROOT", str(root)), encoding="utf-8")
            (root.parent / "deps").write_text(DEPS.replace("ROOT", str(root)), encoding="utf-8")
            (tools / "ninja").write_text(f"#!/bin/sh\ncat '{root.parent}/deps'\n", encoding="utf-8")
            (tools / "ninja").chmod(0o755)
            environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                           "GIT_CONFIG_GLOBAL": "/dev/null"}

            def git(*arguments):
                subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", root, *arguments],
                               check=True, capture_output=True, env=environment)

            def run():
                return subprocess.run([sys.executable, SCRIPT, "--dry-run", "--root", root], text=True,
                                      capture_output=True, timeout=30, check=False, env=environment)

            git("init", "-q", "-b", "main")
            git("add", "-A")
            git("commit", "-q", "-m", "first")
            self.assertEqual(run().stdout, "dev: nothing differs from main\n")
            git("checkout", "-q", "-b", "work")
            (root / "docs/a.md").write_text("more\n", encoding="utf-8")
            git("commit", "-q", "-a", "-m", "second")
            (root / "ferry/core/new.cc").write_text("int b;\n", encoding="utf-8")
            done = run()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertIn("+ scripts/lint.sh format", lines)
        self.assertIn("+ scripts/lint.sh layers", lines)
        build = next(line for line in lines if "--build" in line)
        self.assertTrue(build.endswith("--target ferry_core ferry_core_test"), build)
        test = next(line for line in lines if line.startswith("+ ctest"))
        self.assertIn("lint\\.results$", test)
        self.assertIn("ferry_core\\.part_", test)


if __name__ == "__main__":
    unittest.main()
