#!/usr/bin/env python3
"""measure_code finds long functions of device code, circles of includes and wide documents."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "measure_code"


class Measuring(unittest.TestCase):
    def measure(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    def test_host_and_device_functions_have_limits_of_their_own(self):
        for head, lines, code in (("void F(int a) {", 60, 0), ("void F(int a) {", 61, 1),
                                  ("template <int kN>\n__global__ void __launch_bounds__(kN)\n    F(int a) {", 120, 0),
                                  ("template <int kN>\n__global__ void __launch_bounds__(kN)\n    F(int a) {", 121, 1)):
            body = "".join(f"  if (a == {line}) { '{' }}}\n" for line in range(lines))
            text = f"namespace a {{\n\n// A comment.\n{head}\n{body}}}\n\n}}\n"
            self.assertEqual(self.measure({"ferry/a.cu": text})[0], code, (head, lines))

    def test_a_function_of_a_class_is_measured(self):
        text = "struct A : B<(1)> {\n  __device__ void F() {\n" + "    a();\n" * 121 + "  }\n};\n"
        self.assertEqual(self.measure({"ferry/a.cuh": text}),
                         (1, ["ferry/a.cuh:2: a function of 121 lines; the limit is 120"]))

    def test_a_circle_of_includes_is_told_once(self):
        files = {"ferry/a.h": '#include "ferry/b.h"\n', "ferry/b.h": '#include "ferry/c.h"\n',
                 "ferry/c.h": '#include "ferry/a.h"\n', "ferry/d.cc": '#include "ferry/a.h"\n'}
        self.assertEqual(self.measure(files),
                         (1, ["a circle of includes: ferry/a.h -> ferry/b.h -> ferry/c.h -> ferry/a.h"]))

    def test_a_wide_line_of_a_document_is_told(self):
        self.assertEqual(self.measure({"docs/a.md": "x" * 120 + "\n" + "y" * 121 + "\n|" + "z" * 121 + "\n"}),
                         (1, ["docs/a.md:2: 121 columns; the limit is 120"]))


if __name__ == "__main__":
    unittest.main()
