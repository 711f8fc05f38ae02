#!/usr/bin/env python3
"""measure_code reads declarations as a compiler would, and its list of what is allowed only shrinks."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "measure_code"
sys.dont_write_bytecode = True
loader = SourceFileLoader("measure_code", str(SCRIPT))
measure_code = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(measure_code)


class Parsing(unittest.TestCase):
    def one(self, text, name="C"):
        classes = {entry.name: entry for entry in measure_code.Unit(text).classes}
        self.assertIn(name, classes)
        return classes[name]

    def assert_counts(self, body, methods, members, virtuals=0):
        found = self.one("class C {\n" + body + "\n};")
        self.assertEqual((found.methods, found.members, found.virtuals), (methods, members, virtuals))

    def test_methods_and_members_are_told_apart(self):
        self.assert_counts("public: C(int x); void F(); int g() const { return a_; } private: int a_;",
                           3, 1)
        self.assert_counts("int a_ = 1, b_{2}; bool bit_ : 1; std::array<int, 4> four_{}; int x_[3];", 0, 5)

    def test_defaulted_deleted_and_overriding_functions_do_not_count(self):
        self.assert_counts("C() = default; C(const C&) = delete; ~C() override; void F() override;"
                           "void G() final { h(); } virtual ~C() = default;", 0, 0, 1)

    def test_pure_virtual_functions_count(self):
        self.assert_counts("virtual void F() = 0; virtual int G(int x = 3) const = 0;", 2, 0, 2)

    def test_constants_types_and_friends_are_no_members(self):
        self.assert_counts("static constexpr int kA = 1; static const int kB; using T = int;"
                           "typedef int U; enum class E { kA, kB }; friend class D;"
                           "friend bool operator==(C a, C b) { return true; } class Later;"
                           "static_assert(sizeof(int) == 4);", 0, 0)
        self.assert_counts("static int count_; inline static bool on_ = false;", 0, 2)

    def test_comments_are_not_code(self):
        self.assert_counts("int a_; // int b_; void F();\n/* void G();\n int c_; */ void H(); // it's\n", 1, 1)

    def test_strings_and_characters_are_not_code(self):
        self.assert_counts('const char* a_ = "}; void F(); // \\" {"; char b_ = \'}\'; char c_ = \'\\\'\';', 0, 3)
        self.assert_counts('const char* a_ = R"(" } ; void F();)"; const char* b_ = R"x()" })x"; void G();',
                           1, 2)
        self.assert_counts("long a_ = 1'000'000; long b_ = 0xff'ff; void F();", 1, 2)

    def test_a_raw_string_keeps_line_numbers(self):
        unit = measure_code.Unit('auto a = R"(\n\n)";\nvoid F() {\n\n}\n')
        self.assertEqual([(f.name, f.line, f.lines) for f in unit.functions], [("F", 4, 2)])

    def test_nested_classes_have_counts_of_their_own(self):
        text = "class C { struct In { int x, y; void F(); }; In in_; struct { int z; } at_; void G(); };"
        outer, inner = self.one(text), self.one(text, "C::In")
        self.assertEqual((outer.methods, outer.members), (1, 2))
        self.assertEqual((inner.methods, inner.members), (1, 2))

    def test_members_of_an_anonymous_union_are_the_class_s(self):
        self.assert_counts("union { int a_; float b_; }; struct { int c_; };", 0, 3)

    def test_templates(self):
        self.assert_counts("std::map<int, std::pair<int, int>> a_; UniqueFunction<void(int, int)> b_;"
                           "template <typename T, typename U = std::vector<T>> void F(T t);"
                           "std::function<void()> G(); std::array<char, (4 > 3)> c_;", 2, 3)
        found = self.one("template <class T> requires (sizeof(T) > 1) class C<T*> final : B<T>, D {"
                         " T* t_; };", "C")
        self.assertEqual(found.members, 1)

    def test_a_template_parameter_is_no_class(self):
        unit = measure_code.Unit("template <class T, struct U> void F(class T t, struct stat s) { }")
        self.assertEqual(unit.classes, [])

    def test_operators_are_methods(self):
        self.assert_counts("bool operator<(const C& o) const; C& operator=(C&& o); int operator()(int x);"
                           "explicit operator bool() const { return p_ != nullptr; } int& operator[](int i);"
                           "auto operator<=>(const C&) const = default; void* p_;", 5, 1)

    def test_constructors_with_initializers(self):
        self.assert_counts("explicit C(int a) : B<int>(a), a_{a}, f_([this] { return 1; }) { F(); }"
                           "C() : a_(0) {} int a_; F f_;", 2, 2)

    def test_lambdas_in_initializers_are_neither(self):
        self.assert_counts("std::function<void()> f_ = [this](int x) { if (x) { G(); } }; int a_ = F(1, 2);", 0, 2)

    def test_pointers_to_functions_and_attributes(self):
        self.assert_counts("void (*call_)(int); int (C::*member_)(int) const; alignas(64) int x_;"
                           "[[nodiscard]] int F(); decltype(1) y_; [[maybe_unused]] int z_;", 1, 5)

    def test_one_branch_of_a_conditional_counts(self):
        self.assert_counts("#if A\nvoid F() {\n#else\nvoid G() {\n#endif\n}\n#if 0\nint a_;\n#else\nint b_;"
                           "\n#endif\n#define X(y) { y; \\\n int c_;\n", 1, 1)

    def test_behaviour_is_a_function_that_is_not_special(self):
        self.assertFalse(self.one("struct C { C(); ~C(); bool operator==(const C&) const; int a; };").behaves)
        self.assertFalse(self.one("struct C { static C From(int x); int a; };").behaves)
        self.assertTrue(self.one("struct C { int Sum() const; int a; };").behaves)
        self.assertTrue(self.one("struct C { void F() override; int a; };").behaves)

    def test_names_have_their_namespaces(self):
        text = "namespace ferry::net {\nnamespace {\nclass C {};\n}\n}\nextern \"C\" { struct D { int a; }; }"
        self.assertEqual([c.name for c in measure_code.Unit(text).classes], ["ferry::net::C", "D"])

    def test_functions_of_device_and_host(self):
        unit = measure_code.Unit(
            "__global__ void __launch_bounds__(128) K(int n) {\n\n\n}\n__device__ int D() { return 1; }\n"
            "__host__ __device__ int B() { return 1; }\nint H(int a = 1) {\nreturn 1;\n}\nint later();\n"
            "auto lambda = [](int x) { return x; };\n")
        self.assertEqual([(f.name, f.lines, f.device) for f in unit.functions],
                         [("K", 3, True), ("D", 0, True), ("B", 0, False), ("H", 2, False)])

    def test_what_cannot_be_read_is_said(self):
        with self.assertRaisesRegex(measure_code.ParseError, "line 2"):
            measure_code.Unit("void F() {}\n}\n")


class OpeningLine(unittest.TestCase):
    def test_it_stands_before_the_first_declaration(self):
        has = measure_code.has_opening_line
        self.assertTrue(has("// Sends.\n#include <a>\n"))
        self.assertTrue(has('#include "a.h"\n\n#include <b>\n\nnamespace ferry {\n// Sends.\nint a;\n'))
        self.assertFalse(has('#include "a.h"\nnamespace ferry {\nint a;  // Sends.\n// So.\n}\n'))
        self.assertFalse(has(""))


class Check(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.list = self.root / "scripts" / "measure_code_allowed.txt"
        self.list.parent.mkdir()
        self.write("ferry/core/a.h", "// Is first.\n" * 3 + "int a;\n" * 15)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments, self.root], capture_output=True,
                              text=True, timeout=60, check=False)

    def wide_class(self, members):
        fields = "\n".join(f"  int field{i}_;" for i in range(members))
        self.write("ferry/core/wide.h", "// Is wide.\n" * 8 + f"class Wide {{\n  void F();\n{fields}\n}};\n")

    def test_a_tree_within_bounds_passes(self):
        self.wide_class(25)
        done = self.run_script("--check")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_new_violation_fails_and_the_list_does_not_take_it(self):
        self.list.write_text("# nothing\n", encoding="utf-8")
        self.wide_class(26)
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("worse: members Wide: 26", done.stdout)
        self.assertEqual(self.run_script("--shrink").returncode, 1)
        self.assertEqual(self.list.read_text(encoding="utf-8"), "# nothing\n")

    def test_a_known_violation_passes_and_a_larger_one_fails(self):
        self.list.write_text("members Wide 28\n", encoding="utf-8")
        self.wide_class(28)
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.wide_class(29)
        self.assertIn("worse: members Wide: 29; was 28", self.run_script("--check").stdout)
        self.assertEqual(self.run_script("--shrink").returncode, 1)

    def test_a_smaller_one_fails_until_the_list_has_shrunk(self):
        self.list.write_text("members Wide 28\n", encoding="utf-8")
        for members, left in ((27, ["members Wide 27"]), (25, [])):
            self.wide_class(members)
            done = self.run_script("--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn("--shrink", done.stdout)
            self.assertEqual(self.run_script("--shrink").returncode, 0)
            lines = self.list.read_text(encoding="utf-8").splitlines()
            self.assertEqual([line for line in lines if not line.startswith("#")], left)
            self.assertEqual(self.run_script("--check").returncode, 0)

    def test_a_larger_share_of_comments_is_the_better_one(self):
        self.list.write_text("comments ferry 10\n", encoding="utf-8")
        self.write("ferry/core/a.h", "// Is first.\n" * 8 + "int a;\n" * 92)
        self.assertIn("worse: comments ferry: 8; was 10", self.run_script("--check").stdout)
        self.write("ferry/core/a.h", "// Is first.\n" * 11 + "int a;\n" * 89)
        self.assertIn("better: comments ferry: 11", self.run_script("--check").stdout)

    def test_installed_headers_are_those_of_the_build_and_stay_listed_without_one(self):
        build = self.root / "elsewhere"
        names = "\n".join(f'  "/x/ferry/h{i}.h"' for i in range(41))
        self.write("elsewhere/cmake_install.cmake",
                   f'file(INSTALL DESTINATION "x" TYPE FILE FILES {names} "/x/ferry/a.cuh")\n')
        done = self.run_script("--check", "--build", build)
        self.assertIn("worse: headers installed: 41", done.stdout)
        self.list.write_text("headers installed 41\n", encoding="utf-8")
        self.assertEqual(self.run_script("--check", "--build", build).returncode, 0)
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.run_script("--shrink")
        self.assertIn("headers installed 41\n", self.list.read_text(encoding="utf-8"))

    def test_lines_of_tests_and_docs(self):
        self.write("ferry/tools/a.h", "// Is a tool.\n" + "int a;\n" * 7)
        self.write("ferry/tools/a_test.cc", "// Is a test.\n")
        self.write("README.md", "x" * 121 + "\n")
        done = self.run_script("--check")
        self.assertIn("worse: tests tools: 0.12", done.stdout)
        self.assertIn("worse: doc_lines README.md: 1", done.stdout)
        self.write("tests/other_test.cc", "// Is another.\n" * 9)
        self.assertIn("worse: tests tools: 0.12", self.run_script("--check").stdout)
        self.write("tests/cli/cli_test.cc", '#include "tests/cli/ferry_program.h"\n' * 3)
        self.assertNotIn("tests tools", self.run_script("--check").stdout)

    def test_long_functions_of_cu_files_count(self):
        body = "// x\n" * 10 + "void F() {\n" + "G();\n" * 60 + "}\n"
        self.write("ferry/copy/a.cu", body)
        self.assertIn("worse: host_lines F: 61", self.run_script("--check").stdout)
        self.write("ferry/copy/a.cu", body.replace("void F", "__global__ void F"))
        self.assertNotIn("lines F", self.run_script("--check").stdout)

    def test_without_a_mode_the_table_is_printed(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 0)
        self.assertIn("methods of a class", done.stdout)


if __name__ == "__main__":
    unittest.main()
