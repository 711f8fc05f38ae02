#!/usr/bin/env python3
"""bench/nccl_collectives without GPUs: what it computes, and how it deals with ranks that end as they
should, do not, or hang."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "bench" / "nccl_collectives"
sys.path.insert(0, str(SCRIPT.parent))
import intervals  # noqa: E402

loader = importlib.machinery.SourceFileLoader("nccl_collectives", str(SCRIPT))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("nccl_collectives", loader))
loader.exec_module(bench)

LINE = "host:1:2 [0] NCCL INFO Using network {}"


def row(net, microseconds, **more):
    return {"case": "collectives", "net": net, "operation": "all_reduce", "size": 8, "us": microseconds,
            "stage": "measure", "place": "lo", "nccl": "own", "start": "1", **more}


def options_of(*words):
    return bench.parse_options(["--plugin", "/p.so", "--null", "/n.so", *words])


def variables(net, *words, rank=0):
    return bench.environment_of(net, options_of(*words), rank, 1, "log")


class Logic(unittest.TestCase):
    def test_sizes_have_units(self):
        self.assertEqual([bench.parse_size(text) for text in ("8", "4KiB", "1GiB")], [8, 4096, 1 << 30])

    def test_the_usual_pairs_are_nine_sizes_of_two_operations_and_three_of_two_more(self):
        pairs = bench.parse_pairs(bench.PAIRS)
        self.assertEqual([sum(pair[0] == operation for pair in pairs) for operation in bench.OPERATIONS], [9, 3, 3, 9])
        self.assertEqual(bench.parse_pairs("send_recv:8,1MiB"), [("send_recv", 8), ("send_recv", 1 << 20)])
        with self.assertRaises(SystemExit):
            bench.parse_pairs("all_of_it:8")

    def test_bus_factors_are_those_of_nccl_tests(self):
        self.assertEqual([bench.bus_factor(op, 4) for op in bench.OPERATIONS], [1.5, 0.75, 0.75, 1])

    def test_ours_is_one_variable_and_ranks_are_hosts_of_their_own(self):
        ours = variables("ferry")
        self.assertEqual(ours["NCCL_NET_PLUGIN"], "/p.so")
        for name in ("NCCL_NET", "NCCL_ENV_PLUGIN", "NCCL_MIN_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER"):
            self.assertNotIn(name, ours)
        self.assertEqual((ours["NCCL_HOSTID"], ours["LOCAL_WORLD_SIZE"]), ("host0", "1"))
        self.assertEqual(variables("ferry", rank=1)["NCCL_HOSTID"], "host1")
        self.assertEqual(variables("env")["NCCL_ENV_PLUGIN"], "/p.so")
        self.assertNotIn("NCCL_NET_PLUGIN", variables("env"))
        self.assertEqual(variables("null")["NCCL_NET_PLUGIN"], "/n.so")
        self.assertEqual(variables("null")["NCCL_PROTO"], "Simple")
        self.assertEqual(variables("ferry;FERRY_LANES=4;A=b=c")["FERRY_LANES"], "4")
        self.assertEqual(variables("ferry;A=b=c")["A"], "b=c")
        self.assertEqual(variables("ferry", "--place", "veth")["NCCL_SOCKET_IFNAME"], "fnccl")

    def test_settings_of_the_sockets_are_told_by_their_names(self):
        self.assertEqual(len(bench.SOCKETS.split(",")), 16)
        for setting in bench.SOCKETS.split(","):
            self.assertEqual(variables(setting)["NCCL_NET"], "Socket")
        theirs = variables("4x8c16ktb")
        self.assertEqual((theirs["NCCL_SOCKET_NTHREADS"], theirs["NCCL_NSOCKS_PERTHREAD"]), ("4", "8"))
        self.assertEqual((theirs["NCCL_MIN_NCHANNELS"], theirs["NCCL_NCHANNELS_PER_NET_PEER"]), ("16", "16"))
        self.assertEqual((theirs["NCCL_P2P_NET_CHUNKSIZE"], theirs["NCCL_NTHREADS"], theirs["NCCL_BUFFSIZE"]),
                         ("524288", "512", "8388608"))
        installed = variables("default")
        for name in ("NCCL_SOCKET_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_TUNER_PLUGIN"):
            self.assertNotIn(name, installed)
        with self.assertRaises(SystemExit):
            variables("4y4")

    def test_settings_of_the_shell_do_not_count_but_for_multicast(self):
        settings = {"NCCL_ALGO": "Ring", "FERRY_NCCL_DEVICES": "9", "TORCH_NCCL_BLOCKING_WAIT": "1", "KEPT": "1",
                    "NCCL_NVLS_ENABLE": "0"}
        with unittest.mock.patch.dict(os.environ, settings):
            plain = bench.plain_environment()
        self.assertEqual([name for name in settings if name in plain], ["KEPT", "NCCL_NVLS_ENABLE"])

    def test_each_rank_has_cores_of_its_own(self):
        self.assertEqual(bench.shares_of({0, 1, 2, 3}, 2), [{0, 1}, {2, 3}])
        self.assertEqual(bench.shares_of({7}, 2), [{7}, {7}])

    def test_the_network_is_read_from_the_log(self):
        text = "a\n" + LINE.format("Ferry") + "\nb"
        self.assertTrue(bench.is_right_net("ferry", bench.line_of_net(text)))
        self.assertTrue(bench.is_right_net("env;A=1", bench.line_of_net(text)))
        self.assertFalse(bench.is_right_net("4x4", bench.line_of_net(text)))
        self.assertFalse(bench.is_right_net("ferry", bench.line_of_net("nothing")))
        self.assertTrue(bench.is_right_net("null", LINE.format("Null")))

    def test_channels_and_pinned_memory_are_read_from_the_log(self):
        text = ("x NCCL INFO 10 coll channels, 10 collnet channels, 0 nvls channels, 16 p2p channels, 8 p2p channels "
                "per peer\nx alloc.h:120 Cuda Host Alloc Size 8388608 pointer 0x1\nx Host Alloc Size 8388608\n")
        self.assertEqual(bench.facts_in(text, 2), {"channels": 10, "peer_channels": 8, "pinned_mib": 8})
        self.assertEqual(bench.facts_in("", 2), {})

    def test_cpu_time_of_all_ranks_counts(self):
        one = {"operation": "send_recv", "size": 500_000_000, "calls": 4, "cpu_s": 1.0, "wrong": 0}
        merged = bench.merge_ranks([[one], [{**one, "cpu_s": 2.0, "wrong": 2}]])
        self.assertEqual((merged[0]["cpu_seconds_per_gb"], merged[0]["wrong"]), (1.5, 2))
        self.assertNotIn("cpu_s", merged[0])
        self.assertEqual(bench.merge_ranks([[one], []])[0]["cpu_seconds_per_gb"], 0.5)

    def test_threads_are_counted_by_what_they_do(self):
        before = {"1": ("NCCL Progress", 1.0), "2": ("ferry-nccl", 0.0), "3": ("python", 5.0)}
        after = {"1": ("NCCL Progress", 1.9), "2": ("ferry-nccl", 0.5), "3": ("python", 6.0),
                 "4": ("NCCL SockS", 0.25), "5": ("ferry-nccl", 1.0)}
        self.assertEqual(bench.busy_between(before, after, 1.0), {"proxy_percent": 90.0, "copiers_percent": 175.0})
        self.assertIn(str(os.getpid()), bench.busy_threads())

    def test_connections_of_this_process_are_counted(self):
        before = bench.connected_sockets()
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname()) as one:
                with server.accept()[0]:
                    self.assertEqual(bench.connected_sockets(), before + 2)
                del one

    FIRST = [row(net, us, stage="choose") for net, us in (("default", 40), ("4x4", 20), ("2x8", 10), ("1x4c8kt", 15))]

    def test_the_two_fastest_settings_of_the_first_stage_are_measured_anew(self):
        self.assertEqual(bench.chosen(self.FIRST, "lo", "own"), {("all_reduce", 8): ["2x8", "1x4c8kt"]})
        self.assertEqual(bench.chosen(self.FIRST, "veth", "own"), {})
        options = options_of("--pairs", "all_reduce:8,4KiB", "--starts", "2")
        jobs = bench.plan(options, self.FIRST)
        self.assertEqual(sorted({net for net, _ in jobs}), ["1x4c8kt", "2x8", "default", "ferry"])
        self.assertEqual(len(jobs), 8)
        self.assertEqual({net for net, _ in jobs[:4]}, {net for net, _ in jobs[4:]})
        self.assertEqual(dict(jobs)["2x8"], [("all_reduce", 8)])
        self.assertEqual(dict(jobs)["ferry"], [("all_reduce", 8), ("all_reduce", 4096)])

    def test_starts_that_are_there_already_are_not_made_again(self):
        options = options_of("--pairs", "all_reduce:8,4KiB", "--starts", "2", "--nets", "ferry")
        done = [row("ferry", 5, start=start, size=size) for start in "12" for size in (8, 4096)]
        self.assertEqual(bench.plan(options, done), [])
        self.assertEqual(bench.plan(options, done[:3]), [("ferry", [("all_reduce", 4096)])])
        # Those of another place or library are others.
        self.assertEqual(len(bench.plan(options, [dict(one, place="veth") for one in done])), 2)

    def test_rows_with_wrong_bytes_do_not_count_but_of_the_network_that_moves_none(self):
        self.assertEqual(len(bench.figures([row("ferry", 1, wrong=3), row("null", 1, wrong=3)])), 1)
        self.assertEqual(len(bench.verdict([row("ferry", 1, wrong=3), row("null", 1, wrong=3)])), 1)

    def test_intervals_hold_the_ratio_and_are_the_same_each_time(self):
        ratio, low, high = intervals.median_ratio_interval([10, 11, 12, 13, 14], [10, 10, 10, 10, 11])
        self.assertTrue(low <= ratio <= high)
        self.assertEqual(intervals.median_ratio_interval([10, 11, 12, 13, 14], [10, 10, 10, 10, 11]), (ratio, low, high))

    def test_a_summary_has_all_starts_of_a_figure(self):
        class Kept:
            def __init__(self):
                self.rows = {}

            def add(self, name, **values):
                self.rows[name] = values

        kept = Kept()
        more = {"cpu_seconds_per_gb": 1.0, "proxy_percent": 5.0, "copiers_percent": 9.0, "channels": 8, "sockets": 40}
        bench.summarize([row("ferry", 5, version="2.28.9", **more), row("ferry", 7, **more), *self.FIRST], kept)
        self.assertEqual(len(kept.rows), 5)
        ours = kept.rows["all_reduce 8 ferry"]
        self.assertEqual((ours["us"].values, ours["nccl"], ours["sockets"]), ([5, 7], "2.28.9", 40))
        self.assertIn("all_reduce 8 2x8 choosing", kept.rows)

    def test_faults_are_told(self):
        self.assertEqual(bench.verdict([row("ferry", 1, wrong=0)]), [])
        faults = bench.verdict([row("ferry", 1, wrong=3), {"net": "4x4", "error": "took too long"}])
        self.assertEqual(len(faults), 2)


class Ranks(unittest.TestCase):
    """With programs in the place of the ranks."""

    def setUp(self):
        self.options = options_of()
        self.addCleanup(setattr, bench, "start_ranks", bench.start_ranks)

    def run_case(self, net, programs, seconds=20.0):
        def start(_net, _pairs, _options, folder):
            processes = []
            for rank, program in enumerate(programs):
                out = open(os.path.join(folder, f"rank{rank}"), "w+", encoding="utf-8")
                processes.append(subprocess.Popen([sys.executable, "-c", program], stdout=out, cwd=folder,
                                                  stderr=subprocess.STDOUT, start_new_session=True))
                processes[-1].out = out
            return processes

        bench.start_ranks = start
        begin = time.monotonic()
        rows = bench.run_case(net, [], self.options, begin + seconds)
        self.assertLess(time.monotonic() - begin, seconds + 15)
        return rows

    LOG = f"open('nccl.1', 'w').write({LINE.format('Ferry')!r}); "

    def test_rows_of_the_first_rank_are_kept_with_the_network(self):
        program = self.LOG + f"print({json.dumps({'operation': 'all_reduce', 'size': 8, 'us': 5})!r})"
        rows = self.run_case("ferry", [program, "pass"])
        self.assertEqual(len(rows), 1)
        self.assertEqual((rows[0]["us"], rows[0]["net"], rows[0]["place"]), (5, "ferry", "lo"))

    def test_another_network_is_an_error(self):
        rows = self.run_case("4x4", [self.LOG, "pass"])
        self.assertIn("NCCL says of its network", rows[0]["error"])

    def test_a_rank_that_fails_is_an_error(self):
        rows = self.run_case("ferry", [self.LOG, "raise SystemExit('no luck')"])
        self.assertIn("no luck", rows[0]["error"])

    def test_ranks_that_hang_are_ended(self):
        rows = self.run_case("ferry", [self.LOG, "import time; time.sleep(1000)"], seconds=2)
        self.assertIn("took too long", rows[0]["error"])

    def test_forks_say_what_happened_in_their_files(self):
        with tempfile.TemporaryDirectory() as folder:
            def fail():
                print("said")
                raise ValueError("no luck")

            processes = [bench.RankProcess(os.path.join(folder, "rank0"), lambda: print("well")),
                         bench.RankProcess(os.path.join(folder, "rank1"), fail),
                         bench.RankProcess(os.path.join(folder, "rank2"), signal.pause)]
            self.assertTrue(bench.wait_for(processes, time.monotonic() + 30))
            bench.end_all(processes)
            self.assertEqual([process.returncode for process in processes], [0, 1, -signal.SIGKILL])
            self.assertIn("well", bench.read(folder, "rank0"))
            self.assertIn("no luck", bench.read(folder, "rank1"))

    def test_a_dry_run_says_what_would_be_started(self):
        done = subprocess.run([sys.executable, SCRIPT, "--dry-run", "--starts", "2", "--nets", "ferry,default"],
                              capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(len(bench.rows_in(done.stdout)), 4)

    def test_without_gpus_it_is_skipped(self):
        done = subprocess.run([sys.executable, SCRIPT, "--gpus", "1000"], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped", done.stdout)


class Program(unittest.TestCase):
    """The whole of it, with a torch that does nothing."""

    def run_bench(self, folder, *words):
        smi = pathlib.Path(folder) / "nvidia-smi"
        smi.write_text("#!/bin/sh\necho 'GPU 0: none'; echo 'GPU 1: none'\n", encoding="utf-8")
        smi.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}",
                       "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent / "fake_torch"),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, SCRIPT, "--rows", f"{folder}/rows", "--plugin", "/no/p.so", "--null",
                               "/no/null.so", "--pairs", "all_reduce:8;send_recv:1MiB", *words], text=True, timeout=90,
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def test_both_stages_are_run_and_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.run_bench(folder, "--stage", "choose", "--nets", "default,2x8,1x4c2kt")
            self.assertEqual(first.returncode, 1)  # of 2x8, which does not keep the others from being measured
            self.assertIn("a setting that does not work", first.stdout)
            second = self.run_bench(folder, "--starts", "2", "--nets", "ferry,null,@best")
            self.assertEqual(second.returncode, 0, second.stdout)
            rows = bench.read_rows(f"{folder}/rows")
            starts = {(row["stage"], row["net"]): set() for row in rows if "us" in row}
            for row in rows:
                if "us" in row:
                    starts[row["stage"], row["net"]].add(row["start"])
            self.assertEqual({key: len(value) for key, value in starts.items()},
                             {("choose", "default"): 1, ("choose", "1x4c2kt"): 1, ("measure", "ferry"): 2,
                              ("measure", "null"): 2, ("measure", "default"): 2, ("measure", "1x4c2kt"): 2})
            ours = next(row for row in rows if row.get("net") == "ferry")
            self.assertEqual((ours["channels"], ours["peer_channels"], ours["pinned_mib"]), (8, 4, 4))
            self.assertIn("0 starts", self.run_bench(folder, "--starts", "2", "--nets", "ferry,null,@best").stdout)


if __name__ == "__main__":
    unittest.main()
