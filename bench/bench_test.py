#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of gradwire-bench hooks, ddp, network, codecs and collectives: that they measure what they are asked for, count bytes as the documentation does,
and refuse what is wrong in one line. bench_test.py PROGRAM [--no-torch] [PYTHON with torch, for the peers]"""
import json
import math
import os
import subprocess
import sys
import unittest

PROGRAM, PEERS = "", ""
BYTES = 64 << 10
VALUES = BYTES // 4
TEN = ["allreduce", "fp16_compress", "bf16_compress", "quantize_per_tensor", "quantize_per_channel", "power_sgd",
       "power_sgd_rank2", "batched_power_sgd", "batched_power_sgd_rank2", "noop"]


def bench(*arguments):
    # Generous: it only ends what hangs.
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=240)


class Bench(unittest.TestCase):
    def lines(self, *arguments):
        done = bench(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def measured(self, command, *arguments):
        """The lines of a short run, whose figures are in order."""
        lines = self.lines(command, "--bytes", str(BYTES), "--rounds", "1", "--no-pin", *arguments)
        for line in lines:
            self.assertEqual((line["benchmark"], line["bytes"]), (command, BYTES))
            self.assertGreater(line["samples"], 1)
            self.assertLess(0, line["p10_us"])
            self.assertLessEqual(line["p10_us"], line["median_us"])
            self.assertLessEqual(line["median_us"], line["p90_us"])
        return lines

    def need_peers(self):
        if not PEERS:
            self.skipTest("there is no Python with torch")

    def refused(self, part, *arguments):
        done = bench(*arguments)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(part, done.stderr)


class Ddp(Bench):
    def test_a_step_is_measured_alone_and_with_ddp_with_gradients_that_stay_and_that_are_given_up(self):
        for apart in ((), ("--apart",)):
            self.check("ddp", "--rounds", "1", "--steps", "1", "--batch", "1", "--no-pin", "--bucket-cap-mb", "4", *apart)

    def check(self, *arguments):
        lines = self.lines(*arguments)
        self.assertEqual([line["contestant"] for line in lines],
                         ["gradwire shm" + way + none for none in ("", ", set_to_none")
                          for way in (", a barrier alone", ", gradient_as_bucket_view", "", ", fused step")])
        for line in lines:
            self.assertEqual((line["benchmark"], line["world"], line["pairs"]), ("ddp", 2, 1))
            self.assertEqual(line["apart"], "--apart" in arguments)
            self.assertAlmostEqual(line["ratio"], line["ddp_ms"] / line["alone_ms"], places=6)

    def test_a_step_is_measured_with_and_without_the_recorder(self):
        done = bench("ddp", "--recorder", "--rounds", "2", "--steps", "2", "--batch", "1", "--no-pin")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line for line in done.stdout.splitlines() if line.startswith("gradwire shm")]
        self.assertEqual(len(rows), 3, done.stdout)
        for row in rows:
            self.assertRegex(row, r"\d ms +\d+\.\d\d ms +[+-]\d+\.\d\d% \[")
        self.refused("--recorder", "ddp", "--recorder", "--json")


class Network(Bench):
    def over_network(self, *arguments):
        done = bench("network", "--rounds", "1", "--rate", "1gbit", "--json", *arguments)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_ranks_of_hosts_in_any_order_send_a_bucket_once_a_host(self):
        size = 2 << 20
        for placement in ("contiguous", "round-robin"):
            plain, fp16 = self.over_network("--hook", "allreduce,fp16_compress", "--bytes", str(size), "--backend", "hybrid",
                                            "--ranks-per-host", "2", "--placement", placement)
            # Every rank its share of the bucket; the first of a host all of it, compressed.
            self.assertEqual([plain["sent_bytes"], fp16["sent_bytes"]], [size // 2] * 2)
            for line, sent in ((plain, 2 * size), (fp16, size)):
                self.assertEqual((line["placement"], line["sent_bytes_of_all"]), (placement, sent))
                self.assertGreaterEqual(line["wire_bytes"], sent)
                self.assertLessEqual(line["wire_bytes"], 1.05 * sent)
            self.assertEqual(fp16["compression"], 2)

    def test_bytes_on_the_link_are_those_of_the_formulas(self):
        size = 4 << 20
        lines = self.over_network("--hook", "allreduce,fp16_compress", "--bytes", str(size))
        self.assertEqual([(line["benchmark"], line["backend"], line["hosts"]) for line in lines], [("network", "gloo", 2)] * 2)
        for line, sent in zip(lines, [size, size // 2]):
            self.assertEqual(line["sent_bytes"], sent)
            # Of both hosts; headers and acknowledgements come on top.
            self.assertGreaterEqual(line["wire_bytes"], 2 * sent)
            self.assertLessEqual(line["wire_bytes"], 1.05 * 2 * sent)

    def test_collectives_beside_the_peers(self):
        self.need_peers()
        lines = self.over_network("--collective", "all_reduce,barrier", "--bytes", "4Ki", "--backend", "hybrid", "--peers",
                                  "--python", PEERS)
        self.assertEqual([(line["collective"], line["backend"], line["hosts"], line["rate"]) for line in lines],
                         [(collective, "hybrid", 2, "1gbit") for collective in ("all_reduce", "barrier")])
        for line in lines:
            self.assertEqual(sorted(line["peers"]), ["Gloo (PyTorch)", "OpenMPI"])
            for peer in line["peers"].values():
                self.assertGreater(peer["ratio"], 0)

    def test_what_is_wrong(self):
        for option, value in (("--hosts", "1"), ("--placement", "anywhere")):
            done = bench("network", option, value)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(option, done.stderr)


class Codecs(Bench):
    def test_both_directions_with_the_bytes_of_the_encoding(self):
        got = {(line["codec"], line["direction"]): line["encoded_bytes"]
               for line in self.measured("codecs", "--codec", "fp16,int4:block=64,rounding=stochastic,top_k:ratio=0.01")}
        sizes = {"fp16": 2 * VALUES, "int4:block=64,rounding=stochastic": 4 * VALUES // 64 + VALUES // 2,
                 "top_k:ratio=0.01": 8 * math.ceil(VALUES / 100)}
        self.assertEqual(got, {(codec, direction): size for codec, size in sizes.items()
                               for direction in ("encode", "decode")})

    def test_products_of_power_sgd(self):
        lines = self.measured("codecs", "--codec", "power_sgd:rank=4")
        self.assertEqual([line["direction"] for line in lines], ["encode", "decode", "step"])
        self.assertEqual({line["encoded_bytes"] for line in lines}, {4 * 4 * 2 * 128})  # one matrix of 128 x 128

    def test_multiples_of_memcpy_belong_to_the_times(self):
        for line in self.measured("codecs", "--codec", "bf16"):
            self.assertLessEqual(line["memcpys_low"], line["memcpys"])
            self.assertLessEqual(line["memcpys"], line["memcpys_high"])
            self.assertAlmostEqual(line["gbps"], BYTES / line["median_us"] / 1e3, places=6)

    def test_what_is_wrong(self):
        self.refused("zip", "codecs", "--codec", "zip")
        self.refused("colour", "codecs", "--codec", "int8:colour=red")
        self.refused("colour", "codecs", "--codec", "power_sgd:colour=red")
        self.refused("at least 1", "codecs", "--codec", "power_sgd:rank=0")
        self.refused("3", "codecs", "--bytes", "3")
        self.refused("25Zi", "codecs", "--bytes", "25Zi")
        self.refused("/no/python", "codecs", "--peers", "--python", "/no/python")

    def test_peer(self):
        self.need_peers()
        for line in self.measured("codecs", "--codec", "fp16,int2,one_bit,threshold,power_sgd:rank=2", "--peers", "--python",
                                  PEERS):
            self.assertLess(0, line["pytorch"]["ratio_low"])
            self.assertLessEqual(line["pytorch"]["ratio_low"], line["pytorch"]["ratio_high"])


class Hooks(Bench):
    # What a rank of two sends for 16384 float32 values, of a matrix of 128 x 128. Ring all-reduce: 2 (N-1)/N.
    SENT = {"allreduce": BYTES, "fp16_compress": BYTES // 2, "quantize_per_tensor": VALUES + 5,
            "quantize_per_channel": VALUES + 5 * VALUES // 512, "power_sgd:start=2": 4 * 2 * 128,
            "power_sgd:rank=4,start=3": 4 * 4 * 2 * 128, "batched_power_sgd:start=2": 4 * 2 * 128, "noop": 0,
            "int8:block=64,memory=ef21": 2 * (4 * VALUES // 2 // 64 + VALUES // 2), "top_k": 8 * math.ceil(VALUES / 100)}

    def test_bytes_are_those_of_the_formulas(self):
        lines = self.measured("hooks", "--hook", ",".join(self.SENT))
        self.assertEqual({line["hook"]: line["sent_bytes"] for line in lines}, self.SENT)
        self.assertEqual([line["hook"] for line in lines], list(self.SENT))
        for line in lines:
            self.assertEqual(line["compression"], BYTES / line["sent_bytes"] if line["sent_bytes"] else None)
            # The longest of two ranks is at least rank 0's.
            self.assertGreaterEqual(line["slowest_us"], line["median_us"])

    def test_pieces_are_those_of_the_compressor(self):
        lines = self.lines("hooks", "--hook", "allreduce,int4,top_k,int4:min=1Ki", "--bytes", "1Mi,8Mi", "--rounds", "1", "--no-pin")
        # int4 cuts 8 MiB; top_k needs all values at once; plain averaging and a policy around a compressor have no pieces.
        self.assertEqual([line["pieces"] for line in lines[:4]], [None, 1, 1, None])
        self.assertEqual([line["pieces"] for line in lines[4:]], [None, 2, 1, None])

    def test_power_sgd_without_a_start_is_past_its_warm_up(self):
        (line,) = self.measured("hooks", "--hook", "power_sgd")
        self.assertEqual((line["hook"], line["sent_bytes"]), ("power_sgd:start=2", self.SENT["power_sgd:start=2"]))

    def test_ranks_as_threads(self):
        lines = self.measured("hooks", "--hook", "allreduce,top_k", "--backend", "threads", "--world", "4")
        self.assertEqual([line["sent_bytes"] for line in lines], [BYTES * 3 // 2, 3 * self.SENT["top_k"]])

    def test_list(self):
        lines = self.lines("hooks", "--list")
        self.assertEqual([line["hook"] for line in lines[:len(TEN)]], TEN)
        self.assertTrue(all(line["bytes"] for line in lines))
        self.assertIn("rank=1", lines[TEN.index("power_sgd")]["options"])
        self.assertIn("Vogels", lines[TEN.index("power_sgd")]["paper"])
        text = bench("hooks", "--list").stdout
        for line in lines:
            for part in line.values():
                self.assertIn(part, text)

    def test_what_is_wrong(self):
        self.refused("telepathy", "hooks", "--hook", "telepathy")
        self.refused("colour", "hooks", "--hook", "allreduce,power_sgd:colour=red")
        self.refused("smoke", "hooks", "--backend", "smoke")
        self.refused("--world 0", "hooks", "--world", "0")
        self.refused("--bytes 6", "hooks", "--bytes", "4Ki,6")

    def test_peer(self):
        self.need_peers()
        lines = {line["hook"]: line.get("pytorch") for line in self.measured(
            "hooks", "--hook", "allreduce,bf16_compress,quantize_per_tensor,power_sgd,int8", "--peers", "--python", PEERS)}
        for hook in ("allreduce", "power_sgd:start=2"):
            self.assertLess(0, lines[hook]["ratio_low"])
            self.assertLessEqual(lines[hook]["ratio_low"], lines[hook]["ratio_high"])
        self.assertIn("BF16", lines["bf16_compress"]["none"])
        self.assertIn("IndexError", lines["quantize_per_tensor"]["none"])
        self.assertIn("no such hook", lines["int8"]["none"])


class Collectives(Bench):
    NAMES = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
             "send_recv"]

    def test_every_collective(self):
        lines = self.measured("collectives", "--collective", ",".join(self.NAMES))
        self.assertEqual([line["collective"] for line in lines], self.NAMES)
        for line in lines:
            self.assertAlmostEqual(line["algbw_gbps"], BYTES / line["median_us"] / 1e3, places=6)

    def test_backends_that_only_groups_have(self):
        for backend in ("gloo", "hybrid"):
            (line,) = self.measured("collectives", "--backend", backend, "--collective", "all_reduce")
            self.assertEqual(line["backend"], backend)

    def test_ranks_as_threads_and_a_barrier_without_bytes(self):
        lines = self.lines("collectives", "--backend", "threads", "--world", "3", "--bytes", "12Ki,24Ki", "--rounds", "1",
                           "--no-pin", "--collective", "all_gather,barrier")
        self.assertEqual([(line["collective"], line["bytes"], line["world"]) for line in lines],
                         [("all_gather", 12 << 10, 3), ("all_gather", 24 << 10, 3), ("barrier", 0, 3)])

    def test_what_is_wrong(self):
        self.refused("telepathy", "collectives", "--collective", "all_reduce,telepathy")
        self.refused("smoke", "collectives", "--backend", "smoke")
        self.refused("--world 65", "collectives", "--world", "65")
        self.refused("--bytes 12", "collectives", "--bytes", "12")

    def test_peers(self):
        self.need_peers()
        if not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "gradwire-bench-mpi")):
            self.skipTest("OpenMPI's worker is not built (there was no OpenMPI)")
        for line in self.measured("collectives", "--peers", "--python", PEERS, "--collective", ",".join(self.NAMES)):
            for peer in ("Gloo (PyTorch)", "OpenMPI"):
                self.assertLess(0, line["peers"][peer]["ratio_low"])
                self.assertLessEqual(line["peers"][peer]["ratio_low"], line["peers"][peer]["ratio_high"])


class WithoutTorch(Bench):
    def test_refused(self):
        self.refused("GRADWIRE_TORCH=OFF", "hooks")
        self.refused("GRADWIRE_TORCH=OFF", "hooks", "--list")
        self.refused("GRADWIRE_TORCH=OFF", "collectives")


if __name__ == "__main__":
    PROGRAM, *rest = sys.argv[1:]
    PEERS = next((word for word in rest if not word.startswith("--")), "")
    cases = [Codecs, *([WithoutTorch] if "--no-torch" in rest else [Hooks, Ddp, Network, Collectives])]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
