#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tests of gradwire.report: its pages show the numbers of the files, of runs that char_lm makes here and of lines that
gradwire-bench wrote (report_data/), and what is wrong with a file is said in one line. The environment names the build
folder: GRADWIRE_BUILD."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", ROOT / "build"))
BENCH = pathlib.Path(__file__).resolve().parent / "report_data" / "bench.jsonl"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Element:
    def __init__(self, tag, attributes, parent=None):
        self.tag, self.attributes, self.parent, self.children, self.text = tag, attributes, parent, [], ""

    def walk(self):
        yield self
        for child in self.children:
            yield from child.walk()

    def all(self, tag=None, class_=None, **attributes):
        return [
            element
            for element in self.walk()
            if tag in (None, element.tag)
            and (class_ is None or class_ in element.attributes.get("class", "").split())
            and all(element.attributes.get(name) == value for name, value in attributes.items())
        ]

    def one(self, *arguments, **attributes):
        (found,) = self.all(*arguments, **attributes)
        return found

    def words(self):
        return " ".join(element.text.strip() for element in self.walk() if element.text.strip())


class Tree(HTMLParser):
    """The elements of a page."""

    def __init__(self, page):
        super().__init__()
        self.root = self.open = Element("", {})
        self.feed(page)
        self.close()
        assert self.open is self.root, f"<{self.open.tag}> is not closed"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in VOID:
            self.open = element

    def handle_endtag(self, tag):
        assert self.open.tag == tag, f"<{self.open.tag}> ends with </{tag}>"
        self.open = self.open.parent

    def handle_data(self, data):
        self.open.text += data


def command(*arguments):
    # From the sources; PackageTest starts it as `python -m`.
    return subprocess.run(
        [sys.executable, ROOT / "python" / "gradwire" / "report", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def records(file):
    return [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()]


def train(folder, name, *options):
    """A short run on two ranks whose buckets are small; returns its file."""
    file = pathlib.Path(folder) / f"{name}.jsonl"
    text = pathlib.Path(folder) / "text"
    text.write_text(
        "".join(f"{i} green bottles, and {i * i} blue ones, hang on wall number {i % 7}.\n" for i in range(400))
    )
    done = subprocess.run(
        [
            BUILD / "bin" / "gradwire-run",
            "-n",
            "2",
            BUILD / "bin" / "char_lm",
            "--text",
            text,
            "--layers",
            "1",
            "--width",
            "32",
            "--heads",
            "2",
            "--context",
            "16",
            "--batch",
            "8",
            "--threads",
            "1",
            "--generate",
            "0",
            "--eval-batches",
            "1",
            "--log-every",
            "1",
            "--bucket-cap-mb",
            "0.01",
            "--json",
            file,
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return file


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def page(self, *files):
        output = self.folder / "report.html"
        done = command(*files, "-o", output)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return Tree(output.read_text()).root

    def write(self, *lines):
        file = self.folder / "written.jsonl"
        file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return file


class Runs(ReportTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = train(cls.folder, "plain", "--steps", "6")
        cls.power_sgd = train(cls.folder, "power", "--steps", "12", "--hook", "power_sgd:rank=2,start=4,min_rate=1")

    def of_type(self, file, kind):
        return [record for record in records(file) if record["type"] == kind]

    def facts(self, page):
        rows = page.one("section", id="runs").one("tbody").children
        return {row.children[0].text: [cell.text for cell in row.children[1:]] for row in rows}

    def test_overview_is_the_summary(self):
        (end,) = self.of_type(self.power_sgd, "summary")
        facts = self.facts(self.page(self.power_sgd))
        self.assertEqual(facts["hook"], [end["hook"]])
        self.assertEqual(facts["parameters' hash"], [end["parameter_hash"]])
        self.assertEqual(facts["held-out loss"], [f"{end['held_out_loss']:.4f}"])
        self.assertEqual(facts["training loss"], [f"{end['train_loss']:.4f}"])
        self.assertEqual(facts["steps/s"], [f"{end['steps_per_second']:.2f}"])
        self.assertEqual(facts["compression"], [f"{end['compression_factor']:.2f}x"])
        self.assertEqual(facts["steps"], ["12 of 12"])

    def test_curve_of_the_loss_has_the_shape_of_the_losses(self):
        losses = [record["loss"] for record in self.of_type(self.plain, "step")]
        loss = self.page(self.plain).one("section", id="loss")
        dots, on_a_phone = (loss.one(class_=screen).all("circle") for screen in ("on-desk", "on-phone"))
        at = [float(dot.attributes["cy"]) for dot in dots]
        self.assertEqual(len(at), len(losses))
        self.assertEqual(at, [float(dot.attributes["cy"]) for dot in on_a_phone], "both charts show the same")
        low, high = losses.index(min(losses)), losses.index(max(losses))
        scale = (at[high] - at[low]) / (losses[high] - losses[low])
        self.assertLess(scale, 0, "a larger loss lies higher")
        for place, loss in zip(at, losses):
            self.assertAlmostEqual(place, at[low] + scale * (loss - losses[low]), delta=0.02)
        self.assertEqual(
            [float(dot.attributes["cx"]) for dot in dots], sorted(float(dot.attributes["cx"]) for dot in dots)
        )

    def test_bars_are_the_split_and_the_bytes(self):
        page = self.page(self.plain, self.power_sgd)
        ends = [self.of_type(file, "summary")[0] for file in (self.plain, self.power_sgd)]
        shown = [float(piece.attributes["data-value"]) for piece in page.one("section", id="time").all(class_="piece")]
        self.assertEqual(
            shown, [end["split_seconds"][part] for end in ends for part in ("compute", "communication", "hook")]
        )
        shown = [float(piece.attributes["data-value"]) for piece in page.one("section", id="bytes").all(class_="piece")]
        self.assertEqual(shown, [end["bytes_per_step"] for end in ends])

    def test_timeline_has_every_span_of_the_last_step(self):
        page = self.page(self.power_sgd)
        last = self.of_type(self.power_sgd, "timeline")[-1]
        details = page.one("section", id="buckets-0").all("details")
        self.assertEqual(
            [each.one("summary").text.split(":")[0] for each in details],
            [f"Step {step}" for step in (12, 10, 9, 7, 6, 4, 3, 1)],
            "eight, evenly, the last one first",
        )
        self.assertEqual(["open" in each.attributes for each in details], [True] + 7 * [False])
        gantt = details[0].one(class_="gantt")
        self.assertEqual(float(gantt.attributes["data-length"]), last["seconds"])
        rows = [
            {
                (
                    block.attributes["class"].split()[1],
                    float(block.attributes["data-begin"]),
                    float(block.attributes["data-end"]),
                )
                for block in track.children
                if block.tag == "div"
            }
            for track in gantt.all(class_="gantt-track")
        ]
        self.assertEqual(
            rows[0],
            {
                ("forward", *last["forward"]),
                ("backward", last["backward"][0], last["wait"][0]),
                ("wait", *last["wait"]),
                ("optimizer", *last["optimizer"]),
            },
        )
        self.assertEqual(
            rows[1:],
            [
                {
                    ("queued", bucket["ready"], bucket["hook"][0]),
                    ("hook", *bucket["hook"]),
                    *(("communication", *call) for call in bucket["calls"]),
                }
                for bucket in last["buckets"]
            ],
        )
        self.assertGreater(len(rows), 3)

    def test_runs_have_labels_that_tell_them_apart(self):
        def labels(*files):
            return [
                cell.words() for cell in self.page(*files).one("section", id="runs").one("thead").one("tr").children[1:]
            ]

        other = self.folder / "other"
        other.mkdir(exist_ok=True)
        again = other / "plain.jsonl"
        again.write_bytes(self.plain.read_bytes())
        copy = other / "copy.jsonl"
        copy.write_bytes(self.plain.read_bytes())
        self.assertEqual(labels(self.plain, self.power_sgd), ["allreduce", "power_sgd:rank=2,start=4,min_rate=1"])
        self.assertEqual(labels(self.plain, copy), ["plain", "copy"])
        self.assertEqual(labels(self.plain, again), [str(self.plain), str(again)])
        self.assertEqual(labels(self.plain, self.plain), [f"{self.plain} (1)", f"{self.plain} (2)"])

    def test_run_that_did_not_end(self):
        kept = [record for record in records(self.power_sgd) if record["type"] != "summary"][:-4]
        steps = [record for record in kept if record["type"] == "step"]
        del steps[1]  # a line that stands for two steps
        kept = [record for record in kept if record["type"] != "step"] + steps
        page = self.page(self.write(*kept))
        self.assertEqual(self.facts(page)["steps"], [f"{steps[-1]['step']} of 12, not ended"])
        self.assertEqual(self.facts(page)["held-out loss"], ["-"])
        weights = [2 if step["step"] == 3 else 1 for step in steps]
        shown = [float(piece.attributes["data-value"]) for piece in page.one("section", id="time").all(class_="piece")]
        for part, value in zip(("compute", "communication", "hook"), shown):
            mean = sum(weight * step["split_seconds"][part] for weight, step in zip(weights, steps)) / sum(weights)
            self.assertAlmostEqual(value, mean, delta=1e-12)

    def test_long_run_is_a_line_without_dots(self):
        lines = records(self.plain)
        step = next(line for line in lines if line["type"] == "step")
        page = self.page(self.write(lines[0], *({**step, "step": number} for number in range(1, 2001))))
        loss = page.one("section", id="loss").one(class_="on-desk")
        self.assertEqual(loss.one("path").attributes["d"].count("L"), 1999)
        self.assertFalse(loss.all("circle"))
        self.assertIn("1000", loss.words())

    def test_run_that_has_just_begun(self):
        page = self.page(self.write(records(self.plain)[0]))
        self.assertEqual(self.facts(page)["steps"], ["0 of 6, not ended"])
        self.assertFalse(page.all("svg"))

    def test_losses_that_are_not_finite_leave_a_gap(self):
        lines = records(self.plain)
        for line in lines:
            if line["type"] == "step" and line["step"] in (3, 4):
                line["loss"] = None
        lines[-1]["held_out_loss"] = None
        page = self.page(self.write(*lines))
        loss = page.one("section", id="loss").one(class_="on-desk")
        self.assertEqual(loss.one("path").attributes["d"].count("M"), 2)
        self.assertEqual(len(loss.all("circle")), 4)
        self.assertEqual(self.facts(page)["held-out loss"], ["not finite"])
        for line in lines:
            if line["type"] == "step":
                line["loss"] = None
        self.assertIn("No value is finite", self.page(self.write(*lines)).one("section", id="loss").words())

    def test_one_rank_without_bytes(self):
        lines = records(self.plain)
        for line in lines:
            if line["type"] == "timeline":
                line["buckets"] = []
            if "bytes_per_step" in line:
                line["bytes_per_step"] = 0.0
            if "compression_factor" in line:
                line["compression_factor"] = 0.0
        page = self.page(self.write(*lines))
        self.assertEqual(self.facts(page)["compression"], ["-"])
        blocks = page.one("section", id="buckets-0").all("details")[0].all(class_="block")
        self.assertEqual(
            [block.attributes["class"].split()[1] for block in blocks], ["forward", "backward", "optimizer"]
        )

    def test_names_are_text(self):
        lines = records(self.plain)
        lines[0]["hook"] = "<script>alert('&\"')</script>"
        page = self.page(self.write(*lines))
        self.assertFalse(page.all("script"))
        self.assertEqual(self.facts(page)["hook"], [lines[0]["hook"]])

    def test_page_asks_for_nothing(self):
        page = self.page(self.plain, self.power_sgd, BENCH)
        for element in page.walk():
            for name in ("src", "href", "srcset", "data", "action", "poster"):
                self.assertIn(element.attributes.get(name, "data:,"), ["data:,"])
        style = page.one("style").text
        self.assertNotIn("url(", style)
        self.assertNotIn("@import", style)
        self.assertFalse(page.all("script"))


class Benchmarks(ReportTest):
    def test_every_time_is_shown(self):
        page = self.page(BENCH)
        shown = {float(piece.attributes["data-value"]) for piece in page.all(class_="piece")}
        curves = sum(len(chart.all("circle")) for chart in page.all(class_="on-desk"))
        points = 0
        for record in records(BENCH):
            kind = record["benchmark"]
            if kind == "ddp":
                self.assertLessEqual({1e3 * record["alone_ms"], 1e3 * record["ddp_ms"]}, shown)
            elif kind in ("hooks", "codecs") or record.get("collective") == "barrier":
                peers = [*record.get("peers", {}).values(), record.get("pytorch", {})]
                self.assertLessEqual(
                    {record["median_us"], *(peer["median_us"] for peer in peers if "median_us" in peer)}, shown
                )
            else:
                points += len(record["contestants"]) if kind == "all_reduce" else 1 + len(record["peers"])
        self.assertEqual(curves, points)
        self.assertGreater(points, 20)

    def test_table_has_ratios_and_why_there_is_none(self):
        words = self.page(BENCH).words()
        for record in records(BENCH):
            if record["benchmark"] == "hooks":
                peer = record["pytorch"]
                self.assertIn(
                    peer.get("none") or f"{peer['ratio']:.2f}x [{peer['ratio_low']:.2f}, {peer['ratio_high']:.2f}]",
                    words,
                )

    def test_two_files_of_one_benchmark_are_two_series(self):
        other = self.folder / "after.jsonl"
        other.write_bytes(BENCH.read_bytes())
        words = self.page(BENCH, other).words()
        for series in ("gradwire (bench)", "gradwire (after)"):
            self.assertIn(series, words)

    def test_what_the_program_writes_now(self):
        done = subprocess.run(
            [
                BUILD / "bin" / "gradwire-bench",
                "codecs",
                "--json",
                "--bytes",
                "4Ki",
                "--rounds",
                "1",
                "--no-pin",
                "--codec",
                "fp16,int8",
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        page = self.page(self.write(*done.stdout.splitlines()))
        shown = [float(piece.attributes["data-value"]) for piece in page.all(class_="piece")]
        self.assertEqual(shown, [json.loads(line)["median_us"] for line in done.stdout.splitlines()])


class WrongInput(ReportTest):
    RUN = {
        "type": "run",
        "world_size": 2,
        "threads": 1,
        "backend": "shm",
        "hook": "allreduce",
        "dtype": "f32",
        "parameters": 100,
        "batch": 8,
        "first_step": 0,
        "steps": 6,
    }
    STEP = {
        "type": "step",
        "step": 1,
        "loss": 4.5,
        "steps_per_second": 10.0,
        "bytes_per_step": 400.0,
        "split_seconds": {"compute": 0.1, "communication": 0.01, "hook": 0.001},
    }
    TIMELINE = {
        "type": "timeline",
        "step": 1,
        "seconds": 0.1,
        "forward": [0.01, 0.02],
        "backward": [0.02, 0.08],
        "wait": [0.07, 0.08],
        "optimizer": [0.08, 0.1],
        "buckets": [],
    }

    def refused(self, files, *parts):
        output = self.folder / "report.html"
        output.write_text("as it was")
        done = command(*files, "-o", output)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for part in parts:
            self.assertIn(str(part), done.stderr)
        self.assertEqual(output.read_text(), "as it was")

    def test_files(self):
        missing = self.folder / "missing.jsonl"
        self.refused([missing], missing, "No such file")
        self.refused([BENCH, missing], missing)
        self.refused([self.folder], self.folder, "holds no rank-K.record")
        self.refused([self.write()], "written.jsonl: it is empty")
        self.refused([self.write("", "  ")], "it is empty")
        binary = self.folder / "binary.jsonl"
        binary.write_bytes(b"\xff\xfe\x00\x80")
        self.refused([binary], binary, "UTF-8")

    def test_lines(self):
        self.assertEqual(
            command(self.write(self.RUN, self.STEP, "", self.TIMELINE), "-o", self.folder / "good.html").returncode, 0
        )
        for lines, number, part in (
            (['{"type":"run", "world'], 1, "no JSON"),
            ([self.RUN, "[rank 0] step 1"], 2, "no JSON"),
            ([self.RUN, "", "[1, 2]"], 3, "no JSON object"),
            (["[" * 100000], 1, "no JSON"),
            ([{"hook": "int8"}], 1, "neither"),
            ([{"type": "song"}], 1, "song"),
            ([self.RUN, {"type": "song"}], 2, "'song'; there are run, step, timeline and summary"),
            ([{"type": 3}], 1, "'type' of the record is not a text"),
            ([{"benchmark": "telepathy"}], 1, "'telepathy'; there are all_reduce"),
            ([self.STEP], 1, "belongs to no run"),
            ([self.RUN, self.STEP, self.STEP], 3, "step 1 comes after step 1"),
            ([{"benchmark": "ddp", "world": 2}], 1, "'contestant' of the ddp record is missing"),
        ):
            with self.subTest(part=part):
                self.refused([self.write(*lines)], f"written.jsonl:{number}: ", part)

    def test_fields(self):
        for record, name, value, part in (
            (self.RUN, "hook", 3, "'hook' of the run record is not a text"),
            (self.RUN, "world_size", 1.5, "'world_size' of the run record is not a whole number"),
            (self.STEP, "loss", "low", "'loss' of the step record is not a number or null"),
            (self.STEP, "steps_per_second", 0, "not above 0"),
            (self.STEP, "bytes_per_step", True, "'bytes_per_step' of the step record is not a number"),
            (self.STEP, "bytes_per_step", float("inf"), "'bytes_per_step' of the step record is not a number"),
            (
                self.STEP,
                "split_seconds",
                {"compute": 1},
                "'communication' of the step record's split_seconds is missing",
            ),
            (self.STEP, "split_seconds", 3, "'split_seconds' of the step record is not an object"),
            (self.TIMELINE, "forward", [2, 1], "'forward' of the timeline record is not a pair of numbers in order"),
            (self.TIMELINE, "seconds", 0, "not above 0"),
            (self.TIMELINE, "buckets", [3], "'buckets' of the timeline record is not a list of objects"),
            (
                self.TIMELINE,
                "buckets",
                [{"bytes": 1, "sent": 1, "ready": 0, "hook": [0, 1], "calls": [[1]]}],
                "'calls' of the timeline record's buckets is not a list of pairs",
            ),
        ):
            with self.subTest(part=part):
                lines = [self.RUN] if record is not self.RUN else []
                self.refused([self.write(*lines, {**record, name: value})], f"written.jsonl:{len(lines) + 1}: ", part)
        for name in self.STEP:
            if name != "type":
                with self.subTest(missing=name):
                    less = {key: value for key, value in self.STEP.items() if key != name}
                    self.refused(
                        [self.write(self.RUN, less)], "written.jsonl:2: ", f"'{name}' of the step record is missing"
                    )

    def test_page_that_cannot_be_written(self):
        done = command(BENCH, "-o", self.folder / "no" / "page.html")
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, "", 1))
        self.assertIn("cannot be written", done.stderr)


class Numbers(unittest.TestCase):
    def test_three_digits_and_a_unit(self):
        sys.path.insert(0, str(ROOT / "python" / "gradwire"))
        try:
            from report.text import binary_bytes, human_bytes, human_seconds, plain
        finally:
            sys.path.pop(0)
        for write, value, text in (
            (human_seconds, 0, "0"),
            (human_seconds, 1e-5, "10 µs"),
            (human_seconds, 0.00123456, "1.23 ms"),
            (human_seconds, 0.0128, "12.8 ms"),
            (human_seconds, 0.128, "128 ms"),
            (human_seconds, 2.5e-7, "0.25 µs"),
            (human_seconds, 12, "12 s"),
            (human_bytes, 0, "0 B"),
            (human_bytes, 1703936, "1.70 MB"),
            (human_bytes, 999, "999 B"),
            (binary_bytes, 25 << 20, "25 MiB"),
            (binary_bytes, 4096, "4 KiB"),
            (plain, 20000, "20000"),
            (plain, 2.5, "2.5"),
        ):
            self.assertEqual(write(value), text)


ORIGIN = {
    "command": "gradwire-bench network",
    "machine": "A Processor, 2 processors",
    "versions": "PyTorch 2.13",
    "day": "2026-11-23",
}


def network_line(backend, hook, median):
    return {
        "benchmark": "network",
        "hook": hook,
        "backend": backend,
        "world": 2,
        "hosts": 2,
        "ranks_per_host": 1,
        "rate": "1gbit",
        "bytes": 25 << 20,
        "median_us": median,
        "p10_us": median,
        "p90_us": median,
        "sent_bytes": 100,
        "compression": None,
        "pays_below_gbit": None,
        "origin": ORIGIN,
    }


class TablesAndPictures(ReportTest):
    PAGE = "before\n<!-- figures: begin (make bench writes what follows) -->\nold\n<!-- figures: end -->\nafter\n"

    def run_with(self, *lines, page=PAGE):
        file = self.folder / "page.md"
        file.write_text(page)
        pictures = self.folder / "pictures"
        pictures.mkdir(exist_ok=True)
        for old in pictures.iterdir():
            old.unlink()
        written = self.write(*lines)
        output = self.folder / "report.html"
        done = command(written, "-o", output, "--tables", file, "--pictures", pictures)
        return done, file.read_text(), {path.name: path.read_text() for path in pictures.iterdir()}

    def test_tables_stand_between_the_marks_and_hold_the_numbers(self):
        done, page, _ = self.run_with(*records(BENCH), network_line("ucx", "one_bit", 28500))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(page.startswith("before\n<!-- figures: begin"))
        self.assertTrue(page.endswith("<!-- figures: end -->\nafter\n"))
        self.assertNotIn("old", page)
        self.assertIn("    gradwire-bench network\n", page)
        self.assertIn("A Processor, 2 processors; PyTorch 2.13; 2026-11-23.", page)
        self.assertIn("| one_bit | 25 MiB | 28.5 ms (28.5 ms to 28.5 ms) |", page)
        for line in records(BENCH):
            if line["benchmark"] == "collectives" and line["collective"] == "barrier":
                ratio = line["peers"]["OpenMPI"]["ratio"]
                (row,) = [row for row in page.splitlines() if row.startswith("| barrier")]
                self.assertIn(f"**{ratio:.2f}x**", row)
        self.assertIn("PyTorch has no such hook", page)

    def test_filling_a_page_again_changes_nothing(self):
        _, once, _ = self.run_with(*records(BENCH))
        _, twice, _ = self.run_with(*records(BENCH), page=once)
        self.assertEqual(once, twice)

    def test_pictures_are_drawn_of_what_there_is(self):
        _, _, pictures = self.run_with(*records(BENCH))
        self.assertEqual(sorted(pictures), ["all_reduce.svg", "ddp.svg"])
        (svg,) = Tree(pictures["all_reduce.svg"]).root.children
        series = {name for line in records(BENCH) if line["benchmark"] == "all_reduce" for name in line["contestants"]}
        sizes = {line["bytes"] for line in records(BENCH) if line["benchmark"] == "all_reduce"}
        self.assertEqual(len(svg.all("path", class_="curve")), len(series))
        self.assertEqual(len(svg.all("circle")), len(series) * len(sizes))
        self.assertLessEqual(series, {text.text for text in svg.all("text", class_="name")})

    def test_bars_are_as_long_as_what_they_show(self):
        _, _, pictures = self.run_with(network_line("gloo", "allreduce", 200000), network_line("ucx", "int4", 50000))
        (svg,) = Tree(pictures["network.svg"]).root.children
        bars = [float(bar.attributes["width"]) for bar in svg.all("rect", class_="bar")]
        self.assertEqual(len(bars), 2)
        self.assertAlmostEqual(bars[0] / bars[1], 4, places=2)
        self.assertIn(f"{ORIGIN['machine']}; {ORIGIN['versions']}; {ORIGIN['day']}", svg.words())

    def test_what_is_wrong(self):
        done, page, _ = self.run_with(*records(BENCH), page="no marks")
        self.assertEqual((done.returncode, page), (2, "no marks"))
        self.assertIn("it has no place for tables", done.stderr)
        output = self.folder / "report.html"
        done = command(BENCH, "-o", output, "--tables", self.folder / "nowhere.md")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot be read", done.stderr)
        done = command(BENCH, "-o", output, "--pictures", BENCH / "no folder")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be written", done.stderr)

    def test_the_folder_of_pictures_is_made(self):
        folder = self.folder / "new" / "pictures"
        done = command(BENCH, "-o", self.folder / "report.html", "--pictures", folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue((folder / "ddp.svg").is_file())

    def test_bars_of_gains_go_to_the_left_of_zero_and_labels_stay_within(self):
        lines = [line for line in records(BENCH) if line["benchmark"] == "ddp"]
        lines[0] |= {"ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.9}
        lines[0]["contestant"] = "gradwire shm, gradient_as_bucket_view, set_to_none"
        lines[1] |= {"ratio": 1.4, "ratio_low": 1.3, "ratio_high": 1.5}
        _, _, pictures = self.run_with(*lines[:2])
        (svg,) = Tree(pictures["ddp.svg"]).root.children
        gain, cost = (bar.attributes for bar in svg.all("rect", class_="bar"))
        self.assertAlmostEqual(2 * float(gain["width"]), float(cost["width"]), delta=0.2)
        self.assertAlmostEqual(float(gain["x"]) + float(gain["width"]), float(cost["x"]), delta=0.2)
        self.assertEqual(gain["style"], cost["style"])
        label = next(text for text in svg.all("text", class_="name") if "set_to_none" in text.text)
        self.assertGreaterEqual(float(label.attributes["x"]), 6.5 * len(label.text))

    def test_whoever_is_compared_has_one_colour(self):
        _, _, pictures = self.run_with(*records(BENCH), network_line("ucx", "int4", 50000))
        for words in ("gradwire", "PyTorch"):
            colours = set()
            for picture in pictures.values():
                (svg,) = Tree(picture).root.children
                marks = [rect for rect in svg.all("rect") if rect.attributes.get("rx") == "3"]
                names = svg.all("text", class_="name")[: len(marks)]
                first = [mark for mark, name in zip(marks, names) if words in name.text][:1]
                colours |= {mark.attributes["style"] for mark in first}
            self.assertEqual(len(colours), 1, words)


class MakeBench(ReportTest):
    """scripts/bench.py, for a few seconds."""

    def test_lines_say_where_they_come_from_and_the_report_is_made(self):
        build = self.folder / "build"
        build.mkdir()
        (build / "bin").symlink_to(BUILD / "bin")
        done = subprocess.run(
            [ROOT / "scripts" / "bench.py", build, "--quick"], capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = records(build / "bench" / "all_reduce.jsonl")
        self.assertEqual([line["bytes"] for line in lines], [4096, 65536])
        for line in lines:
            self.assertIn("gradwire-bench all_reduce", line["origin"]["command"])
            self.assertIn("processors", line["origin"]["machine"])
        self.assertIn("all_reduce", (build / "bench" / "report.html").read_text())


    def test_the_program_has_the_commands_and_options(self):
        spec = importlib.util.spec_from_file_location("bench", ROOT / "scripts" / "bench.py")
        bench = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(bench)
        for name, arguments in (bench.BENCHMARKS | bench.QUICK).items():
            command, *others = arguments.split()
            done = subprocess.run(
                [BUILD / "bin" / "gradwire-bench", command, "--help"], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.returncode, 0, name)
            known = {word for line in done.stdout.splitlines() for word in line.split()[:1]}
            self.assertLessEqual({word for word in others if word.startswith("--")}, known, name)

    def test_docs_are_of_all_figures(self):
        done = subprocess.run(
            [ROOT / "scripts" / "bench.py", self.folder, "--quick", "--docs"], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("leave out --only and --quick", done.stderr)


class PackageTest(ReportTest):
    def test_module_needs_only_the_standard_library(self):
        (self.folder / "gradwire").mkdir()
        (self.folder / "gradwire" / "report").symlink_to(ROOT / "python" / "gradwire" / "report")
        output = self.folder / "page.html"
        # -S: without installed packages.
        done = subprocess.run(
            [sys.executable, "-S", "-m", "gradwire.report", BENCH, "-o", output],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            output.read_text(),
            (command(BENCH, "-o", self.folder / "same.html"), (self.folder / "same.html").read_text())[1],
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
