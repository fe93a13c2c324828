#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of gradwire-plan: the model against cases worked out by hand and against properties that hold for any calibration;
the commands from the first to the last, with a calibration of a few seconds; and what is wrong with an input is said in
one sentence. The environment names the build folder: GRADWIRE_BUILD."""

import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import ModuleSpec
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", ROOT / "build"))
# A build without the Python package has no gradwire-plan; the sources serve as well.
PACKAGE = next(f for f in (BUILD / "python" / "gradwire", ROOT / "python" / "gradwire") if (f / "plan").exists())
PROGRAM = [BUILD / "bin" / "gradwire-plan"] if PACKAGE.is_relative_to(BUILD) else [sys.executable, PACKAGE / "plan"]
ENVIRONMENT = os.environ if PACKAGE.is_relative_to(BUILD) else os.environ | {"GRADWIRE_BENCH": str(BUILD / "bin" / "gradwire-bench")}

# As gradwire/plan/__main__.py does: the folder alone, without the runtime.
spec = ModuleSpec("gradwire", None, is_package=True)
spec.submodule_search_locations = [str(ROOT / "python" / "gradwire")]
sys.modules["gradwire"] = importlib.util.module_from_spec(spec)
from gradwire.plan import calibrate, check, model, step, tables, units  # noqa: E402
from gradwire.plan.calibration import Calibration, Curve, HookCurves, from_json, to_json  # noqa: E402
from gradwire.plan.model import Link, Place, exchange  # noqa: E402
from gradwire.plan.units import PlanError  # noqa: E402

KI, MI = 1 << 10, 1 << 20
SIZES = (MI, 4 * MI, 16 * MI)


def line(per_mi, start=0.0):
    return Curve(SIZES, tuple(start + per_mi * size / MI for size in SIZES))


def hook(seconds, sent, pieces=None):
    """Seconds and bytes in proportion to the bucket, per MiB of it."""
    return HookCurves(line(seconds), line(sent * MI), None, None if pieces is None else line(pieces))


# Per MiB of a bucket: a plain exchange works 1 ms in memory and 2 ms with the engine; a compressor 4 ms and 4.5 ms, and
# sends an eighth in a piece a MiB; gatherers send the same to each.
WITHIN = {"allreduce": hook(0.001, 1), "coded": hook(0.004, 1 / 8, 1), "gathered": hook(0.004, 1 / 8, 1)}
PLAIN2, CODED2 = hook(0.002, 1), hook(0.0045, 1 / 8, 1)
CALIBRATION = Calibration(
    "1.0", "a processor", 2, "2026-11-24", "by hand",
    within={1: WITHIN, 2: WITHIN},
    between={
        2: {"allreduce": PLAIN2, "coded": CODED2, "gathered": CODED2},
        4: {"allreduce": hook(0.006, 1.5), "coded": hook(0.010, 1.5 / 8, 1), "gathered": hook(0.012, 3 / 8, 1)},
    },
    collectives={2: {name: line(0.0005) for name in calibrate.COLLECTIVES}},
    copy=line(0.0002),
    sharing={},
)  # fmt: skip
FAST = Link(math.inf)


class Units(unittest.TestCase):
    def test_what_people_write(self):
        self.assertEqual(units.parse_rate("100mbit"), 1e8)
        self.assertEqual(units.parse_rate("none"), math.inf)
        self.assertAlmostEqual(units.parse_time("50us"), 50e-6, places=12)
        self.assertEqual(units.parse_bytes("25Mi"), 25 * MI)
        self.assertEqual(units.parse_parameters("6.3M"), 6_300_000)
        self.assertEqual(units.parse_hooks("allreduce,power_sgd:rank=4,start=2,int8"),
                         ["allreduce", "power_sgd:rank=4,start=2", "int8"])  # fmt: skip

    def test_a_rate_is_written_as_it_is_read(self):
        for rate in (1e8, 3e8, 1e9, 2.5e9, 64e3, math.inf):
            self.assertEqual(units.parse_rate(units.rate_text(rate)), rate)

    def test_what_is_no_quantity(self):
        for parse, text in ((units.parse_rate, "fast"), (units.parse_rate, "0mbit"), (units.parse_time, "3"),
                            (units.parse_bytes, "25MB"), (units.parse_count, "0"), (units.parse_hooks, "")):  # fmt: skip
            with self.assertRaisesRegex(PlanError, "write|above 0"):
                parse(text)


class Model(unittest.TestCase):
    def test_without_a_limit_the_measured_work_is_left(self):
        for name, curves in CALIBRATION.between[2].items():
            self.assertAlmostEqual(exchange(CALIBRATION, name, 4 * MI, Place(2), FAST).seconds, curves.seconds.at(4 * MI))

    def test_one_host_takes_the_time_of_shared_memory(self):
        for rate in (1e6, math.inf):
            got = exchange(CALIBRATION, "coded", 4 * MI, Place(1, 2), Link(rate))
            self.assertEqual((got.seconds, got.link), (0.016, 0.0))

    def test_a_slow_link_takes_the_time_of_its_bytes(self):
        # 4 MiB at 8 Mbit/s, with 90 bytes beside 1448; the 4 ms of own work are not hidden.
        wire = 4 * MI * 8 / 8e6 * (1448 + 90) / 1448
        got = exchange(CALIBRATION, "allreduce", 4 * MI, Place(2), Link(8e6))
        self.assertAlmostEqual(got.link, wire)
        self.assertAlmostEqual(got.seconds, wire + 0.004, delta=1e-6)

    def test_pieces_hide_all_but_one(self):
        # Four pieces: 4 of the 16 ms own work are not hidden.
        wire = 4 * MI / 8 * 8 / 8e5 * (1448 + 90) / 1448
        got = exchange(CALIBRATION, "coded", 4 * MI, Place(2), Link(8e5))
        self.assertAlmostEqual(got.seconds, wire + 0.004, delta=1e-5)

    def test_bytes_follow_the_kind_of_exchange(self):
        for name, kind, of_eight in (("allreduce", 0, 2 * 7 / 8), ("coded", 0, 2 * 7 / 8 / 8), ("gathered", 1, 7 / 8)):
            self.assertAlmostEqual(model.growth(CALIBRATION, name, MI), kind)
            self.assertAlmostEqual(model.sent_bytes(CALIBRATION, name, MI, 8) / MI, of_eight)
        self.assertEqual(model.sent_bytes(CALIBRATION, "gathered", MI, 4) / MI, 3 / 8)  # measured

    def test_ranks_of_a_host_sum_first(self):
        alone, two = (exchange(CALIBRATION, "coded", 4 * MI, Place(2, ranks), FAST).seconds for ranks in (1, 2))
        self.assertAlmostEqual(two - alone, 2 * 0.002)  # a reduce and a broadcast
        alone, two = (exchange(CALIBRATION, "allreduce", 4 * MI, Place(2, ranks), FAST) for ranks in (1, 2))
        # One piece: reduce-scatter and all-gather; and half of the engine's 4 ms.
        self.assertAlmostEqual(two.seconds, 0.004 + 2 * 0.002 + 0.002)

        # Four pieces: sums of all but one go on beside the link.
        slow = exchange(CALIBRATION, "allreduce", 16 * MI, Place(2, 2), Link(8e5))
        self.assertAlmostEqual(slow.seconds - slow.link, 0.016 + 2 * 0.008 / 4, delta=1e-5)

    def test_more_hosts_than_measured_work_more(self):
        # 4 MiB: 16 ms of own work, 2 ms of the engine's between two hosts. Eight send 1.75 times as much, or 7 times and decode 8.
        for name, expected in (("coded", 0.016 + 0.002 * 1.75), ("gathered", 0.016 * 9 / 3 + 0.002 * 7)):
            self.assertAlmostEqual(exchange(CALIBRATION, name, 4 * MI, Place(8), FAST).seconds, expected)

    def test_hosts_of_one_machine_share_its_cores(self):
        place = Place(4, one_machine=True)
        self.assertAlmostEqual(exchange(CALIBRATION, "coded", 4 * MI, place, FAST).seconds, 0.040)  # as measured
        slow = exchange(CALIBRATION, "coded", 4 * MI, place, Link(8e5))
        self.assertAlmostEqual(slow.seconds - slow.link, 2 * 0.016 / 4, delta=1e-4)  # two for each core, four pieces

    def test_link_and_processor_wait_for_each_other(self):
        self.assertEqual(model.soft_maximum(0.0, 0.0), 0.0)
        self.assertEqual(model.soft_maximum(3.0, 0.0), 3.0)
        self.assertAlmostEqual(model.soft_maximum(1.0, 1.0), 2 ** (1 / model.SHARPNESS))
        own = exchange(CALIBRATION, "coded", 4 * MI, Place(2), FAST).work
        hidden = own - 0.004
        rate = 8 * 4 * MI / 8 * (1448 + 90) / 1448 / hidden  # at which the link takes as long
        got = exchange(CALIBRATION, "coded", 4 * MI, Place(2), Link(rate))
        self.assertAlmostEqual(got.seconds, 0.004 + hidden * 2 ** (1 / model.SHARPNESS))

    def test_latency_comes_on_top(self):
        for name, trips in (("allreduce", 3), ("coded", 6), ("gathered", 3)):
            near, far = (exchange(CALIBRATION, name, MI, Place(2), Link(1e9, latency)).seconds for latency in (0, 0.01))
            self.assertAlmostEqual(far - near, trips * 0.01)

    def test_what_was_counted_on_the_link_counts_for_short_messages(self):
        def with_wire(bytes_of):
            two = CALIBRATION.between[2] | {"coded": dataclasses.replace(CODED2, wire=Curve(SIZES, (bytes_of,) * 3))}
            return dataclasses.replace(CALIBRATION, between={**CALIBRATION.between, 2: two})

        link = Link(8e6)
        for counted, expected in ((1000, MI / 8 * (1448 + 90) / 1448), (MI, MI)):
            self.assertAlmostEqual(exchange(with_wire(counted), "coded", MI, Place(2), link).link, expected * 1e-6)

    def test_hosts_that_send_to_one_share_its_link(self):
        shared = dataclasses.replace(CALIBRATION, sharing={4: Curve((MI, 6 * MI), (1.0, 1.2))})
        link = Link(8e6)

        def longer(name, size, hosts):
            both = [exchange(calibration, name, size, Place(hosts), link).link for calibration in (shared, CALIBRATION)]
            return both[0] / both[1]

        self.assertAlmostEqual(longer("allreduce", 4 * MI, 4), 1.2)
        self.assertAlmostEqual(longer("allreduce", 16 * MI, 8), 1.2)  # no more for longer messages
        self.assertAlmostEqual(longer("allreduce", 4 * MI, 2), 1)
        self.assertAlmostEqual(longer("coded", 64 * MI, 4), 1)  # in pieces

    def test_a_burst_makes_up_for_a_pause(self):
        link = Link(8e6, burst=1000)  # 1 ms of the link
        without, after = (exchange(CALIBRATION, "allreduce", 4 * MI, Place(2), each, pause).seconds
                          for each, pause in ((Link(8e6), 1.0), (link, 1.0)))  # fmt: skip
        self.assertAlmostEqual(without - after, 0.001)

    def test_more_is_never_faster(self):
        sizes = [size * MI for size in (1, 2, 3, 4, 6, 9, 16, 32)]
        for name in CALIBRATION.hooks():
            for place in (Place(2), Place(3), Place(8), Place(2, 2), Place(4, one_machine=True)):
                rates = (1e7, 1e8, 1e9, 1e10, math.inf)
                for rate in rates:
                    times = [exchange(CALIBRATION, name, size, place, Link(rate)).seconds for size in sizes]
                    self.assertEqual(times, sorted(times), (name, place, rate))
                times = [exchange(CALIBRATION, name, 4 * MI, place, Link(rate)).seconds for rate in rates]
                self.assertEqual(times, sorted(times, reverse=True), (name, place))
            for rate in (1e7, 1e9):
                times = [exchange(CALIBRATION, name, 4 * MI, Place(hosts), Link(rate)).seconds for hosts in (2, 3, 4, 8, 64)]
                self.assertEqual(times, sorted(times), (name, rate))

    def test_no_exchange_beats_its_link_or_its_work(self):
        for rate in (1e7, 1e8, 1e9, 1e10):
            for name in CALIBRATION.hooks():
                got = exchange(CALIBRATION, name, 4 * MI, Place(2), Link(rate))
                self.assertGreaterEqual(got.seconds, max(got.link, got.work))
                self.assertLessEqual(got.seconds, got.link + got.work + 1e-12)

    def test_what_is_beyond_the_calibration_is_said(self):
        def notes(size=4 * MI, place=Place(2), rate=math.inf):
            return " ".join(exchange(CALIBRATION, "allreduce", size, place, Link(rate)).notes)

        self.assertEqual(notes(), "")
        self.assertEqual(notes(place=Place(4), rate=1e10), "")
        self.assertIn("buckets of", notes(size=32 * MI))
        self.assertIn("buckets of", notes(size=KI))
        self.assertIn("4 hosts", notes(place=Place(5)))
        self.assertIn("2 ranks", notes(place=Place(2, 3)))
        self.assertIn("more ranks than cores", notes(place=Place(2, 2, cores=1)))
        self.assertIn("drop packets", notes(place=Place(3), rate=1e8))

    def test_a_hook_that_was_not_measured_is_refused(self):
        with self.assertRaisesRegex(PlanError, "'int8'.*allreduce, coded, gathered.*calibrate --hook"):
            exchange(CALIBRATION, "int8", MI, Place(2), FAST)


class Steps(unittest.TestCase):
    LINK = Link(8e8)

    def whole(self, buckets, compute, place=Place(2, cores=8)):
        return step.predict_step(CALIBRATION, "allreduce", step.Work(buckets, compute), place, self.LINK)

    def test_without_computing_exchanges_follow_each_other(self):
        each = [exchange(CALIBRATION, "allreduce", size, Place(2), self.LINK).seconds for size in (MI, 4 * MI)]
        for place in (Place(2, cores=8), Place(2)):
            got = self.whole([MI, 4 * MI], 0, place)
            self.assertAlmostEqual(got.seconds, sum(each))
            self.assertEqual(got.computing, 0)

    def test_the_last_bucket_delays_no_pass(self):
        # A link that takes nothing, and work that takes more than the whole pass.
        got = step.predict_step(CALIBRATION, "coded", step.Work([MI], 1e-4), Place(2), FAST)
        self.assertAlmostEqual(got.seconds, 1e-4 + 0.0045)

    def test_only_the_last_bucket_shows_in_a_long_step(self):
        one = exchange(CALIBRATION, "allreduce", MI, Place(2), self.LINK).seconds
        got = self.whole([MI, MI, MI, MI], 10.0)
        self.assertAlmostEqual(got.seconds, 10.0 + one)
        self.assertAlmostEqual(got.computing, 10.0 / got.seconds)

    def test_without_a_free_core_earlier_exchanges_delay_the_pass(self):
        one = exchange(CALIBRATION, "allreduce", MI, Place(2), self.LINK)
        got = self.whole([MI, MI, MI, MI], 10.0, Place(2))
        self.assertAlmostEqual(got.seconds, 10.0 + 3 * one.work + one.seconds)

    def test_buckets_hold_all_parameters(self):
        for count in (1, 1000, 6_300_000):
            buckets = step.buckets_of(count, 25 * MI, MI)
            self.assertEqual(sum(buckets), 4 * count)
            self.assertLessEqual(buckets[0], MI)
            self.assertLessEqual(max(buckets), 25 * MI)
        with self.assertRaisesRegex(PlanError, "larger than the others"):
            step.buckets_of(1000, KI, MI)


class Files(unittest.TestCase):
    def test_a_calibration_is_read_as_it_was_written(self):
        self.assertEqual(from_json(to_json(CALIBRATION), "a file", "1.0"), CALIBRATION)
        shared = dataclasses.replace(CALIBRATION, sharing={3: line(1.0)})
        self.assertEqual(from_json(to_json(shared), "a file", "1.0"), shared)

    def refused(self, pattern, text):
        with self.assertRaisesRegex(PlanError, f"a file: .*{pattern}.*calibrate again"):
            from_json(text, "a file", "1.0")

    def test_another_version_is_refused(self):
        self.refused("made by gradwire 0.9 .*this is gradwire 1.0", to_json(dataclasses.replace(CALIBRATION, version="0.9")))

    def test_what_is_no_calibration_is_refused(self):
        self.refused("no JSON", "{")
        self.refused("no calibration", "{}")
        self.refused("no calibration", "[]")
        whole = json.loads(to_json(CALIBRATION))
        for field, value, pattern in (
            ("cores", 0, "'cores'"), ("processor", 3, "'processor'"), ("between", {}, "'between'"), ("copy", [[1, "a"]], "'copy'"),
            ("copy", [[2, 1.0], [1, 1.0]], "ascend"), ("within", {"2": {}}, "same hooks"), ("collectives", {"x": {}}, "'collectives'"),
            ("sharing", {"3": [[1, 0.5]]}, "'sharing'"),
        ):  # fmt: skip
            self.refused(pattern, json.dumps(whole | {field: value}))


class Calibrating(unittest.TestCase):
    def test_a_larger_bucket_that_seemed_faster_was_noise(self):
        self.assertEqual(calibrate.rising([(4, 2.0), (1, 1.0), (2, 3.0), (8, 5.0)]), Curve((1, 2, 4, 8), (1.0, 3.0, 3.0, 5.0)))

    def test_lines_belong_to_hooks_by_their_order(self):
        """gradwire-bench writes power_sgd:rank=4,start=2 for power_sgd:rank=4."""
        lines = [
            {"hook": name, "bytes": size, "slowest_us": us, "sent_bytes": size // 2, "pieces": pieces}
            for size in (100, 200)
            for name, us, pieces in (("power_sgd:rank=4,start=2", 3.0 * size, None), ("int8", 1.0 * size, 2))
        ]
        made = calibrate.curves_of(lines, ["power_sgd:rank=4", "int8"])
        self.assertEqual(made["power_sgd:rank=4"].pieces, None)
        self.assertEqual(made["power_sgd:rank=4"].wire, None)
        self.assertAlmostEqual(made["power_sgd:rank=4"].seconds.at(200), 600e-6)
        self.assertEqual(made["int8"].pieces, Curve((100, 200), (2.0, 2.0)))
        self.assertEqual(made["int8"].sent, Curve((100, 200), (50.0, 100.0)))


class Checks(unittest.TestCase):
    def compared(self, errors):
        guess = model.Exchange(1.0, 0.5, 0.5)
        return [check.Compared(2, 1e9, "allreduce", MI, guess, 1.0 / (1 + error)) for error in errors]

    def test_errors_are_parts_of_the_measured_time(self):
        for error in (-0.2, 0.0, 0.25):
            self.assertAlmostEqual(self.compared([error])[0].error(), error)

    def test_percentiles(self):
        errors = tables.Errors.of(self.compared([0.01 * number for number in range(101)]))
        self.assertEqual(errors.count, 101)
        self.assertAlmostEqual(errors.median, 0.5)
        self.assertAlmostEqual(errors.most, 0.95)

    def test_combinations_that_would_take_long_are_left_out(self):
        runs = list(check.combinations(check.Grid(hosts=[2, 4], rates=[1e8], sizes=[MI, 4 * MI], longest=0.4)))
        self.assertEqual(runs, [(2, 1e8, [MI, 4 * MI]), (4, 1e8, [MI])])

    def test_a_plot_has_a_dot_for_each_combination(self):
        compared = self.compared([0.1, -0.1, 0.2])
        tree = ElementTree.fromstring(tables.check_plot(CALIBRATION, compared))
        self.assertEqual(len(tree.findall(".//{*}circle")), 3)


class Commands(unittest.TestCase):
    """The program itself: a calibration of a few seconds, predictions from it, and a small check."""

    @classmethod
    def setUpClass(cls):
        if len(os.sched_getaffinity(0)) < 2:
            raise unittest.SkipTest("one core calibrates nothing")
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.file = cls.folder / "plan.json"
        cls.done = cls.run_program("calibrate", "--out", cls.file, "--hook", "allreduce,int8", "--bytes", "64Ki,1Mi", "--hosts",
                                   "3", "--rounds", "1")  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @staticmethod
    def run_program(*arguments):
        command = [*PROGRAM, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)

    def predict(self, *arguments):
        done = self.run_program("predict", "--calibration", self.file, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, pattern, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        # Beside what is measured now, which calibrate says in a line each.
        (said,) = [line for line in done.stderr.splitlines() if ": hooks within" not in line]
        self.assertRegex(said, pattern)

    def test_a_calibration_holds_what_the_codec_says_of_itself(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        fields = json.loads(self.file.read_text())
        self.assertEqual(sorted(fields["between"]), ["2", "3"])
        self.assertEqual(fields["between"]["2"]["allreduce"]["sent_bytes"], [[64 * KI, 64 * KI], [MI, MI]])
        self.assertIsNone(fields["between"]["2"]["allreduce"]["pieces"])
        self.assertEqual(fields["between"]["2"]["int8"]["pieces"], [[64 * KI, 1], [MI, 1]])
        self.assertLess(fields["between"]["2"]["int8"]["sent_bytes"][1][1], MI / 3.9)

    def test_a_prediction_as_a_table_and_as_json_and_as_a_plot(self):
        plot = self.folder / "plan.svg"
        arguments = ("--hosts", "2,4", "--ranks-per-host", "1,2", "--rate", "100mbit,1gbit", "--parameters", "200K", "--compute",
                     "20ms", "--cores", "4")  # fmt: skip
        text = self.predict(*arguments, "--plot", plot)
        self.assertEqual(text.count("links of 100mbit"), 4)
        self.assertIn("up to 3 hosts were measured", text)
        rows = json.loads(self.predict(*arguments, "--json"))["predictions"]
        self.assertEqual(len(rows), 2 * 2 * 2 * 2)
        self.assertTrue(all(row["step_seconds"] >= 0.02 and 0 < row["computing"] <= 1 for row in rows))
        # At 100 Mbit/s a quarter of the bytes wins.
        slow = [row for row in rows if (row["hosts"], row["ranks_per_host"], row["rate"]) == (2, 1, "100mbit")]
        self.assertEqual(min(slow, key=lambda row: row["step_seconds"])["hook"], "int8")
        self.assertLess(text.index("int8"), text.index("allreduce"))
        self.assertEqual(len(ElementTree.parse(plot).getroot().findall(".//{*}circle")), 4)

    def test_predicting_needs_no_torch(self):
        code = "import runpy, sys; sys.argv = sys.argv[1:]\ntry: runpy.run_path(sys.argv[0], run_name='__main__')\n" \
               "except SystemExit as end: assert end.code == 0, end.code\nassert 'torch' not in sys.modules"  # fmt: skip
        done = subprocess.run([sys.executable, "-c", code, PACKAGE / "plan", "predict", "--calibration", self.file, "--buckets", "1Mi"],
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("allreduce", done.stdout)

    def test_check_measures_what_it_predicts(self):
        files = [self.folder / "check.json", self.folder / "check.svg"]
        done = self.run_program("check", "--calibration", self.file, "--hosts", "2", "--rate", "300mbit", "--bytes", "256Ki,1Mi",
                                "--json", files[0], "--plot", files[1])  # fmt: skip
        if done.returncode == 77:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        compared = json.loads(files[0].read_text())
        self.assertEqual([(one["hook"], one["bytes"]) for one in compared["compared"]],
                         [("allreduce", 256 * KI), ("int8", 256 * KI), ("allreduce", MI), ("int8", MI)])  # fmt: skip
        self.assertIn("all: 4 combinations, error: median", done.stdout)
        self.assertEqual(len(ElementTree.parse(files[1]).getroot().findall(".//{*}circle")), 4)
        # 1 MiB of plain gradients takes a link of 300 Mbit/s 28 ms, whatever else the machine does.
        self.assertGreater(compared["compared"][2]["measured_seconds"], 0.02)

    def test_what_is_wrong(self):
        self.refused("no such|cannot be read", "predict", "--calibration", self.folder / "none.json", "--buckets", "1Mi")
        self.refused("'fast' is no rate", "predict", "--calibration", self.file, "--buckets", "1Mi", "--rate", "fast")
        self.refused("'one_bit'.*calibrate --hook", "predict", "--calibration", self.file, "--buckets", "1Mi", "--hook", "one_bit")
        self.refused("/no/bench.*--bench", "calibrate", "--bench", "/no/bench")
        self.refused("telepathy", "calibrate", "--hook", "telepathy", "--out", self.folder / "other.json")
        self.refused("a --rate with a limit", "predict", "--calibration", self.file, "--buckets", "1Mi", "--rate", "none", "--plot",
                     self.folder / "none.svg")  # fmt: skip
        self.refused("at least 2", "check", "--calibration", self.file, "--hosts", "1")
        self.refused("--longest", "check", "--calibration", self.file, "--longest", "1us")
        other = self.folder / "old.json"
        other.write_text(self.file.read_text().replace('"version": "', '"version": "0.0.'))
        self.refused("made by gradwire 0.0.*calibrate again", "predict", "--calibration", other, "--buckets", "1Mi")


if __name__ == "__main__":
    unittest.main(verbosity=2)
