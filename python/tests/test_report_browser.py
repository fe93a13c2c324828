#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Looks at gradwire.report's pages in a headless Chromium: everything lies where its number says, is inside the window,
can be read in light and dark, and the page asks for nothing. Exits with 77 where there is no Chromium (scripts/setup.sh
browser installs it). The environment may name another: GRADWIRE_BROWSER."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_recorded import record  # noqa: E402
from test_report import BENCH, ReportTest, Tree, command, records, train  # noqa: E402

NAMES = (
    [os.environ["GRADWIRE_BROWSER"]]
    if "GRADWIRE_BROWSER" in os.environ
    else ["chromium", "chromium-browser", "google-chrome"]
)
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = f"there is no {' or '.join(NAMES)}; scripts/setup.sh browser installs chromium"
# Without a sandbox of its own, which containers and root do not allow; the pages are ours.
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"]
LIGHT_PAGE, DARK_PAGE = (0xF4, 0xF5, 0xF7), (0x14, 0x18, 0x1E)

# What runs in the page.
MEASURE = (pathlib.Path(__file__).resolve().parent / "report_data" / "measure.js").read_text()


def setUpModule():
    if BROWSER is None:
        raise unittest.SkipTest(MISSING)


def browse(folder, page, *options, width=1100, height=900, dark=False):
    done = subprocess.run(
        [
            BROWSER,
            *OPTIONS,
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--enable-logging=stderr",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        timeout=240,
    )  # generous: it only ends what hangs
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def pixels(file):
    """The colours of an 8-bit RGB or RGBA PNG, each as (red, green, blue)."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            packed += body
        at += length + 12
    assert depth == 8 and colour in (2, 6), (depth, colour)
    size = 3 if colour == 2 else 4
    raw, row, colours = zlib.decompress(packed), bytearray(width * size), set()
    for line in range(height):
        begin = line * (width * size + 1)
        how, above, row = raw[begin], row, bytearray(raw[begin + 1 : begin + 1 + width * size])
        for i in range(len(row)) if how else ():
            left = row[i - size] if i >= size else 0
            corner = above[i - size] if i >= size else 0
            if how == 1:
                row[i] = row[i] + left & 255
            elif how == 2:
                row[i] = row[i] + above[i] & 255
            elif how == 3:
                row[i] = row[i] + (left + above[i]) // 2 & 255
            else:
                guess = left + above[i] - corner
                row[i] = row[i] + min((left, above[i], corner), key=lambda value: abs(guess - value)) & 255
        colours.update(zip(row[0::size], row[1::size], row[2::size]))
    return colours


class Browser(ReportTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = [
            train(cls.folder, "plain", "--steps", "8"),
            train(cls.folder, "power", "--steps", "8", "--hook", "power_sgd:rank=2,start=4,min_rate=1"),
        ]
        recorded = record(cls.folder, "auto", "--hook", "auto", steps=60)[0]
        cls.pages = {"single": [cls.runs[1]], "compared": [*cls.runs, BENCH], "recorded": [recorded]}
        for name, files in cls.pages.items():
            done = command(*files, "-o", cls.folder / f"{name}.html")
            assert done.returncode == 0, done.stderr

    def measured(self, name, **how):
        """What MEASURE says of a page; a copy of it, since the page itself allows no script."""
        page = (self.folder / f"{name}.html").read_text()
        page, found = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        self.assertEqual(found, 1)
        copy = self.folder / "copy.html"
        copy.write_text(page.replace("</body>", f"<script>{MEASURE}</script></body>"))
        dom, errors = browse(self.folder, copy, "--dump-dom", **how)
        self.assertIn('id="measured"', dom, errors)
        return json.loads(Tree(dom).root.one("pre", id="measured").text)

    def look(self, name, **how):
        measured = self.measured(name, **how)
        self.assertEqual(measured["problems"], [])
        self.assertGreaterEqual(measured["faintest"], 4.5, "the contrast that WCAG asks of text")
        self.assertEqual(measured["dark"], how.get("dark", False))
        self.assertGreater(len(measured["blocks"]), 20)
        for begin, end, left, right, pixel in measured["blocks"]:
            self.assertAlmostEqual(left, begin, delta=pixel)
            self.assertAlmostEqual(right, max(end, begin + pixel), delta=2 * pixel)
        for chart in measured["bars"]:
            value, width = max(chart)
            self.assertGreater(width, 40)
            for own, drawn in chart:
                self.assertAlmostEqual(drawn, width * own / value, delta=1)

    def test_single_run(self):
        self.look("single")

    def test_comparison_in_the_dark(self):
        self.look("compared", dark=True)

    def test_comparison_on_a_narrow_screen(self):
        self.look("compared", width=520)

    def test_pages_on_a_phone(self):
        self.look("single", width=390)
        self.look("compared", width=390)

    def test_recorded_job_whose_hook_is_auto(self):
        self.look("recorded")
        self.look("recorded", width=390, dark=True)

    def test_marks_of_a_timeline_stay_inside_wherever_it_ends(self):
        lines = records(self.runs[1])
        step = {**lines[-2], "buckets": []}
        for name in ("forward", "backward", "wait", "optimizer"):
            step[name] = [0, 0.0001]
        # The last mark, at 2.50 ms, 3.50 ms and so on, is just before the end.
        lengths = (0.00262, 0.00367, 0.105, 0.2625, 0.00105)
        steps = [{**step, "step": number, "seconds": length} for number, length in enumerate(lengths)]
        file = self.write(lines[0], *steps)
        self.assertEqual(command(file, "-o", self.folder / "lengths.html").returncode, 0)
        self.assertEqual(self.measured("lengths", width=520)["problems"], [])

    def test_page_is_painted_and_asks_for_nothing(self):
        page = self.folder / "single.html"
        for dark, background in ((False, LIGHT_PAGE), (True, DARK_PAGE)):
            picture = self.folder / "page.png"
            _, errors = browse(self.folder, page, f"--screenshot={picture}", width=600, height=1100, dark=dark)
            self.assertNotIn("CONSOLE", errors)
            colours = pixels(picture)
            self.assertIn(background, colours)
            self.assertGreater(len(colours), 50)
        # What the page does not bring itself, the browser refuses and says so.
        asking = self.folder / "asking.html"
        asking.write_text(
            page.read_text().replace("</body>", '<script src="http://127.0.0.1:9/script.js"></script></body>')
        )
        _, errors = browse(self.folder, asking, "--dump-dom")
        self.assertIn("Content Security Policy", errors)


if __name__ == "__main__":
    if BROWSER is None:
        print(MISSING)
        sys.exit(77)
    unittest.main(verbosity=2)
