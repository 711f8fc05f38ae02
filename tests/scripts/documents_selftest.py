"""The checks of links, charts, reference pages and marks of commands find what they are for."""
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True


def script(path):
    loader = SourceFileLoader(pathlib.Path(path).stem, str(ROOT / path))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Links(unittest.TestCase):
    def check(self, text):
        links = script("scripts/check_links")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs/b.md").write_text("# A title\n\n## A title\n\n```\n# not a heading\n```\n", encoding="utf-8")
            (root / "a.md").write_text(text, encoding="utf-8")
            return list(links.check(root))

    def test_a_file_that_is_missing_is_found(self):
        self.assertEqual(self.check("[x](docs/b.md) [y](https://a.example/c)\n"), [])
        self.assertEqual(self.check("\n[x](docs/c.md)\n"), ["a.md:2: docs/c.md does not exist"])
        self.assertIn("p.svg does not exist", self.check('<img src="docs/p.svg">\n')[0])
        self.assertIn("docs/c.md does not exist", self.check('<a href="docs/c.md">x</a>\n')[0])

    def test_the_page_that_the_site_adds_is_found_from_the_right_folder_only(self):
        self.assertEqual(self.check('<a href="docs/cpp/index.html">x</a>\n'), [])
        self.assertIn("../cpp/index.html does not exist", self.check('<a href="../cpp/index.html">x</a>\n')[0])

    def test_an_anchor_has_to_be_a_heading(self):
        self.assertEqual(self.check("[x](docs/b.md#a-title) [y](docs/b.md#a-title-1)\n"), [])
        for anchor in ("a-title-2", "not-a-heading"):
            self.assertIn("has no such heading", self.check(f"[x](docs/b.md#{anchor})\n")[0])

    def guide(self, text):
        links = script("scripts/check_links")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            (root / "docs/guides").mkdir(parents=True)
            (root / "a.h").write_text("class Copier { void CopyAsync(int n); };  // --fast\n", encoding="utf-8")
            (root / "docs/guides/names.md").write_text(text, encoding="utf-8")
            return list(links.check(root))

    def test_a_name_of_code_has_to_be_in_the_file_that_it_leads_to(self):
        self.assertEqual(self.guide("[`Copier::CopyAsync(n)`](../../a.h)\n"), [])
        self.assertEqual(self.guide("\n[`Copier::Copy`](../../a.h)\n"), ["docs/guides/names.md:2: a.h has no Copy"])
        head = "| theirs | ours | file |\n| --- | --- | --- |\n"
        self.assertEqual(self.guide(f"{head}| `x` | `Copier`, `--fast` | `a.h` |\n"), [])
        self.assertEqual(self.guide(f"{head}| `x` | none: `Copied` | `a.h` |\n"),
                         ["docs/guides/names.md:3: a.h has no Copied"])
        self.assertIn("b.h does not exist", self.guide(f"{head}| `x` | `Copier` | `b.h` |\n")[0])
        self.assertIn("a.h has no --fas", self.guide(f"{head}| `x` | `--fas` | `a.h` |\n")[0])

    def test_each_row_of_names_says_where_ours_is(self):
        page = ROOT / "docs/guides/names.md"
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        cell = r"(?:[^|]|\\\|)*"
        whole = [line for line in rows if re.fullmatch(rf"\| ({cell} )?\| {cell}`[^`|]+`[^|]* \| `[^`|]+` \|", line)]
        heads = [line for line in rows if line in ("| theirs | ours | file |", "| --- | --- | --- |")]
        self.assertEqual([line for line in rows if line not in whole + heads], [])
        self.assertGreater(len(whole), 70)

    def test_code_is_not_looked_at(self):
        self.assertEqual(self.check("`[x](nothing)`\n\n```\n[x](nothing)\n```\n"), [])


class Commands(unittest.TestCase):
    def marks(self, text):
        commands = script("tests/scripts/commands_test.py")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "README.md").write_text(text, encoding="utf-8")
            (pathlib.Path(folder) / "a.cc").write_text("  first();\n  second();\n\n  third();\n", encoding="utf-8")
            with unittest.mock.patch.object(commands, "ROOT", pathlib.Path(folder)):
                return list(commands.marks()), commands.run_all("/bin/ferry", None)[:2]

    def test_a_block_without_a_mark_is_found(self):
        self.assertIn("README.md:3: write", self.marks("a\n\n```sh\ntrue\n```\n")[0][0])
        self.assertEqual(self.marks("```text\nout\n```\n")[0], [])
        self.assertEqual(self.marks("<!-- not run: a reason -->\n```sh\nfalse\n```\n"), ([], ([], 0)))

    def test_a_block_that_is_part_of_a_file_has_its_lines(self):
        text = "<!-- part of: a.cc -->\n```cpp\n{}```\n"
        self.assertEqual(self.marks(text.format("first();\n// ...\nthird();\n")), ([], ([], 0)))
        for lines in ("second();\n// ...\nfourth();\n", "first();\nthird();\n"):
            self.assertIn("README.md:1: a.cc does not have these lines:", self.marks(text.format(lines))[0][0])
        self.assertIn("b.cc does not have", self.marks(text.replace("a.cc", "b.cc").format("first();\n"))[0][0])

    def test_a_block_is_run_and_its_first_error_ends_it(self):
        self.assertEqual(self.marks("<!-- run: shell -->\n```sh\ntrue\n```\n"), ([], ([], 1)))
        faults, count = self.marks("<!-- run: shell -->\n```sh\nfalse\ntrue\n```\n")[1]
        self.assertEqual(count, 1)
        self.assertIn("README.md:1: ended with 1", faults[0])

    def test_what_a_block_needs_is_known_and_is_a_reason_to_skip_it(self):
        text = "<!-- run: python; needs torch, a boat -->\n```python\npass\n```\n"
        self.assertIn("may need torch, Triton, nano-vllm, and not a boat", self.marks(text)[0][0])
        self.assertIn("not by shell; needs torch", self.marks(text.replace("python; needs torch, a boat",
                                                                          "shell; needs torch"))[0][0])

    def test_a_block_of_python_is_run_where_all_that_it_needs_is_there(self):
        commands = script("tests/scripts/commands_test.py")
        needs = {"it": ("pass", "no"), "a boat": ("raise SystemExit(1)", "there is no boat")}
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.multiple(commands, ROOT=pathlib.Path(folder), NEEDS=needs):
            (pathlib.Path(folder) / "README.md").write_text(
                "<!-- run: python shell; needs it -->\n```sh\nexit 3\n```\n"
                "<!-- run: python; needs it, a boat -->\n```python\n1 / 0\n```\n", encoding="utf-8")
            faults, count, skipped = commands.run_all(None, sys.executable)
        self.assertEqual((count, skipped), (1, ["README.md:5: skipped: there is no boat"]))
        self.assertIn("README.md:1: ended with 3", faults[0])


class Charts(unittest.TestCase):
    def test_a_chart_that_was_changed_or_belongs_to_nothing_is_found(self):
        charts = script("scripts/make_charts")
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/charts").mkdir(parents=True)
            (root / "bench").mkdir()
            (root / "bench/results").symlink_to(ROOT / "bench/results")
            missing = charts.check(root)
            self.assertTrue(missing and all("is missing" in fault for fault in missing))
            for path, text in charts.made(root).items():
                (root / path).write_text(text, encoding="utf-8")
            self.assertEqual(charts.check(root), [])
            path = root / next(iter(charts.made(root)))
            path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
            (root / "docs/charts/other.svg").write_text("", encoding="utf-8")
            faults = charts.check(root)
            self.assertEqual(len(faults), 2)
            self.assertIn("is not that of bench/results", faults[0])
            self.assertIn("other.svg belongs to no chart", faults[1])

    def test_a_result_that_does_not_exist_leaves_its_chart_out(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(script("scripts/make_charts").made(pathlib.Path(folder)), {})


class Trouble(unittest.TestCase):
    def test_the_messages_of_the_table_are_those_of_the_sources(self):
        sources = re.sub(r'"\s*"', "", "".join(path.read_text(encoding="utf-8") for path in
                                              sorted(file for room in ("net", "session", "transfer") for file in (ROOT / "ferry" / room).rglob("*.cc"))))
        page = (ROOT / "docs/howto/trouble.md").read_text(encoding="utf-8")
        messages = [message for message in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)]
        self.assertGreaterEqual(len(messages), 5)
        for message in messages:
            for part in message.split(" … "):
                self.assertTrue(part in sources, part)


class Reference(unittest.TestCase):
    def test_every_metric_of_the_source_is_found(self):
        found = {name for name, *_ in script("scripts/make_reference").metrics_of()}
        text = (ROOT / "ferry/transfer/stats/metrics_families.cc").read_text(encoding="utf-8")
        self.assertEqual(len(found), text.count('"ferry_'))

    def test_signatures_have_no_self_and_are_broken(self):
        reference = script("scripts/make_reference")
        node = reference.ast.parse("def f(self, a: int = 1) -> None: ...").body[0]
        self.assertEqual(reference.signature(node), ["f(a: int=1) -> None"])


if __name__ == "__main__":
    unittest.main()
