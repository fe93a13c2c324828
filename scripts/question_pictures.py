#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/questions.md: scripts/question_pictures.py BUILD. Runs the commands of that page (as root, because
one job runs on two hosts, which are network namespaces), and writes docs/pictures/question_*.svg."""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RATE = "100mbit"

# A job of which rank 1 computes more than the others.
SLOW = """
import torch
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group()
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
more = torch.nn.Linear(512, 512)
for step in range(60):
    optimizer.zero_grad()
    x = torch.randn(32, 512)
    if dist.get_rank() == 1:
        for _ in range(30):
            x = torch.tanh(more(x)).detach()
    model(x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


class Maker:
    def __init__(self, build: pathlib.Path, folder: pathlib.Path) -> None:
        self.build, self.folder = build, folder
        self.launcher = str(build / "bin/gradwire-run")
        self.environment = {**os.environ, "PYTHONPATH": str(build / "python")}
        self.text = folder / "text"
        self.text.write_text("".join(f"{i} green bottles hang on wall number {i % 7}.\n" for i in range(3000)))

    def run(self, *command: str | pathlib.Path, fails: bool = False) -> None:
        print(" ".join(map(str, command)), flush=True)
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0 and not fails:
            raise SystemExit(done.stdout + done.stderr)

    def char_lm(self, *options: str) -> list[str]:
        return [str(self.build / "bin/char_lm"), "--text", str(self.text), "--layers", "2", "--width", "192", "--heads", "2",
                "--context", "32", "--batch", "8", "--threads", "1", "--generate", "0", "--eval-batches", "1", *options]  # fmt: skip

    def picture(self, target: pathlib.Path, name: str) -> None:
        """What the report draws of the folder, as docs/pictures/question_NAME.svg."""
        made = self.folder / "pictures"
        self.run(sys.executable, "-m", "gradwire.report", target, "-o", self.folder / "page.html", "--pictures", made)
        shutil.copy(made / f"{name}.svg", ROOT / "docs/pictures" / f"question_{name}.svg")

    def what_is_it_doing(self) -> None:
        self.run(self.launcher, "-n", "2", "--record", self.folder / "step", *self.char_lm("--steps", "40"))
        self.picture(self.folder / "step", "step")

    def why_is_it_slow(self) -> None:
        program = self.folder / "train.py"
        program.write_text(SLOW)
        self.run(self.launcher, "-n", "3", "--record", self.folder / "time", sys.executable, program)
        self.picture(self.folder / "time", "time")

    def who_hangs(self) -> None:
        program = self.build / "bin/tests/fault_program"
        target = self.folder / "hang"
        self.run(self.launcher, "-n", "3", "--stall", "1", "--timeout", "8", "--flight-dir", target, program, "stopped", "1", "5", "20",
                 fails=True)  # fmt: skip
        self.picture(target, "hang")

    def would_compression_pay(self) -> None:
        sys.path.insert(0, str(ROOT / "python/tests"))
        from two_hosts import SwitchedHosts, address_of, why_not

        if reason := why_not():
            raise SystemExit(f"no picture of two hosts: {reason}")
        hosts = SwitchedHosts(2)
        secret = self.folder / "secret"
        secret.write_text("the hosts of this picture\n")
        secret.chmod(0o600)
        jobs = []
        for host in range(2):
            self.run(*hosts.enter(host), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", RATE, "burst", "128kb",
                     "latency", "100ms")  # fmt: skip
            command = [*hosts.enter(host), self.launcher, "-n", "1", "--nnodes", "2", "--node-rank", str(host), "--rendezvous",
                       f"{address_of(0)}:29400", "--secret-file", str(secret), "--record", str(self.folder / f"choices-{host}"),
                       *self.char_lm("--hook", "auto", "--steps", "70")]  # fmt: skip
            print(" ".join(command), flush=True)
            jobs.append(subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL))
        failed = [job.wait() for job in jobs if job.wait() != 0]
        hosts.close()
        if failed:
            raise SystemExit("the job on two hosts failed")
        self.picture(self.folder / "choices-0", "choices")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(options.build.resolve(), pathlib.Path(folder))
        maker.what_is_it_doing()
        maker.why_is_it_slow()
        maker.who_hangs()
        maker.would_compression_pay()
    return 0


if __name__ == "__main__":
    sys.exit(main())
