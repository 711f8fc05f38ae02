#!/usr/bin/env python3
"""gpu_check puts the kernels' times beside torch's, and loses none where a step fails."""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # beside the script
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"
LOADER = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", LOADER))
LOADER.exec_module(gpu_check)
sys.path.insert(0, str(SCRIPT.parent.parent / "bench"))
LOADER = importlib.machinery.SourceFileLoader("bench_gpu", str(SCRIPT.parent.parent / "bench" / "gpu"))
bench_gpu = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_gpu", LOADER))
LOADER.exec_module(bench_gpu)

import summary  # noqa: E402

NORM = "rms_norm bf16 rows=8 cols=64"
PREFILL = "attention_prefill bf16 tokens=16, {}"


def ours(name, **more):
    return {"name": name, "op": name.split()[0], "variant": "", "us": 10.0, "gbps": 1000.0, "tflops": None,
            "ceiling_ratio": 0.5, **more}


class Writing(unittest.TestCase):
    """What bench/gpu makes of what run_kernels found."""

    def fault(self, tests=None, **found):
        results = {"tests": {"ferry_kernels_test": {"exit": 0, "passed": 9, **(tests or {})}},
                   "kernels": {"exit": 0, "ours": [ours(NORM)], "torch": [{"names": [NORM], "us": 1.0}],
                               "sanitizers": {"memcheck": {"exit": 0, "summary": "0 errors"}}, **found}}
        try:
            bench_gpu.check_kernels(results)
        except bench_gpu.Failed as failed:
            return str(failed)
        return ""

    def test_what_failed_is_not_written(self):
        self.assertEqual(self.fault(), "")
        self.assertIn("the kernels' tests", self.fault({"exit": 1}))
        self.assertIn("the kernels' tests", self.fault({"passed": 0}))
        self.assertIn("kernel-bench: exit 1, 1 rows", self.fault(exit=1))
        self.assertIn("kernel-bench: exit 0, 0 rows", self.fault(ours=[]))
        self.assertIn("1 rows of kernels", self.fault(ours=[ours(NORM, error="no memory")]))
        self.assertIn("no compiler", self.fault(torch=[{"names": [NORM], "error": "no compiler"}]))
        self.assertIn("memcheck", self.fault(sanitizers={"memcheck": {"exit": 9, "summary": "1 error"}}))
        for skipped in ("skipped: compute-sanitizer is not installed",
                        {"memcheck": {"exit": 1, "summary": "skipped: Device not supported"}}):
            self.assertEqual(self.fault(sanitizers=skipped), "")


    def test_each_bench_of_copies_has_rows(self):
        # What the program prints with each option; the last one without any.
        rows = {"--pipeline": {"memory": "pinned", "form": "pipeline", "streams": 2, "seconds": 1, "speedup": 2,
                               "overlap_percent": 50},
                "--staged": {"staged_form": "cp.async", "stages": 2, "copy_engine_ratio": 1, "cp_async_ratio": 1},
                "--ladder": {"rung": "a", "what": "all anew", "fragment_bytes": 4096, "chunks": 8, "ms_per_chunk": 1,
                             "their_ms_per_chunk": 0.53},
                "--json": {"direction": "H2D", "executor": "dma", "host_side": "scattered", "block_size": 4096,
                           "ceiling_gbps": 1}}

        def rows_of(_, words, __):
            return [{"bytes": 1 << 22, "gbps": 1, **next(row for option, row in rows.items() if option in words)}]

        starts = bench_gpu.Starts()
        with unittest.mock.patch.object(bench_gpu, "rows_of", rows_of):
            for _ in range(2):
                bench_gpu.copies(None, starts, argparse.Namespace(rounds=1))
        self.assertEqual({name.split(":")[0] for name in starts.rows}, set(gpu_check.BENCHES))
        for row in starts.rows.values():
            self.assertEqual([fault for fact in row["facts"].items() for fault in summary.value_problems(*fact)], [])
        self.assertEqual(starts.rows["ladder: a, all anew"]["values"]["ms_per_chunk"], ([1, 1], "ms"))


    def test_what_goes_through_the_plugin_has_rows_and_small_messages_their_latency(self):
        seen = {}

        def rows_of(_, words, what, variables=None):
            if "copy-bench" in words:
                return [{"unpack": "kernel", "fragment_bytes": 4096, "bytes": 1 << 26, "messages": 128, "gbps": 1,
                         "dma_ratio": 1, "read_us_per_message": 1, "launch_us_per_message": 1}]
            seen[what] = (words, variables)
            sizes = [8, 524288] if "latency" in what else [1 << 26]
            return [{"op": "write", "size": size, "block_size": 0, "lanes": 8, "path": "network", "memory": "cuda:0",
                     "gbps": 1, "seconds_p50": 1e-5, "seconds_p99": 2e-5} for size in sizes]

        starts = bench_gpu.Starts()
        with unittest.mock.patch.object(bench_gpu, "rows_of", rows_of):
            for _ in range(2):
                bench_gpu.unpack(pathlib.Path("/nowhere"), starts, argparse.Namespace(rounds=1))
        for what, (words, variables) in seen.items():
            through = what.startswith("through the plugin")
            provider = words[words.index("--provider") + 1]
            self.assertTrue(provider.startswith("plugin:") if through else provider == "tcp", what)
            self.assertEqual("FERRY_STANDIN_SPREAD" in variables, "scattered" in what)
        self.assertEqual(len(seen), len(gpu_check.THROUGH_PLUGIN) + len(gpu_check.BESIDE_PLUGIN))
        self.assertEqual(starts.rows["through the plugin, latency, kernel: write 8 B"]["values"]["us_p50"],
                         ([10, 10], "us"))
        self.assertIn("through the plugin, latency, dma: write 512 KiB", starts.rows)
        self.assertNotIn("us_p50", starts.rows["through the plugin, kernel, depth 4: write 65536 KiB"]["values"])
        self.assertIn("plain TCP, depth 4: write 65536 KiB", starts.rows)

    def test_each_start_is_written_and_a_wrong_one_leaves_nothing(self):
        def one_start(_, starts, __):
            if starts.rows:
                raise bench_gpu.Failed("wrong bytes")
            starts.add("row", {}, {"gbps": (1, "GB/s")})

        written = []
        made = unittest.mock.Mock(result={"rows": {}})
        made.add.side_effect = lambda name, **_: made.result["rows"].update({name: {}})
        made.write.side_effect = lambda: written.append(list(made.result["rows"]))
        options = argparse.Namespace(programs=".", starts=3, out=None)
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.dict(bench_gpu.ONE_START, {"copies": one_start}), \
                unittest.mock.patch.object(bench_gpu, "Summary", lambda *_: made):
            made.path = pathlib.Path(folder) / "copies_gpu.json"
            made.path.touch()
            with self.assertRaisesRegex(bench_gpu.Failed, "wrong bytes"):
                bench_gpu.measure("copies", options)
            self.assertFalse(made.path.exists())
        self.assertEqual(written, [["row"]])

    def python_rows(self, absent, nano_exit, groups=4):
        """Rows of the part "python"; with a nano-vllm that ends so, or none, and so many groups of custom_mlp."""
        names = ("correctness", "speed", "memory", "profile")
        row = {"name": "gated", "dtype": "bf16", "tolerance": 1e-2, "error": 1e-3, "us": 1, "torch_us": 2,
               "result_bytes": 1, "peak_bytes": 1, "torch_peak_bytes": 2}

        def run(command, **_):
            words = list(map(str, command))
            code, said = 0, '{"devices": ["cuda:0"], "gbps": 1}'
            if "-c" in words:
                said = absent
            elif "tensorferry.nanovllm.custom_mlp" in words:
                file = pathlib.Path(words[words.index("--json") + 1])
                file.write_text(json.dumps({name: [row] for name in names[:groups]}), encoding="utf-8")
            elif "-m" in words:
                code, said = nano_exit, "why"
            return argparse.Namespace(returncode=code, stdout=said)

        made = unittest.mock.Mock(rows={}, result={"rows": {}})
        made.add.side_effect = lambda name, **row: made.rows.update({name: row})
        with unittest.mock.patch.object(bench_gpu.subprocess, "run", run), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            starts = bench_gpu.Starts()
            bench_gpu.python(None, starts, argparse.Namespace(python="python3"))
            starts.into(made)
        return made.rows, said.getvalue()

    def test_a_nano_vllm_that_fails_is_a_failure_and_one_that_is_absent_is_named(self):
        rows, said = self.python_rows("nano-vllm is not installed", 1)
        self.assertIn("left out: nano-vllm: nano-vllm is not installed", said)
        self.assertEqual(sum(name.startswith("push_weights") for name in rows), 4)
        with self.assertRaisesRegex(bench_gpu.Failed, "nanovllm.bench.*exit 1: why"):
            self.python_rows("", 1)

    def test_the_groups_of_custom_mlp_have_rows_and_none_is_skipped(self):
        rows, _ = self.python_rows("nano-vllm is not installed", 1)
        self.assertEqual(rows["custom_mlp, speed: gated"]["speedup"].to_json()["median"], 2)
        self.assertEqual(sum(name.startswith("custom_mlp") for name in rows), 3)
        facts = [fact for row in rows.values() for fact in row.items() if not hasattr(fact[1], "to_json")]
        self.assertEqual([fault for fact in facts for fault in summary.value_problems(*fact)], [])
        with self.assertRaisesRegex(bench_gpu.Failed, "skipped a group"):
            self.python_rows("nano-vllm is not installed", 1, groups=3)


class Merging(unittest.TestCase):
    def test_baselines_are_found_by_the_names_of_our_rows(self):
        torch = [{"names": [NORM], "op": "rms_norm", "baseline": "eager", "us": 30.0},
                 {"names": [NORM], "op": "rms_norm", "baseline": "compile", "us": 12.0},
                 {"names": [NORM], "op": "rms_norm", "baseline": "F.rms_norm", "us": 11.0},
                 {"names": ["another"], "op": "rms_norm", "baseline": "eager", "us": 1.0}]
        row, = gpu_check.merge_kernels([ours(NORM)], torch)
        self.assertEqual(row["torch_us"], {"eager": 30.0, "compile": 12.0, "F.rms_norm": 11.0})
        line = gpu_check.line_of(row)
        for part in (NORM, "us 10", "gbps 1000", "eager 30", "compile 12", "F.rms_norm 11"):
            self.assertIn(part, line)

    def test_one_baseline_serves_all_variants(self):
        names = [PREFILL.format("1 stage"), PREFILL.format("2 stages")]
        torch = [{"op": "matmul", "baseline": "cuBLAS bf16", "tflops": 800.0},
                 {"names": names, "op": "attention_prefill", "baseline": "SDPA cuDNN", "us": 5.0},
                 {"names": names, "op": "attention_prefill", "baseline": "SDPA flash", "us": 7.0}]
        rows = gpu_check.merge_kernels([ours(name, tflops=200.0, ceiling_ratio=None) for name in names], torch)
        for row in rows:
            self.assertEqual(row["ceiling_ratio"], 0.25)  # of cuBLAS's product
            self.assertIn("SDPA cuDNN 5", gpu_check.line_of(row))
            self.assertIn("tflops 200", gpu_check.line_of(row))

    def test_a_baseline_that_failed_is_kept_with_its_reason(self):
        row, = gpu_check.merge_kernels(
            [ours(NORM)], [{"names": [NORM], "op": "rms_norm", "baseline": "compile", "error": "no compiler"}])
        self.assertEqual(row["torch_errors"], {"compile": "no compiler"})
        self.assertIn("compile no compiler", gpu_check.line_of(row))

    def test_a_row_of_ours_that_failed_says_so(self):
        row, = gpu_check.merge_kernels([{"name": NORM, "op": "rms_norm", "variant": "", "error": "out of memory"}], [])
        self.assertIn("error out of memory", gpu_check.line_of(row))

    def test_a_line_that_was_cut_off_is_left_out(self):
        self.assertEqual(gpu_check.json_rows('noise\n{"a": 1}\n{"b": \n'), [{"a": 1}])


class Steps(unittest.TestCase):
    def steps(self, program):
        """What run_kernels makes of programs that are this shell script, and what it prints."""
        self.saved = []
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / "run"
            run.write_text("#!/bin/sh\n" + program, encoding="utf-8")
            run.chmod(0o755)
            results = {"tests": {}, "sanitizers": {}}
            limits = {"tests": 20, "ours": 20, "list": 20, "torch": 2, "sanitizer": 20}
            with contextlib.redirect_stdout(io.StringIO()) as said:
                ok = gpu_check.run_kernels(pathlib.Path(folder), results, limits,
                                           lambda: self.saved.append(json.dumps(results)))
                gpu_check.print_table({**results, "benches": {}, "transfers": {}})
            json.dumps(results)
            return ok, results, said.getvalue()

    def test_tests_that_fail_do_not_lose_the_times(self):
        rows = "\n".join(json.dumps(row) for row in ({"device": "a GPU"}, ours(NORM)))
        ok, results, said = self.steps(f"""
case $1 in
  ferry_kernels_test) echo "[  PASSED  ] 3 tests."; exit 1 ;;
  ferry) echo '{rows}' ;;
esac
""")
        self.assertFalse(ok)
        self.assertEqual(results["tests"]["ferry_kernels_test"]["exit"], 1)
        self.assertEqual(results["kernels"]["device"], {"device": "a GPU"})
        self.assertEqual([row["name"] for row in results["kernels"]["merged"]], [NORM])
        self.assertIn("gbps 1000", said)
        self.assertEqual(len(self.saved), 4)  # after each step
        self.assertEqual([NORM in saved for saved in self.saved], [False, True, True, True])

    def test_times_that_fail_do_not_lose_the_tests(self):
        ok, results, said = self.steps("""
case $1 in
  ferry_kernels_test) echo "[  PASSED  ] 3 tests." ;;
  ferry) echo "ferry kernel-bench: no GPU" >&2; exit 2 ;;
esac
""")
        self.assertFalse(ok)
        self.assertEqual(results["tests"]["ferry_kernels_test"]["passed"], 3)
        self.assertEqual(results["kernels"]["merged"], [])
        self.assertIn("no GPU", results["kernels"]["torch"][0]["error"])
        self.assertIn("no GPU", said)

    def test_what_torch_could_not_measure_is_a_failure(self):
        rows = "\n".join(json.dumps(row) for row in ({"device": "a GPU"}, ours(NORM)))
        well = {"names": [NORM], "op": "rms_norm", "baseline": "eager", "us": 30.0}
        failed = {"names": [NORM], "op": "rms_norm", "baseline": "compile", "error": "no compiler"}
        programs = f"""
case $1 in
  ferry_kernels_test) echo "[  PASSED  ] 3 tests."; echo "ERROR SUMMARY: 0 errors" ;;
  ferry) echo '{rows}' ;;
esac
"""
        for torch, expected in (([well], True), ([well, failed], False), ([failed], False), ([], False),
                                ([{"device": "a GPU"}], False)):
            with unittest.mock.patch.object(gpu_check, "run_kernels_torch", return_value=torch), \
                    unittest.mock.patch.object(gpu_check, "run_sanitizers", return_value=True):
                self.assertEqual(self.steps(programs)[0], expected, torch)

    def test_what_takes_too_long_ends_with_all_that_it_started(self):
        code, said, _ = gpu_check.finish(["/bin/sh", "-c", "echo begun; sleep 100 & sleep 100"], 0.5)
        self.assertEqual((code, said), (124, "begun\n"))

    def test_what_cannot_be_killed_is_left_alone(self):
        # A process in a session of its own holds the pipe, as one would that hangs in the driver.
        gpu_check.GONE_SECONDS = 0.3
        holder = "import os, time; print(os.getpid(), flush=True); os.setsid(); time.sleep(60)"
        code, said, why = gpu_check.finish(
            ["/bin/sh", "-c", f"echo begun; {sys.executable} -c '{holder}' & sleep 60"], 1)
        gpu_check.GONE_SECONDS = 15
        begun, holds = said.split()
        os.kill(int(holds), signal.SIGKILL)
        self.assertEqual((code, begun, why), (124, "begun", ""))

    def test_all_steps_of_the_kernels_end_in_time(self):
        limits = gpu_check.KERNEL_LIMITS
        self.assertLess(sum(limits.values()) + limits["sanitizer"], 460)

    def test_a_device_that_the_sanitizer_does_not_know_is_no_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in (("run", "exit 1"), ("compute-sanitizer", "echo 'Error: Device not supported'; exit 1")):
                program = pathlib.Path(folder) / name
                program.write_text("#!/bin/sh\n" + lines + "\n", encoding="utf-8")
                program.chmod(0o755)
            results = {}
            with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
                self.assertTrue(gpu_check.run_sanitizers(pathlib.Path(folder), results))
        self.assertEqual(results["sanitizers"]["memcheck"]["summary"], "skipped: Device not supported")


class Outcomes(unittest.TestCase):
    """What counts as a failure, with shell scripts in the place of the programs."""

    SUMMARY = "========= ERROR SUMMARY: 0 errors"

    def outcome(self, step, **programs):
        """What step(folder, results) returns, and the results; programs: name and shell script."""
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in programs.items():
                program = pathlib.Path(folder) / name.replace("_", "-")
                program.write_text("#!/bin/sh\n" + lines + "\n", encoding="utf-8")
                program.chmod(0o755)
            results = {"tests": {}, "sanitizers": {}, "benches": {}, "transfers": {}}
            with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"), \
                    contextlib.redirect_stdout(io.StringIO()):
                return step(pathlib.Path(folder), results), results

    def gtest(self, lines):
        return self.outcome(lambda folder, results: gpu_check.run_tests(folder, results, ["some_test"], 20), run=lines)

    def test_tests_that_pass_are_well(self):
        self.assertTrue(self.gtest("echo '[  PASSED  ] 3 tests.'")[0])

    def test_no_test_that_ran_is_a_failure(self):
        for said in ("", "[  PASSED  ] 0 tests.", "[  SKIPPED ] 4 tests"):
            self.assertFalse(self.gtest(f"echo '{said}'")[0], said)

    def sanitizers(self, lines, limit=20):
        return self.outcome(lambda folder, results: gpu_check.run_sanitizers(folder, results, limit=limit),
                            run="exit 0", compute_sanitizer=lines)

    def test_a_sanitizer_that_ends_and_finds_nothing_is_well(self):
        self.assertTrue(self.sanitizers(f"echo '[  PASSED  ] 3 tests.'; echo '{self.SUMMARY}'")[0])

    def test_a_sanitizer_that_is_cut_off_is_a_failure(self):
        ok, results = self.sanitizers("echo '[  PASSED  ] 3 tests.'; sleep 60", limit=0.5)
        self.assertFalse(ok)
        self.assertEqual(results["sanitizers"]["memcheck"]["summary"], "cut off after 0.5 s")

    def test_a_sanitizer_that_watched_no_test_is_a_failure(self):
        ok, results = self.sanitizers(f"echo '[  PASSED  ] 0 tests.'; echo '{self.SUMMARY}'")
        self.assertFalse(ok)
        self.assertEqual(results["sanitizers"]["racecheck"]["summary"], "no test ran")

    def test_a_sanitizer_without_a_summary_is_a_failure(self):
        self.assertFalse(self.sanitizers("echo '[  PASSED  ] 3 tests.'")[0])

    def test_benchmarks_that_measure_nothing_are_a_failure(self):
        for step in (gpu_check.run_benches, gpu_check.run_transfers):
            self.assertFalse(self.outcome(lambda folder, results, step=step: step(folder, results, 1), run="exit 0")[0])
            said = """echo '{"verified": true}'"""
            self.assertTrue(self.outcome(lambda folder, results, step=step: step(folder, results, 1), run=said)[0])

    def unpack(self, program, limit=20):
        rows = '{"verified": true, "gbps": 1}'

        def step(folder, results):
            script = folder / "nccl_check"
            script.write_text(program, encoding="utf-8")
            return gpu_check.run_unpack(folder, results, 1, script, limit)

        return self.outcome(step, run=f"echo '{rows}'")

    def test_nccl_with_the_stand_in_ends_in_time(self):
        self.assertTrue(self.unpack("""print('{"op": "all_reduce", "verified": true}')""")[0])
        ok, results = self.unpack(
            """import time; print('{"op": "all_reduce", "verified": true}', flush=True); time.sleep(60)""", limit=2)
        self.assertFalse(ok)
        self.assertEqual(len(results["nccl_standin"]), 1)

    def ended(self, *words):
        with unittest.mock.patch.object(sys, "argv", ["gpu_check", *words]), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
                self.assertRaises(SystemExit) as end:
            gpu_check.main()
        return end.exception.code

    def test_a_part_that_is_misspelt_is_wrong_usage(self):
        self.assertEqual(self.ended("--parts", "test"), 2)


if __name__ == "__main__":
    unittest.main()
