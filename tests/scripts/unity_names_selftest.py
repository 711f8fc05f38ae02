#!/usr/bin/env python3
"""Tests which names scripts/check_unity_names.py finds in two sources of a target, and which not."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_unity_names.py"


def anonymous(body, outer="ferry"):
    return f"// A file.\nnamespace {outer} {{\nnamespace {{\n{body}\n}}  // namespace\n}}\n"


class UnityNames(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        self.build = self.root / "build"
        self.build.mkdir()

    def check(self, *sources, targets=None, unit=False, cmake=""):
        """The exit status and output for sources of one target, or of those that are named."""
        (self.root / "CMakeLists.txt").write_text(cmake, encoding="utf-8")
        names = [f"source_{i}.cc" for i in range(len(sources))]
        for name, source in zip(names, sources):
            (self.root / name).write_text(source, encoding="utf-8")
        files = [self.root / name for name in names]
        if unit:
            (self.build / "unity").mkdir()
            files = [self.build / "unity" / "one_0.cc"]
            files[0].write_text("".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
        entries = [{"directory": str(self.build), "file": str(file), "command": "c++",
                    "output": f"CMakeFiles/{target}.dir/{file.name}.o"}
                   for file, target in zip(files, targets or ["one"] * len(files))]
        (self.build / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, self.build, self.root], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def assert_collides(self, name, *sources, **options):
        code, output = self.check(*sources, **options)
        self.assertEqual(code, 1, output)
        self.assertIn(f"'{name}' is also in source_0.cc", output)

    def assert_fits(self, *sources, **options):
        code, output = self.check(*sources, **options)
        self.assertEqual((code, output), (0, ""))

    def test_constants_types_functions_and_enumerators_collide(self):
        for name, one, other in [
                ("kLimit", "constexpr int kLimit = 1;", "constexpr long kLimit{2};"),
                ("Bed", "struct Bed {};", "class Bed final : public Base {\n int x = 0;\n};"),
                ("Bed", "struct Bed {};", "using Bed = int;"),
                ("Sum", "int Sum(int a, const T& b) { return a; }", "int Sum(int x, const T& y) {}"),
                ("kRed", "enum Colour : char { kRed, kBlue = 4 };", "constexpr int kRed = 1;"),
                ("Suite, Name", "TEST(Suite, Name) {}", "TEST_F(Suite, Name) {}"),
                ("Make", "template <class T>\nT Make(int a = 3) {}", "int Make(int) {}")]:
            with self.subTest(name=name, other=other):
                self.assert_collides(name, anonymous(one), anonymous(other))

    def test_the_line_is_that_of_the_later_source(self):
        _, output = self.check(anonymous("int x = 0;"), anonymous("\n// int y;\nint x = 0;"))
        self.assertTrue(output.startswith("source_1.cc:6: 'x' is also in source_0.cc:4"), output)

    def test_overloads_other_namespaces_and_the_same_alias_do_not_collide(self):
        for one, other in [("int Sum(int a) { return a; }", "int Sum(long a) { return a; }"),
                           ("using Bed = int;", "using Bed  = int;"),
                           ("class Bed;", "class Bed {};"),
                           ("namespace abi = ferry::abi;", "namespace abi = ferry::abi;")]:
            self.assert_fits(anonymous(one), anonymous(other))
        self.assert_fits(anonymous("int x = 0;"), anonymous("int x = 0;", "ferry::net"))

    def test_members_locals_comments_and_texts_do_not_collide(self):
        body = ('int Use%s() { int local = 0; auto f = [&] { return local; }; return f(); }\n'
                '// int kept = 1;\nconst char* text%s = "int kept = 1; }";\n'
                'constexpr auto kShift%s = std::size_t{1} << 20;\n'
                'Bed%s::Bed%s(int local) : a_{local}, b_(local) { int kept = 0; }\n')
        self.assert_fits(*(anonymous(body.replace("%s", mark)) for mark in "AB"))

    def test_names_behind_a_declaration_with_braces_are_seen(self):
        body = "constexpr std::array kAll%s{1, 2};\nBed::Bed(int a) : a_{a}, b_(a) {}\nint kept = 1;\n"
        self.assert_collides("kept", *(anonymous(body.replace("%s", mark)) for mark in "AB"))

    def test_static_functions_and_constants_of_other_namespaces_collide(self):
        for name, line in [("Sum", "static int Sum(int a) { return a; }"), ("kX", "constexpr int kX = 1;")]:
            source = f"namespace ferry {{\n{line}\n}}\n"
            self.assert_collides(name, source, source)
        source = "namespace ferry {\ninline constexpr int kX = 1;\nint Sum(int);\n}\n"
        self.assert_fits(source, source)

    def test_sources_of_units_are_found_and_those_of_other_targets_are_apart(self):
        source = anonymous("int x = 0;")
        self.assert_collides("x", source, source, unit=True)
        self.assert_fits(source, source, targets=["one", "other"])

    def test_sources_that_are_kept_out_of_units_are_left_out(self):
        source = anonymous("int x = 0;")
        self.assert_fits(source, source,
                         cmake="set_property(SOURCE source_0.cc PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)")

    def test_without_a_build_it_is_skipped(self):
        done = subprocess.run([sys.executable, SCRIPT, self.root / "none"], text=True,
                              stdout=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped: no", done.stdout)


if __name__ == "__main__":
    unittest.main()
