#!/usr/bin/env python3
"""Results of benchmarks: what may be written, and that the documents' tables are made from it.

  results_selftest.py [PROGRAM]      the built program, which says what it was built from"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # beside the scripts
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import summary  # noqa: E402
import tables_targets  # noqa: E402



def script(folder, name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / folder / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


make_results = script("scripts", "make_results")
pairs = script("bench", "pairs")
PROGRAM = None


class Writing(unittest.TestCase):
    """In a repository of its own, with files in the place of programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "checkout"
        self.root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "test@example.com")
        self.git("config", "user.name", "test")
        (self.root / "code").write_text("1")
        self.commit = self.commit_all()
        self.program = pathlib.Path(folder.name) / "program"
        self.build()

    def git(self, *words):
        return subprocess.run(["git", *words], cwd=self.root, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()

    def commit_all(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "a commit")
        return self.git("rev-parse", "HEAD")

    def build(self, commit=None, clean="yes", program=None, kind="type=RelWithDebInfo sanitizer="):
        text = f"\0FERRY_BUILT_FROM commit={self.commit if commit is None else commit} clean={clean} {kind};\0"
        (program or self.program).write_bytes(b"\x7fELF" + text.encode())

    def refusal(self, *programs):
        with self.assertRaises(summary.Refused) as caught:
            summary.Summary("a", str(self.root / "a.json"), programs or [self.program], 1, root=self.root)
        return str(caught.exception)

    def test_a_clean_commit_of_main_is_written_with_all_samples(self):
        path = pathlib.Path(self.root).parent / "a.json"
        result = summary.Summary("a", str(path), [self.program], 3, root=self.root)
        result.add("row", gbps=summary.Samples([3, 1, 2], "GB/s"), size=8)
        result.write()
        text = json.loads(path.read_text())
        self.assertEqual(text["commit"], self.commit)
        self.assertEqual(text["rows"]["row"]["gbps"],
                         {"unit": "GB/s", "n": 3, "median": 2, "min": 1, "max": 3, "samples": [3, 1, 2]})
        self.assertEqual(summary.problems(text), [])
        for key in ("machine", "date", "command", "n", "clean"):
            self.assertIn(key, text)

    def test_a_program_that_names_no_commit_is_refused(self):
        self.build(commit="", clean="no")
        self.assertIn("names no commit", self.refusal())
        self.program.write_bytes(b"something else")
        self.assertIn("does not say which commit", self.refusal())
        self.program.unlink()
        self.assertIn("is not there", self.refusal())

    def test_a_program_of_a_changed_tree_is_refused(self):
        self.build(clean="no")
        self.assertIn("with changes on top", self.refusal())

    def test_other_builds_than_a_release_are_refused(self):
        self.build(kind="type=Debug sanitizer=")
        self.assertIn("is a build of type Debug;", self.refusal())
        self.build(kind="type=RelWithDebInfo sanitizer=thread")
        self.assertIn("with the sanitizer thread", self.refusal())
        self.build(kind="type= sanitizer=")
        self.assertIn("of type unknown", self.refusal())

    def test_a_program_that_was_built_anew_meanwhile_is_refused_at_the_end(self):
        path = pathlib.Path(self.root).parent / "a.json"
        for changed, sentence in (({"commit": "ab" * 20}, "when measuring began"), ({"clean": "no"}, "changes on top"),
                                  ({"kind": "type=Debug sanitizer="}, "of type Debug")):
            self.build()
            result = summary.Summary("a", str(path), [self.program], 1, root=self.root)
            result.add("row", gbps=summary.Samples([1], "GB/s"))
            self.build(**changed)
            with self.assertRaises(summary.Refused) as caught:
                result.write()
            self.assertIn(sentence, str(caught.exception))
            self.assertFalse(path.exists())

    def test_what_is_not_whole_is_not_written(self):
        path = pathlib.Path(self.root).parent / "a.json"
        result = summary.Summary("a", str(path), [self.program], 1, root=self.root)
        with self.assertRaises(summary.Refused):
            result.write()
        self.assertFalse(path.exists())

    def test_n_is_that_of_the_rows(self):
        path = pathlib.Path(self.root).parent / "a.json"
        result = summary.Summary("a", str(path), [self.program], 9, root=self.root)
        result.add("row", gbps=summary.Samples([1, 2], "GB/s"))
        result.add("another", gbps=summary.Samples([1], "GB/s"))
        result.write()
        text = json.loads(path.read_text())
        self.assertEqual((text["n"], text["rounds"]), (2, 9))
        self.assertIn("its n is 3", summary.problems({**text, "n": 3})[0])

    def test_programs_of_two_commits_are_refused(self):
        other = self.program.with_name("other")
        self.build(commit="ab" * 20, program=other)
        self.assertIn("different commits", self.refusal(self.program, other))

    def test_a_commit_that_is_not_in_the_history_is_refused(self):
        self.build(commit="ab" * 20)
        self.assertIn("not in this history", self.refusal())

    def test_a_commit_beside_main_is_refused(self):
        self.git("checkout", "-qb", "beside")
        (self.root / "code").write_text("2")
        self.build(commit=self.commit_all())
        self.assertIn("not in the history of main", self.refusal())

    def test_files_that_are_not_those_of_the_commit_are_refused(self):
        (self.root / "code").write_text("2")
        self.assertIn("commit what has changed", self.refusal())
        self.commit_all()
        self.assertIn("commit what has changed", self.refusal())

    def test_results_and_prose_may_differ(self):
        for name in ("README.md", "docs/a.md", "bench/results/b.json"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("x")
        summary.Summary("a", "a.json", [self.program], 1, root=self.root)
        self.commit_all()
        summary.Summary("a", "a.json", [self.program], 1, root=self.root)

    def test_without_a_history_the_program_is_believed(self):
        copy = pathlib.Path(self.root).parent / "copy"
        copy.mkdir()
        self.build(commit="ab" * 20)
        self.assertEqual(summary.Summary("a", "a.json", [self.program], 1, root=copy).commit, "ab" * 20)
        self.build(clean="no")
        self.root = copy
        self.assertIn("with changes on top", self.refusal())

    def test_without_a_file_nothing_is_asked(self):
        summary.Summary("a", None, ["/nowhere"], 1, root=self.root)


class Form(unittest.TestCase):
    def result(self, **row):
        return {"form": 1, "benchmark": "a", "commit": "ab" * 20, "clean": True, "machine": "m", "date": "d",
                "command": "c", "n": 1, "rows": {"row": row}}

    def test_what_was_measured_has_samples(self):
        self.assertIn("has no samples", summary.problems(self.result(gbps=1.5))[0])
        self.assertEqual(summary.problems(self.result(gbps=summary.Samples([1.5], "GB/s").to_json())), [])

    def test_figures_without_evidence_are_faults(self):
        for row in ({}, {"gbps": "13.1"}, {"gbps": 13}, {"gbps": [13.1, 13.2]}, {"gbps": None}, {"facts": {"a": 1}},
                    {"half_rtt_us_p50": 5}, {"lanes": 2.5}):
            self.assertTrue(summary.problems(self.result(**row)), row)
        self.assertIn("it has no rows", summary.problems({**self.result(), "rows": {}}))
        facts = {"size": 8, "path": "network", "both": True}
        self.assertEqual(summary.problems(self.result(**facts)), [])

    def test_samples_are_numbers_and_counted_ones_say_how_they_are_spread(self):
        whole = {"unit": "us", "n": 50, "median": 2, "min": 1, "p10": 1.5, "p90": 2.5, "max": 3}
        result = {**self.result(us=whole), "n": 50}
        self.assertEqual(summary.problems(result), [])
        for key in whole:
            if key != "median":
                part = {name: value for name, value in whole.items() if name != key}
                self.assertTrue(summary.problems({**self.result(us=part), "n": 50}), key)
        self.assertIn("not in order", summary.problems({**self.result(us={**whole, "p10": 2.2}), "n": 50})[0])
        for samples in ([], ["1"], [True], "1", None):
            self.assertTrue(summary.problems(self.result(us={**whole, "n": 1, "samples": samples})), samples)
        self.assertTrue(summary.problems(self.result(us={"unit": "us", "n": 1, "samples": [1], "median": 1})))

    def test_an_earlier_result_says_so(self):
        result = self.result(gbps=summary.Samples([1], "GB/s").to_json())
        del result["clean"]
        self.assertIn("it has no note", summary.problems(result, earlier=True))
        self.assertEqual(summary.problems({**result, "note": "of an older form"}, earlier=True), [])

    def test_a_median_is_that_of_the_samples(self):
        value = summary.Samples([1, 2, 3], "GB/s").to_json()
        value["median"] = 3.0
        self.assertIn("median is 3.0, by the samples 2.0", summary.problems(self.result(gbps=value))[0])

    def test_a_changed_tree_or_a_sentence_for_a_commit_is_a_fault(self):
        self.assertEqual(summary.problems(self.result(size=1)), [])
        self.assertTrue(summary.problems({**self.result(size=1), "clean": False}))
        self.assertTrue(summary.problems({**self.result(size=1), "commit": "on the way to ab12"}))
        self.assertTrue(summary.problems({"rows": {}}))


class Documents(unittest.TestCase):
    TEXT = ("Prose.\n<!-- made from bench/results/a.json by scripts/make_results: loopback -->\n"
            "| write | 13.1 GB/s |\n<!-- end -->\nMore.\n")

    def test_a_table_that_was_changed_by_hand_is_made_anew(self):
        made = make_results.made(self.TEXT, lambda name: "| write | 7.0 GB/s |", lambda name: ["bench/results/b.json"])
        self.assertIn("| write | 7.0 GB/s |", made)
        self.assertIn("made from bench/results/b.json by", made)
        self.assertNotIn("13.1", made)
        self.assertEqual(make_results.made(made, lambda name: "| write | 7.0 GB/s |",
                                           lambda name: ["bench/results/b.json"]), made)

    def test_figures_by_hand_are_found(self):
        for figure in ("13.1 GB/s", "5.3 µs", "0.5 ms", "12 %", "3.4 ×", "2.5x", "1.4 times as long", "52 to 57 GB/s",
                       "628 TFLOP/s", "18,447 tokens/s", "7 s", "5 \u03bcs", "5 \u00b5s", "7 seconds", "1 second",
                       "3 minutes", "12 percent", "12-fold", "3 GB per second", "2 GB a second", "three times as long",
                       "two times faster", "threefold"):
            faults = make_results.by_hand("README.md", f"It takes {figure} here.\n", [])
            self.assertEqual(len(faults), 1, figure)
            self.assertIn("README.md:1", faults[0])
        self.assertEqual(make_results.by_hand("README.md", "64 MiB over 16 lanes, x86, 5 devices, 2 cores.\n", []), [])

    def test_figures_of_tables_and_of_the_list_are_not(self):
        self.assertEqual(make_results.by_hand("README.md", self.TEXT, []), [])
        self.assertEqual(make_results.by_hand("README.md", "within 5 s of it\n", ["5 s"]), [])
        self.assertEqual(make_results.by_hand("README.md", "within 5s of it\n", ["5s"]), [])
        for figure in ("0.5s", "15s", "5.5s"):
            self.assertEqual(len(make_results.by_hand("README.md", f"within {figure} of it\n", ["5s"])), 1, figure)
        self.assertEqual(make_results.allowed("# of\nREADME.md | 5 s | a limit\n"), {"README.md": ["5 s"]})

    def test_other_documents_may_name_times_but_no_rates(self):
        self.assertEqual(make_results.by_hand("docs/wire.md", "after 2 s\n", []), [])
        self.assertEqual(len(make_results.by_hand("docs/wire.md", "at 2 GB/s\n", [])), 1)

    def test_lines_are_short_in_tables_too(self):
        self.assertEqual(make_results.too_long("a.md", f"{'x' * 120}\n{'µ' * 120}\n"), [])
        self.assertEqual(make_results.too_long("a.md", f"\n| {'x' * 120} |\n"), ["a.md:2: 124 characters; at most 120"])

    def test_older_rows_are_shown_with_present_words(self):
        self.assertEqual(make_results.tables.label("200 broken greetings a second"), "200 broken handshakes a second")

    def test_a_target_that_is_missed_says_so(self):
        figure = {"unit": "of the links", "n": 1, "min": 0.8, "max": 1.0, "median": 0.9}
        row = {"worst": "min", "figure": figure}
        cells = tables_targets.fault_targets({"rows": {"A.UsesAllLinks: four": row}})
        self.assertEqual(cells, [["UsesAllLinks", "≥ 0.9 of the links", "0.800", "**no**"]])

    def test_a_target_of_a_document_is_judged_once_a_result_has_its_row(self):
        def ladder(*milliseconds):
            rows = {f"ladder: {letter}, x": {"ms_per_chunk": several("ms", taken), "gbps": several("GB/s", 2)}
                    for letter, taken in zip("abcdef", milliseconds)}
            return {row[0]: row[2:] for row in tables_targets.ladder_targets({"rows": rows})}

        self.assertEqual({tuple(row[2:]) for row in tables_targets.ladder_targets(None)}, {("not measured", "")})
        found = ladder(2, 1, 0.5, 0.25, 0.05, 0.04)
        self.assertEqual(found["stage 4, one launch: a chunk"], ["0.0500 ms", "yes"])
        self.assertEqual(found["stage 4, one launch: rate"], ["2 GB/s", "**no**"])
        self.assertEqual(found["stage 4, one launch: against none"], ["40 ×", "**no**"])
        self.assertEqual(found["stage 4: against d2d"], ["0.800 ×", "**no**"])

        latency = {f"through the plugin, latency, {how}: write {size}": {"us_p50": several("us", taken)}
                   for how, taken in (("kernel", 20), ("dma", 10), ("host", 30)) for size in ("8 B", "4 KiB", "512 KiB")}
        rows = tables_targets.order_targets({"unpack_h200": {"rows": latency}, "unpack_2xh200": None})
        self.assertEqual(rows[0][2:], ["2 ×", "**no**"])
        self.assertEqual(rows[1][2:], ["0.333 ×", "yes"])
        self.assertEqual(rows[-1][2:], ["not measured", ""])

    def test_a_result_of_a_commit_that_is_not_there_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "bench/results").mkdir(parents=True)
            subprocess.run(["git", "init", "-q"], cwd=root, check=True)
            subprocess.run(["git", "-c", "user.email=a@b", "-c", "user.name=c", "commit", "-q", "--allow-empty", "-m",
                            "a"], cwd=root, check=True)
            result = Form().result(gbps=summary.Samples([1], "GB/s").to_json())
            (root / "bench/results/a.json").write_text(json.dumps(result))
            faults, skipped = make_results.result_faults(root)
            self.assertIn("is not in the history", faults[0])
            self.assertEqual(skipped, [])

    def test_a_result_of_a_commit_whose_programs_cannot_carry_it_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "earlier"  # a name that says nothing of the results
            (root / "bench/results").mkdir(parents=True)
            (root / "cmake").mkdir()

            def commit():
                git = ["git", "-c", "user.email=a@b", "-c", "user.name=c"]
                subprocess.run([*git, "init", "-q"], cwd=root, check=True)
                subprocess.run([*git, "add", "-A"], cwd=root, check=True)
                subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], cwd=root, check=True)
                return subprocess.run([*git, "rev-parse", "HEAD"], cwd=root, check=True, text=True,
                                      stdout=subprocess.PIPE).stdout.strip()

            def faults_of(name):
                result = {**Form().result(gbps=summary.Samples([1], "GB/s").to_json()), "commit": name}
                (root / "bench/results/a.json").write_text(json.dumps(result))
                return make_results.result_faults(root)[0]

            self.assertIn("do not carry it", faults_of(commit())[0])
            (root / "cmake/note_commit.cmake").write_text("")
            self.assertEqual(faults_of(commit()), [])

    def test_what_could_not_be_checked_has_not_passed(self):
        for found, code in ((([], []), 0), (([], ["b"]), 77), ((["a"], ["b"]), 1)):
            with unittest.mock.patch.object(make_results, "check", lambda found=found: found), \
                    unittest.mock.patch.object(sys, "argv", ["make_results", "--check"]):
                self.assertEqual(make_results.main(), code)

    def test_without_a_history_that_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "bench/results").mkdir(parents=True)
            result = Form().result(gbps=summary.Samples([1], "GB/s").to_json())
            (root / "bench/results/a.json").write_text(json.dumps(result))
            faults, skipped = make_results.result_faults(root)
            self.assertEqual(faults, [])
            self.assertIn("whether abababababab is in the history", skipped[0])

    def test_what_has_no_result_says_which_command_makes_it(self):
        with unittest.mock.patch.object(make_results.tables, "RESULTS", pathlib.Path("/nowhere")):
            text = make_results.tables.render("loopback")
        self.assertIn("Not measured on this code yet", text)
        self.assertIn("`bench/loopback --json bench/results/loopback_2core.json`", text)


def several(unit, *values):
    return summary.Samples(values or (1, 2, 4), unit).to_json()


def rates(*keys, **facts):
    return {**{key: several("GB/s") for key in keys}, **facts}


FLOORS = ("gbps", "floor_gbps", "cpu_seconds_per_gb", "floor_cpu_seconds_per_gb", "ops_per_second")
PLAIN = {"size": 1 << 26, "block_size": 0, "lanes": 2, "security": "none", "path": "network", "memory": "host"}
# Rows as the scripts write them.
ROWS = {
    "loopback_2core": {
        "write 64 MiB": rates(*FLOORS, **PLAIN),
        "read 64 MiB, with and without CRC32C": rates(*FLOORS, "crc_gbps", "crc_cpu_seconds_per_gb", **PLAIN),
        "write 64 MiB, TLS by the secret": rates(*FLOORS, **PLAIN),
        "send 8 B, spin": rates("half_rtt_us_p50", "floor_half_rtt_us_p50", **PLAIN)},
    "peers_2core": {f"{name}, {title}": rates("gbps", failed=0) for title in ("reno", "defaults") for name in
                    ("ferry write", "ferry read", "Debian's ucx put", "ucx get", "nixl read", "mooncake write")},
    "strangers_2core": {"a flood": rates("gbps", "gbps_beside_flood")},
    "peer_memory_2core": {"pings": {"mib_above_idle": several("MiB"), "peers": 4, "lanes": 16}},
    "reliability_2core": {"A.Test: the end": {"figure": several("ms"), "worst": "max", "bound": "1400"}},
    "nccl_net_h200": {"a": {**rates("gbps", "cpu_seconds_per_gb"), "size": 4096, "comms": 4, "both": True},
                      "b": {**rates("half_rtt_us_p50", "half_rtt_us_p99"), "size": 8, "depth": 1}},
    "transfers_h200": {"contiguous: write 1048576 KiB": rates("gbps", "floor_gbps", "ring_floor_gbps", "h2d_gbps",
                                                              **PLAIN)},
    "copies_h200": {"blocks: H2D": {**rates("gbps", "ceiling_gbps", "dma_gbps"), "executor": "kernel", "direction": "H2D",
                                    "host_side": "scattered", "block_size": 16384,
                                    "bytes": 1 << 26},
                    "pipeline: pinned, pipeline, 4 streams": {
                        **rates("gbps", "seconds", "speedup", "overlap_percent"), "form": "pipeline", "bytes": 1 << 26},
                    "staged: cp.async, 2 stages": {**rates("gbps", "copy_engine_ratio", "cp_async_ratio"),
                                                   "staged_form": "cp.async", "bytes": 1 << 26},
                    "ladder: a, all anew": {"ms_per_chunk": several("ms"), "rung": "a", "document": "53 ms",
                                            "bytes": 1 << 22}},
    "unpack_h200": {
        "kernel": rates("gbps", "launch_us_per_message"),
        "rows, in order, fragments of 4096 bytes": rates("rows_gbps", "ratio", "launch_us"),
        "through the plugin, kernel: write 65536 KiB": rates("gbps", "launch_us"),
        "through the plugin, latency, kernel: write 8 B": rates("gbps", "us_p50", "us_p99"),
        "plain TCP: write 65536 KiB": rates("gbps")},
    "kernels_h200": {"rms_norm bf16 rows=8 cols=4096": {
                      "headline": True, "us": {"unit": "us", "n": 50, "median": 2, "min": 1, "max": 3, "p10": 1, "p90": 3},
                                  "rate": several("GB/s"), "ceiling_gbps": several("GB/s"),
                                  "torch eager": several("us")}},
    "python_h200": {"nano-vllm": rates("tokens_per_s", "step_ms"), "prepare": rates("us", "own_us"),
                    "staging": rates("us", "separately_us"), "push_weights": rates("gbps")},
    "nccl_2gpu": {f"{net} {place} {nccl}": {
        "operation": "all_reduce", "size": 1 << 20, "net": net, "stage": "measure", "place": place, "nccl": nccl,
        "channels": 8, "peer_channels": 8, "sockets": 64, "pinned_mib": 128, "us": several("us"),
        "cpu_seconds_per_gb": several("s/GB"), "proxy_percent": several("%"), "copiers_percent": several("%")}
        for net in ("ferry", "null", "default", "2x8c8kt") for place in ("lo", "veth")
        for nccl in (("2.28.9", "2.30.7") if (net, place) == ("ferry", "lo") else ("2.28.9",))},
}


class Tables(unittest.TestCase):
    """Each can be drawn from what its script writes, within the width of a document's line."""

    def setUp(self):
        patch = unittest.mock.patch.object(make_results.tables, "RESULTS", pathlib.Path("/nowhere"))
        patch.start()
        self.addCleanup(patch.stop)

    def test_every_table_is_drawn(self):
        tables = make_results.tables
        with tempfile.TemporaryDirectory() as folder:
            for name, rows in ROWS.items():
                result = {"form": 1, "benchmark": name, "commit": "ab" * 20, "clean": True, "machine": "a machine",
                          "date": "2026-01-02", "command": "bench/x", "n": summary.most_samples(rows),
                          "versions": {"ucx": "1"}, "rows": rows}
                self.assertEqual(summary.problems(result), [])
                (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps(result))
            with unittest.mock.patch.object(tables, "RESULTS", pathlib.Path(folder)):
                for name, (files, _) in tables.TABLES.items():
                    if not set(files) & set(ROWS):
                        continue  # also the list of files
                    with self.subTest(name):
                        text = tables.render(name)
                        self.assertIn("|---|", text)
                        self.assertTrue(any(mark in text for mark in ("(1–4)", "(1 to 4)", "(1–3)", "1.00", "1400",
                                                                      "33.6 ms")), text)
                        self.assertLessEqual(max(map(len, text.splitlines())), 120)

    def test_paths_and_kernel_builds_of_the_measuring_machine_are_not_shown(self):
        tables = make_results.tables
        result = {"commit": "ab" * 20, "machine": "1 x GPU, driver 580.1, 2 cores, Linux 6.18.44-x-v1-gpu", "date": "d",
                  "command": "bench/gpu --programs /tmp/P --parts python --python /opt/bin/python3 --out /tmp/o", "n": 3}
        text = " ".join(tables.origin(result, "a"))
        self.assertIn("2 cores, Linux 6.18.44; n = 3; `bench/gpu --parts python` →", text)

    def test_an_earlier_result_is_shown_as_one_until_there_is_another(self):
        tables = make_results.tables
        rows = {"a flood": rates("gbps", "gbps_beside_flood")}
        result = {"commit": "ab" * 20, "machine": "a machine", "date": "2026-01-02", "command": "bench/x", "n": 3,
                  "note": "of an older form", "rows": rows}
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(tables, "RESULTS", pathlib.Path(folder)):
            (tables.RESULTS / "earlier").mkdir()
            for name in ("strangers_2core", "other_2core"):
                (tables.RESULTS / f"earlier/{name}.json").write_text(json.dumps(result))
            text = " ".join(tables.render("strangers").split())
            self.assertIn("`bench/results/earlier/strangers_2core.json`. An earlier result, of an older form.", text)
            self.assertEqual(tables.sources("strangers"), ["bench/results/earlier/strangers_2core.json"])
            overview = tables.render("overview")
            self.assertIn("- `abababab` (older format): [strangers_2core](../bench/results/earlier/"
                          "strangers_2core.json),\n  [other_2core](../bench/results/earlier/other_2core.json)", overview)
            (tables.RESULTS / "strangers_2core.json").write_text(json.dumps(result))
            (tables.RESULTS / "new.json").write_text(json.dumps(result))
            self.assertNotIn("earlier", tables.render("strangers"))
            overview = tables.render("overview")
            self.assertIn("- `abababab`: [strangers_2core](../bench/results/strangers_2core.json),\n"
                          "  [new](../bench/results/new.json)", overview)
            self.assertIn("- `abababab` (older format): [other_2core]", overview)

    def test_a_contender_that_fails_is_in_the_table(self):
        rows = {"ferry write, reno": rates("gbps", failed=0), "ucx put, reno": {"failed": 5},
                "nixl write, reno": rates("gbps", failed=2)}
        text = "\n".join(make_results.tables.peers({
            "rows": rows, "commit": "ab" * 20, "date": "d", "machine": "m", "n": 3, "command": "c", "versions": {}}))
        self.assertIn("| ucx put | failed in all 5 rounds |  |", text)
        self.assertIn("| nixl write | 2 (1–4), failed in 2 of 5 rounds | 1.00 |", text)

    def test_of_other_libraries_the_fastest_way_is_shown_and_of_fault_tests_what_is_latest(self):
        head = {"commit": "ab" * 20, "date": "d", "machine": "m", "n": 3, "command": "c", "versions": {}}
        rows = {f"{name}, reno": {"gbps": several("GB/s", rate), "failed": 0} for name, rate in
                (("ferry write", 6), ("ucx put", 2), ("Debian's ucx am", 3), ("ucx get", 1), ("ferry read", 5))}
        text = "\n".join(make_results.tables.peers({**head, "rows": rows}))
        self.assertIn("| Debian's ucx am | 3 | 2.00 |", text)
        self.assertIn("| ucx get | 1 | 5.00 |", text)
        self.assertNotIn("ucx put", text)

        rows = {name: {"figure": several("ms", late), "worst": "max", "bound": bound} for name, late, bound in
                (("All/A.B/one: x", 9, "10"), ("All/A.B/two: y", 6, "5"), ("C.D: z", 1, "2"))}
        text = "\n".join(make_results.tables.reliability({**head, "rows": rows}))
        self.assertIn("| A.B | 6 | 5 |\n| C.D | 1 | 2 |\n", text)

    def test_the_best_of_all_settings_of_the_sockets_counts(self):
        rows = {f"{net} {stage}": {"operation": "all_reduce", "size": 8, "net": net, "us": several("us", us),
                                   "stage": stage, "place": "lo", "nccl": "2.28.9"}
                for net, us, stage in (("ferry", 10, "measure"), ("default", 40, "measure"), ("2x8", 20, "measure"),
                                       ("2x8", 5, "choose"), ("4x4", 1, "choose"), ("null", 2, "measure"))}
        text = "\n".join(make_results.tables.TABLES["nccl"][1]({
            "rows": rows, "commit": "ab" * 20, "date": "d", "machine": "m", "n": 1, "command": "c"}))
        self.assertIn("| all_reduce 8 B | 10 | 40 | 20 | 2.00 |", text)


# In the place of programs and of the interpreter of NIXL's wheel: its words and variables are noted.
NOTES_ITS_CALLS = """#!/bin/sh
echo "$0 $*; $NIXL_PLUGIN_DIR $NCCL_DYNAMIC_CHUNK_SIZE" >>"$(dirname "$0")/../calls"
case "$*" in *--folder*) echo "$3";; *) echo '{"gbps": 2, "half_rtt_us_p50": 4, "us_p50": 4}';; esac
exit
"""


class Pairs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.python = self.make("wheel/python")
        for build, commit in (("old", "aa" * 20), ("new", "bb" * 20)):
            self.make(f"{build}/ferry", commit)
            self.make(f"{build}/nixl/libplugin_FERRY.so", commit)
        self.standin = self.make("new/libnccl-net-tcpx-standin.so")

    def make(self, name, commit=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{NOTES_ITS_CALLS}FERRY_BUILT_FROM commit={commit} clean=yes type=RelWithDebInfo sanitizer=;")
        path.chmod(0o755)
        return path

    def compare(self, *words):
        """(exit code, lines, the JSON's rows)"""
        said, result = io.StringIO(), self.folder / "pairs.json"
        words = ["bench/pairs", "--old", f"{self.folder}/old/ferry", "--new", f"{self.folder}/new/ferry",
                 "--python", str(self.python), "--json", str(result), *words]
        with unittest.mock.patch("summary.check_history"), unittest.mock.patch("sys.argv", words), \
                contextlib.redirect_stdout(said), self.assertRaises(SystemExit) as ended:
            pairs.main()
        return ended.exception.code, said.getvalue().splitlines(), json.loads(result.read_text())["rows"]

    def compare_rates(self, new):
        """With a rate of 1 for the old program."""
        with unittest.mock.patch.object(pairs, "measure", lambda command, _: new if "/new/" in command[0] else 1):
            return self.compare("--pairs", "5", "--only", "TLS: write 64 MiB")

    def test_a_row_near_the_bound_gets_more_pairs_and_shows_ratio_interval_and_n(self):
        for new, n, holds in ((0.92, 5, False), (0.96, 35, False), (0.98, 35, True), (1.1, 5, True)):
            code, lines, rows = self.compare_rates(new)
            row = rows["TLS: write 64 MiB"]
            self.assertEqual((code, row["holds"]), (0 if holds else 1, holds))
            for ratio, key in ((new, "new_old"), (1, "old_old")):
                self.assertEqual([row[key][name] for name in ("median", "interval", "n")], [ratio, [ratio] * 2, n])
                self.assertIn(f"{ratio:.3f} (interval {ratio:.3f} to {ratio:.3f}, n = {n})", lines[0])
            self.assertEqual(lines[0].endswith("; SLOWER"), not holds)

    def test_every_row_is_measured_with_both_programs(self):
        code, _, rows = self.compare("--pairs", "2")
        self.assertEqual(code, 0)
        self.assertEqual(set(rows), {*pairs.PERF, *pairs.PLUGIN, *pairs.NIXL})
        self.assertEqual({row["new_old"]["n"] for row in rows.values()}, {2})
        calls = "\n".join(sorted(set((self.folder / "calls").read_text().splitlines()))) + "\n"
        for build in ("old", "new"):
            ferry = f"{self.folder}/{build}/ferry perf loopback "
            self.assertRegex(calls, f"{ferry}.*--tls psk --set secret=")
            self.assertRegex(calls, f"{ferry}--provider plugin:{self.standin} .*; +524288\n")
            self.assertRegex(calls, f"nixl_agents.py FERRY latency .*; .*/{build} \n")

    def test_rows_that_cannot_be_measured_are_skipped_with_the_reason(self):
        self.standin.unlink()
        self.make("old/nixl/libplugin_FERRY.so", "cc" * 20)
        code, _, rows = self.compare("--pairs", "2")
        self.assertEqual(code, 0)
        for name in pairs.PLUGIN:
            self.assertEqual(rows[name], {"skipped": f"{self.standin} is missing; build ferry_tcpx_standin"})
        for name in pairs.NIXL:
            self.assertRegex(rows[name]["skipped"], "/old/nixl/libplugin_FERRY.so and .*/old/ferry are of different")
        self.python.unlink()
        _, lines, _ = self.compare("--pairs", "2", "--only", "NIXL: write 4 KiB")
        self.assertEqual(lines, [f"NIXL: write 4 KiB: skipped: {self.python} is missing; run bench/nixl --set-up"])


class Program(unittest.TestCase):
    def test_the_built_program_says_what_it_was_built_from_in_its_file_and_by_itself(self):
        if PROGRAM is None:
            self.skipTest("no program was named")
        commit, clean, *_ = summary.built_from(PROGRAM)
        said = subprocess.run([PROGRAM, "info", "--json"], text=True, check=True, stdout=subprocess.PIPE, timeout=300)
        build = json.loads(said.stdout)["build"]
        self.assertEqual((build["commit"], build["clean"]), (commit, clean))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.main()
