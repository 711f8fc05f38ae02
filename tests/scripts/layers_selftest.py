#!/usr/bin/env python3
"""Tests that check_layers.py accepts valid trees and reports each kind of violation."""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"


def rules(**tables):
    """The script as a module, with other tables."""
    spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update({"EXCEPTIONS": set(), "TRANSFER_VALUES": set(), **tables})
    return module


class CheckLayers(unittest.TestCase):
    def check(self, path, text, beside=()):
        """Runs the script on a tree of this one file, and empty ones beside it; returns its violations."""
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
            for name in beside:
                (file.parent / name).touch()
            done = subprocess.run([sys.executable, SCRIPT, "--part", root], capture_output=True, text=True,
                                  timeout=30, check=False)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def test_downward_include_is_accepted(self):
        self.assertEqual(self.check("ferry/net/tcp/lane.cc", '#include "ferry/core/fd.h"\n'), "")

    def test_upward_include_is_reported_with_its_line(self):
        out = self.check("ferry/core/fd.cc", '\n#include "ferry/net/provider.h"\n')
        self.assertIn("ferry/core/fd.cc:2: core may not include ferry/net/provider.h", out)

    def test_files_of_ours_are_included_in_quotes(self):
        out = self.check("ferry/core/fd.cc", "#include <vector>\n#include <ferry/net/provider.h>\n")
        self.assertIn("ferry/core/fd.cc:2: <ferry/net/provider.h> is a file of ours", out)
        out = self.check("ferry/core/fd.cc", '#include"ferry/net/provider.h"\n')
        self.assertIn("core may not include ferry/net/provider.h", out)

    def test_transfer_may_include_net_but_no_provider(self):
        self.assertEqual(self.check("ferry/transfer/a.cc", '#include "ferry/net/provider.h"\n'), "")
        out = self.check("ferry/transfer/a.cc", '#include "ferry/net/tcp/lane.h"\n')
        self.assertIn("transfer may not include", out)

    def test_unpack_knows_of_copies_and_of_no_network(self):
        self.assertEqual(self.check("ferry/tcpx/unpack/a.cc", '#include "ferry/copy/block_list.h"\n'), "")
        for room in ("", "host/", "lane/"):
            self.assertEqual(self.check(f"ferry/tcpx/{room}a.cc", '#include "ferry/tcpx/unpack/a.h"\n'), "")
        out = self.check("ferry/tcpx/unpack/a.cc", '#include "ferry/net/provider.h"\n')
        self.assertIn("tcpx/unpack may not include", out)

    def test_transfer_knows_neither_the_host_of_plugins_nor_kernels(self):
        for folder in ("transfer", "transfer/lane", "transfer/connection", "transfer/endpoint"):
            for other in ("tcpx/factory.h", "tcpx/host/plugin.h", "kernels/tensor.h"):
                out = self.check(f"ferry/{folder}/a.cc", f'#include "ferry/{other}"\n')
                self.assertIn(f"{folder} may not include ferry/{other}", out)

    def test_only_the_provider_list_names_providers_and_only_their_factories(self):
        factory = '#include "ferry/net/tcp/factory.h"\n'
        self.assertEqual(self.check("ferry/net/builtin.cc", factory), "")
        self.assertIn("net may not include", self.check("ferry/net/registry.cc", factory))
        lane = '#include "ferry/net/tcp/lane.h"\n'
        self.assertIn("net may not include", self.check("ferry/net/builtin.cc", lane))

    def test_plugins_include_what_is_below_them_and_nobody_includes_plugins(self):
        own = '#include "plugins/nccl/wire.h"\n'
        provider = '#include "ferry/net/provider.h"\n'
        self.assertEqual(self.check("plugins/nccl/a.cc", own + provider), "")
        out = self.check("plugins/nccl/a.cc", '#include "ferry/transfer/endpoint.h"\n')
        self.assertIn("plugins/nccl/a.cc:1: plugins/nccl may not include", out)
        self.assertIn("net may not include plugins/", self.check("ferry/net/a.cc", own))
        self.assertIn("'plugins' is not a layer", self.check("plugins/other/a.cc", ""))

    def test_prim_is_for_device_code_only(self):
        prim = '#include "ferry/cuda/prim/ldst.cuh"\n'
        self.assertEqual(self.check("ferry/copy/kernel.cu", prim), "")
        self.assertIn("copy may not include", self.check("ferry/copy/host.cc", prim))

    def test_a_circle_of_forbidden_includes_is_reported_though_it_has_no_floors(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, included in (("ferry/core/a.cc", "ferry/net/a.h"), ("ferry/net/a.cc", "ferry/core/a.h"),
                                   ("docs/architecture.md", "")):
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(f'#include "{included}"\n', encoding="utf-8")
            done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.stderr, "")
        self.assertIn("core may not include ferry/net/a.h", done.stdout)

    def test_a_room_beside_ferry_is_not_one_below_it(self):
        self.assertIn("'ferry' is not a layer", self.check("ferry/tools/a.cc", ""))

    def test_a_picture_that_shows_other_includes_is_a_violation_until_it_is_drawn_anew(self):
        module = rules(ALLOWED={"core": set(), "net": {"core"}, "transfer": {"net"}, "transfer/lane": {"core"}})
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, included in (("core/fd.cc", "core/fd.h"), ("net/a.cc", "core/fd.h"),
                                   ("transfer/a.cc", "net/a.h"), ("transfer/b.cc", "transfer/lane/b.h")):
                file = root / "ferry" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f'#include "ferry/{included}"\n', encoding="utf-8")
            page = root / "docs" / "architecture.md"
            page.parent.mkdir()
            page.write_text("".join(f"<!-- drawn by scripts/check_layers.py --draw: {name} -->\n```text\nold\n```\n"
                                    for name in ("rooms", "transfer")), encoding="utf-8")
            self.assertIn("do not show the includes", "".join(module.check_picture(root)))
            self.assertEqual(list(module.check_picture(root, draw=True)), [])
            self.assertEqual(list(module.check_picture(root)), [])
            text = page.read_text(encoding="utf-8")
        self.assertIn(" 2  transfer  ──▶  net\n 1  net       ──▶  core\n 0  core\n", text)
        self.assertIn(" 1  the public handles  ──▶  lane\n 0  lane\n", text)

    def test_an_op_knows_what_all_share_and_no_other_op(self):
        own = '#include "ferry/kernels/rope/rope.h"\n#include "ferry/kernels/tensor.h"\n'
        self.assertEqual(self.check("ferry/kernels/rope/rope.cc", own), "")
        other = '#include "ferry/kernels/sampler/sampler.h"\n'
        self.assertIn("kernels may not include", self.check("ferry/kernels/rope/rope.cc", other))
        self.assertIn("kernels may not include", self.check("ferry/kernels/op.cc", other))

    def test_tests_may_include_anything_but_code_no_testing(self):
        fake = '#include "ferry/net/testing/fake_provider.h"\n'
        self.assertEqual(self.check("ferry/transfer/a_test.cc", fake), "")
        self.assertEqual(self.check("ferry/transfer/testing/a.cc", fake), "")
        self.assertIn("only tests may include", self.check("ferry/transfer/a.cc", fake))

    def test_a_source_includes_its_own_header_first(self):
        own, other = '#include "ferry/core/a.h"\n', "#include <vector>\n"
        self.assertEqual(self.check("ferry/core/a.cc", own + other, ["a.h"]), "")
        self.assertEqual(self.check("ferry/core/a.cc", other, ["b.h"]), "")
        for text in (other + own, "\n#  include <vector>\n" + own, other, ""):
            self.assertIn("the first include has to be ferry/core/a.h",
                          self.check("ferry/core/a.cc", text, ["a.h"]), text)

    def test_relative_include_is_reported(self):
        self.assertIn("not a path from", self.check("ferry/core/fd.cc", '#include "fd.h"\n'))

    def test_unknown_layer_is_reported(self):
        self.assertIn("'util' is not a layer", self.check("ferry/util/a.cc", ""))

    def test_asm_is_for_prim(self):
        asm = 'asm volatile("nop");\n'
        self.assertEqual(self.check("ferry/cuda/prim/nop.cuh", asm), "")
        self.assertIn("asm belongs in cuda/prim", self.check("ferry/copy/a.cc", asm))
        self.assertEqual(self.check("ferry/copy/a.cc", "// asm (as in prim)\n"), "")

    def test_reinterpret_cast_outside_the_edges_needs_a_comment(self):
        cast = "auto* p = reinterpret_cast<char*>(q);\n"
        self.assertIn("needs a comment", self.check("ferry/transfer/window.cc", cast))
        self.assertEqual(self.check("ferry/transfer/window.cc", "// bytes of a POD\n" + cast), "")
        self.assertEqual(self.check("ferry/transfer/handshake/wire.cc", cast), "")
        self.assertEqual(self.check("ferry/net/tcp/lane.cc", cast), "")

    def test_shared_ptr_needs_a_comment_where_it_is_declared(self):
        member = "std::shared_ptr<Loop> loop_;\n"
        self.assertIn("shared_ptr", self.check("ferry/transfer/a.h", member))
        self.assertEqual(self.check("ferry/transfer/a.h", "// outlives the endpoint\n" + member), "")
        parameter = "void Run(std::shared_ptr<Loop> loop);\n"
        self.assertEqual(self.check("ferry/transfer/a.h", parameter), "")

    def check_tables(self, files, **tables):
        """The rules of these tables that a tree of these files does not need."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = pathlib.Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            return list(rules(**tables).check_tables(pathlib.Path(root)))

    def test_an_allowed_arrow_that_no_file_uses_is_reported(self):
        allowed = {"core": set(), "net": {"core"}, "net/tcp": {"core", "net"}}
        net, tcp = '#include "ferry/core/fd.h"\n', '#include "ferry/net/provider.h"\n'
        files = {"ferry/net/a.cc": net, "ferry/net/tcp/a.cc": net + tcp}
        self.assertEqual(self.check_tables(files, ALLOWED=allowed), [])
        files["ferry/net/tcp/a.cc"] = net
        unused = "ALLOWED: no file of net/tcp includes one of net: remove the arrow"
        self.assertEqual(self.check_tables(files, ALLOWED=allowed), [unused])
        files["ferry/net/tcp/a_test.cc"] = tcp  # tests may include anything: they use no arrow
        self.assertEqual(self.check_tables(files, ALLOWED=allowed), [unused])

    def test_an_exception_for_a_file_that_is_not_there_is_reported(self):
        pair = ("net/builtin.cc", "net/tcp/factory.h")
        files = {"ferry/net/builtin.cc": '#include "ferry/net/tcp/factory.h"\n'}
        tables = {"ALLOWED": {"net": set(), "net/tcp": set()}, "EXCEPTIONS": {pair}}
        self.assertEqual(self.check_tables(files, **tables), [])
        gone = "EXCEPTIONS: net/builtin.cc does not include net/tcp/factory.h: remove the exception"
        self.assertEqual(self.check_tables({}, **tables), [gone])
        self.assertEqual(self.check_tables({"ferry/net/builtin.cc": ""}, **tables), [gone])

    def test_an_exception_uses_no_arrow(self):
        pair = ("net/builtin.cc", "net/tcp/factory.h")
        files = {"ferry/net/builtin.cc": '#include "ferry/net/tcp/factory.h"\n'}
        tables = {"ALLOWED": {"net": {"net/tcp"}, "net/tcp": set()}, "EXCEPTIONS": {pair}}
        self.assertIn("no file of net includes one of net/tcp", self.check_tables(files, **tables)[0])

    def test_a_value_that_no_room_of_transfer_includes_is_reported(self):
        tables = {"ALLOWED": {"transfer/gpu": set()}, "TRANSFER_VALUES": {"transfer/path.h"}}
        files = {"ferry/transfer/gpu/a.cc": '#include "ferry/transfer/path.h"\n'}
        self.assertEqual(self.check_tables(files, **tables), [])
        self.assertIn("no room of transfer includes transfer/path.h", self.check_tables({}, **tables)[0])


if __name__ == "__main__":
    unittest.main()
