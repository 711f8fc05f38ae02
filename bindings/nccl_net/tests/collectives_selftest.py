#!/usr/bin/env python3
"""bench/nccl_collectives without GPUs: what it computes, and how it deals with ranks that end as they
should, do not, or hang."""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time
import unittest
import unittest.mock

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "bench" / "nccl_collectives"
loader = importlib.machinery.SourceFileLoader("nccl_collectives", str(SCRIPT))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("nccl_collectives", loader))
loader.exec_module(bench)

LINE = "host:1:2 [0] NCCL INFO Using network {}"


def row(net, microseconds, **more):
    return {"case": "collectives", "net": net, "operation": "all_reduce", "size": 8, "us": microseconds, **more}


class Logic(unittest.TestCase):
    def test_sizes_have_units(self):
        self.assertEqual([bench.parse_size(text) for text in ("8", "4KiB", "1GiB")], [8, 4096, 1 << 30])
        self.assertTrue(all(bench.parse_size(text) for text in bench.SIZES.split(",")))

    def test_bus_factors_are_those_of_nccl_tests(self):
        self.assertEqual([bench.bus_factor(op, 4) for op in bench.OPERATIONS], [1.5, 0.75, 0.75, 1])

    def test_ours_comes_first_and_is_told_by_its_variables(self):
        self.assertEqual(bench.settings_of("default,4x4"), ["ferry", "ferry5", "default", "4x4"])
        ours = bench.environment_of("ferry", "/p.so", 1, "log")
        self.assertEqual(ours["NCCL_NET_PLUGIN"], "/p.so")
        self.assertNotIn("NCCL_NET", ours)
        theirs = bench.environment_of("4x8", "/p.so", 1, "log")
        self.assertEqual((theirs["NCCL_NET"], theirs["NCCL_SOCKET_NTHREADS"], theirs["NCCL_NSOCKS_PERTHREAD"]),
                         ("Socket", "4", "8"))
        self.assertNotIn("NCCL_SOCKET_NTHREADS", bench.environment_of("default", "/p.so", 1, "log"))
        self.assertEqual(bench.environment_of("ferry5", "/p.so", 1, "log")["FERRY_NCCL_DEVICES"], "5")

    def test_the_sockets_get_what_our_plugin_asks_for(self):
        plain = bench.environment_of("2x8", "/p.so", 1, "log")
        asked = bench.environment_of("2x8+asked", "/p.so", 1, "log")
        tuned = bench.environment_of("2x8+asked+tuner", "/p.so", 1, "log")
        for name in ("NCCL_MIN_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_P2P_NET_CHUNKSIZE"):
            self.assertNotIn(name, plain)
            self.assertIn(name, asked)
        self.assertNotIn("NCCL_TUNER_PLUGIN", asked)
        self.assertEqual((tuned["NCCL_TUNER_PLUGIN"], tuned["NCCL_NET"]), ("/p.so", "Socket"))
        self.assertTrue(all(name in bench.SOCKETS for name in ("default,", "+asked", "+asked+tuner")))

    def test_settings_of_the_shell_do_not_count(self):
        settings = {"NCCL_ALGO": "Ring", "FERRY_NCCL_DEVICES": "9", "TORCH_NCCL_BLOCKING_WAIT": "1", "KEPT": "1"}
        with unittest.mock.patch.dict(os.environ, settings):
            plain = bench.plain_environment()
        self.assertEqual([name for name in settings if name in plain], ["KEPT"])

    def test_the_sockets_have_our_tuner_with_each_number_of_them(self):
        for numbers in ("default", "2x8", "4x4", "8x8"):
            for more in ("", "+asked", "+asked+tuner"):
                self.assertIn(numbers + more, bench.SOCKETS.split(","))

    def test_the_network_is_read_from_the_log(self):
        text = "a\n" + LINE.format("Ferry") + "\nb"
        self.assertTrue(bench.is_right_net("ferry", bench.line_of_net(text)))
        self.assertFalse(bench.is_right_net("4x4", bench.line_of_net(text)))
        self.assertFalse(bench.is_right_net("ferry", bench.line_of_net("nothing")))

    def test_ours_is_compared_with_the_best_of_the_others(self):
        table = bench.compare([row("ferry", 10), row("default", 40), row("4x4", 20), {"case": "ddp"}])
        self.assertEqual(len(table), 1)
        self.assertEqual((table[0]["best_socket"], table[0]["ratio"]), ("4x4", 2.0))
        self.assertEqual(bench.compare([row("ferry", 10)]), [])

    def test_several_starts_count_by_their_median(self):
        table = bench.compare([row("ferry", us) for us in (10, 90, 12)] + [row("default", us) for us in (24, 30, 1)])
        self.assertEqual((table[0]["us"], table[0]["best_socket_us"], table[0]["ratio"]), (12, 24, 2.0))
        self.assertEqual(table[0]["starts"], 3)

    def test_the_default_is_the_headline_and_five_devices_stand_beside_it(self):
        table = bench.compare([row("ferry", 20), row("ferry5", 10), row("default", 40), row("4x4+asked", 30)])
        self.assertEqual((table[0]["ratio"], table[0]["best_socket"], table[0]["ratio_five_devices"]),
                         (1.5, "4x4+asked", 3.0))

    def test_losses_agree_or_do_not(self):
        def of(net, losses):
            return {"case": "ddp", "net": net, "losses": losses}

        same = bench.compare_losses([of("ferry", [2.0, 1.0]), of("default", [2.0, 1.0])])
        self.assertTrue(same["identical"] and same["agrees"])
        other = bench.compare_losses([of("ferry", [2.0, 1.0]), of("default", [2.0, 1.1])])
        self.assertFalse(other["agrees"])
        self.assertIsNone(bench.compare_losses([of("ferry", [1.0])]))

    def test_cases_that_come_later_have_time_kept_for_them(self):
        self.assertEqual([bench.reserved_for(case, "collectives,ddp,killed") for case in
                          ("collectives", "ddp", "killed")], [4, 2, 0])

    def test_faults_are_told(self):
        self.assertEqual(bench.verdict([row("ferry", 1, wrong=0), {"case": "killed", "noticed": True}]), [])
        faults = bench.verdict([row("ferry", 1, wrong=3), {"case": "killed", "net": "ferry", "noticed": False},
                                {"case": "ddp", "net": "4x4", "error": "took too long"}])
        self.assertEqual(len(faults), 3)


class Ranks(unittest.TestCase):
    """With programs in the place of the ranks."""

    def setUp(self):
        self.options = argparse.Namespace(gpus=2)
        self.addCleanup(setattr, bench, "start_ranks", bench.start_ranks)

    def run_case(self, case, net, programs, seconds=20.0):
        def start(_case, _net, _options, folder):
            processes = []
            for rank, program in enumerate(programs):
                out = open(os.path.join(folder, f"rank{rank}"), "w+", encoding="utf-8")
                processes.append(subprocess.Popen([sys.executable, "-c", program], stdout=out, cwd=folder,
                                                  stderr=subprocess.STDOUT, start_new_session=True))
                processes[-1].out = out
            return processes

        bench.start_ranks = start
        begin = time.monotonic()
        rows = bench.run_case(case, net, self.options, begin + seconds)
        self.assertLess(time.monotonic() - begin, seconds + 15)
        return rows

    LOG = f"open('nccl.1', 'w').write({LINE.format('Ferry')!r}); "

    def test_rows_of_the_first_rank_are_kept_with_the_network(self):
        program = self.LOG + f"print({json.dumps(row('x', 5))!r})"
        rows = self.run_case("collectives", "ferry", [program, "pass"])
        self.assertEqual(len(rows), 1)
        self.assertEqual(rows[0]["us"], 5)
        self.assertIn("Using network Ferry", rows[0]["network"])

    def test_another_network_is_an_error(self):
        rows = self.run_case("collectives", "4x4", [self.LOG, "pass"])
        self.assertIn("NCCL says of its network", rows[0]["error"])

    def test_a_rank_that_fails_is_an_error(self):
        rows = self.run_case("ddp", "ferry", [self.LOG, "raise SystemExit('no luck')"])
        self.assertIn("no luck", rows[0]["error"])

    def test_ranks_that_hang_are_ended(self):
        rows = self.run_case("ddp", "ferry", [self.LOG, "import time; time.sleep(1000)"], seconds=2)
        self.assertEqual(rows[0]["error"], "took too long")

    DIE = "import os, time; time.sleep(3); os.kill(os.getpid(), 9)"

    def test_ranks_that_notice_a_killed_one_are_well(self):
        program = self.LOG + "import time; print('in flight', flush=True); time.sleep(6); raise SystemExit('ncclRemoteError: gone')"
        rows = self.run_case("killed", "ferry", [program, self.DIE])
        self.assertTrue(rows[0]["noticed"])
        self.assertEqual(rows[0]["exit_statuses"], [1])
        self.assertLessEqual(rows[0]["seconds_to_error"], rows[0]["seconds_to_end"])
        self.assertEqual(rows[0]["said"], ["ncclRemoteError: gone"])

    def test_ranks_that_end_without_a_word_have_not_noticed(self):
        program = self.LOG + "import time; print('in flight', flush=True); time.sleep(6); raise SystemExit(1)"
        rows = self.run_case("killed", "ferry", [program, self.DIE])
        self.assertFalse(rows[0]["noticed"])

    def test_ranks_that_do_not_notice_are_ended(self):
        program = self.LOG + "import time; print('in flight', flush=True); time.sleep(1000)"
        rows = self.run_case("killed", "ferry", [program, self.DIE], seconds=8)
        self.assertFalse(rows[0]["noticed"])

    def test_without_gpus_it_is_skipped(self):
        done = subprocess.run([sys.executable, SCRIPT, "--gpus", "1000"], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped", done.stdout)


if __name__ == "__main__":
    unittest.main()
