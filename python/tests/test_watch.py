# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire-run --watch and --watch-port: what a job shows while it runs, read by Prometheus' own parser and as a page."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ports import free_port

GUARD = 120
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
RANKS = 2
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "8", "--threads", "1",
         "--log-every", "5", "--generate", "0", "--eval-batches", "1"]


@pytest.fixture(autouse=True)
def guarded():
    """What is waited for must come: a test that waits longer than GUARD fails."""
    def too_long(*_):
        raise TimeoutError(f"the test has waited for {GUARD} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(GUARD)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def samples(address):
    """{(metric, rank): value} and {metric: type}."""
    with urllib.request.urlopen(address + "metrics", timeout=GUARD) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(answer.read().decode()))
    values = {(sample.name, sample.labels["rank"]): sample.value for family in families for sample in family.samples}
    return values, {family.name: family.type for family in families}


class Links(HTMLParser):
    """What a page would load."""

    def __init__(self, page):
        super().__init__()
        self.found, self.rows = [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.found += [value for name, value in attrs if name in ("src", "href") and not value.startswith("data:")]
        assert tag != "script"


def test_a_job_can_be_watched(tmp_path):
    (tmp_path / "text").write_text("".join(f"{i} green bottles hang on wall number {i % 7}.\n" for i in range(400)))
    command = [BUILD / "bin" / "gradwire-run", "-n", str(RANKS), "--watch", "--watch-port", "0", BUILD / "bin" / "char_lm",
               "--text", tmp_path / "text", "--steps", "10000000", *SMALL]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", job.stderr.readline())[0]
        while True:  # until both ranks have taken steps, and a loss is told; the server says so once a second
            values, types = samples(address)
            steps = [values.get(("gradwire_steps_total", str(rank)), 0) for rank in range(RANKS)]
            if min(steps) > 5 and ("gradwire_loss", "0") in values:
                break
            assert job.poll() is None
        assert types["gradwire_steps"] == "counter" and types["gradwire_loss"] == "gauge"
        for rank in map(str, range(RANKS)):
            assert values["gradwire_sent_bytes_total", rank] > 0
            parts = [values[f"gradwire_{part}_seconds_total", rank] for part in ("compute", "communication", "hook_wait")]
            assert min(parts) >= 0
            assert abs(sum(parts) - values["gradwire_step_seconds_total", rank]) < 1e-6
        while True:  # counters only grow
            later, _ = samples(address)
            assert all(later[name] >= value for name, value in values.items() if name[0].endswith("_total"))
            if later["gradwire_steps_total", "0"] > values["gradwire_steps_total", "0"]:
                break
        with urllib.request.urlopen(address, timeout=GUARD) as answer:
            links = Links(answer.read().decode())
        assert (links.found, links.rows) == ([], 1 + RANKS)
        for path, host in (("nothing", "localhost"), ("metrics", "evil.example")):
            request = urllib.request.Request(address + path, headers={"Host": host})
            try:
                urllib.request.urlopen(request, timeout=GUARD)
                raise AssertionError(path)
            except urllib.error.HTTPError as error:
                assert error.code == (404 if path == "nothing" else 421)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=GUARD)
    finally:
        job.kill()
        job.wait()
    assert re.search(r"gradwire-run: step \d+, [\d.]+ steps/s, \d+% waiting, .* sent a step, loss ", said), said
    assert [path.name for path in tmp_path.iterdir()] == ["text"], "the records of the job go with the job"


@pytest.mark.parametrize("prefix", [[], ["--no-prefix"]])
def test_a_job_on_several_hosts_is_watched_where_it_was_started(tmp_path, prefix):
    (tmp_path / "text").write_text("".join(f"{i} green bottles hang on wall number {i % 7}.\n" for i in range(400)))
    hosts, here = 2, "/bin/sh -c {command} {host}"
    command = [BUILD / "bin" / "gradwire-run", "--hosts", ",".join(f"host{i}" for i in range(hosts)), "--ssh", here,
               "--rendezvous", f"127.0.0.1:{free_port()}", "-n", str(RANKS), *prefix, "--watch", "--watch-port", "0",
               BUILD / "bin" / "char_lm", "--text", tmp_path / "text", "--steps", "10000000", *SMALL]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    printed = []
    reader = threading.Thread(target=lambda: printed.extend(job.stdout))
    reader.start()
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", job.stderr.readline())[0]
        ranks = [str(rank) for rank in range(hosts * RANKS)]
        while True:
            values, _ = samples(address)
            if min(values.get(("gradwire_steps_total", rank), 0) for rank in ranks) > 5:
                break
            assert job.poll() is None
        assert {rank for _, rank in values} == set(ranks)
        while True:  # the reports go on
            later, _ = samples(address)
            if all(later["gradwire_steps_total", rank] > values["gradwire_steps_total", rank] for rank in ranks):
                break
            assert job.poll() is None
        with urllib.request.urlopen(address, timeout=GUARD) as answer:
            assert Links(answer.read().decode()).rows == 1 + len(ranks)
        job.send_signal(signal.SIGTERM)
        said = job.stderr.read()
        job.wait(timeout=GUARD)
    finally:
        job.kill()
        job.wait()
        reader.join()
    assert re.search(r"^gradwire-run: step \d+, [\d.]+ steps/s, \d+% waiting, .* sent a step, loss ", said, re.M), said
    assert "\x1e" not in said and not any("\x1e" in line for line in printed), "reports are not for the user"
    assert any("loss" in line for line in printed), "and all the rest is"


def test_node_0_shows_the_ranks_of_all_nodes(tmp_path):
    (tmp_path / "text").write_text("".join(f"{i} green bottles hang on wall number {i % 7}.\n" for i in range(400)))
    nodes, place = 2, f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def launcher(node, *options):
        command = [BUILD / "bin" / "gradwire-run", "--nnodes", str(nodes), "--node-rank", str(node), "--rendezvous", place, "-n", str(RANKS),
                   *options, BUILD / "bin" / "char_lm", "--text", tmp_path / "text", "--steps", "10000000", *SMALL]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)

    jobs = [launcher(1), launcher(0, "--watch", "--watch-port", "0")]
    try:
        address = next(found[0] for line in jobs[1].stderr if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))
        ranks = [str(rank) for rank in range(nodes * RANKS)]
        seen = []
        while len(seen) < 2:  # the reports go on
            values, _ = samples(address)
            steps = [values.get(("gradwire_steps_total", rank), 0) for rank in ranks]
            if all(now > before for now, before in zip(steps, seen[-1] if seen else [5] * len(ranks))):
                seen.append(steps)
            assert all(job.poll() is None for job in jobs)
        assert {rank for _, rank in values} == set(ranks)
        with urllib.request.urlopen(address, timeout=GUARD) as answer:
            assert Links(answer.read().decode()).rows == 1 + len(ranks)
        jobs[1].send_signal(signal.SIGTERM)
        said = [job.communicate(timeout=GUARD)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert re.search(r"^gradwire-run: step \d+, [\d.]+ steps/s, \d+% waiting, .* sent a step, loss ", said[1], re.M), said
    assert "\x1e" not in "".join(said), "reports are not for the user"
    assert [path.name for path in tmp_path.iterdir()] == ["text"], "the records of the job go with the job"


ELASTIC = """
import os
import pathlib
import sys
import time

import torch
from gradwire.elastic import Elastic
from gradwire.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
elastic = Elastic()
model = DistributedDataParallel(torch.nn.Linear(8, 1), process_group=elastic.group)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
elastic.add(model, optimizer)
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))

def step(at):
    time.sleep(0.005)
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

elastic.run(10_000_000, step)
"""


def test_a_process_that_takes_the_place_of_another_one_is_watched_too(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ELASTIC)
    command = [BUILD / "bin" / "gradwire-run", "--elastic", "1:2", "-n", str(RANKS), "--watch", "--watch-port", "0",
               sys.executable, program, tmp_path]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", job.stderr.readline())[0]

        def steps():
            assert job.poll() is None
            return [samples(address)[0].get(("gradwire_steps_total", str(rank)), 0) for rank in range(RANKS)]

        # Five seconds of steps: gradwire-run looks once a second, and must see the newcomer before it has taken as many.
        while min(steps()) < 1000:
            pass
        before = steps()
        os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
        while True:  # the newcomer has taken fewer steps than the process before it
            after = steps()
            if after[0] > before[0] and 0 < after[1] < before[1]:
                break
            before[1] = max(before[1], after[1])
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=GUARD)
    finally:
        job.kill()
        job.wait()
    assert "a new process takes its place" in said
    assert re.search(r"gradwire-run: step \d+, [\d.]+ steps/s, \d+% waiting, ", said), said
