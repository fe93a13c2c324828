# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One worker of an elastic job of test_elastic.py that trains separately: program_far_apart.py FOLDER [streaming].

A worker dies while the other one waits for it in an exchange, and a new process takes its place."""
import itertools
import os
import pathlib
import signal
import sys
from functools import partial

import torch

from gradwire.distributed.optim import DilocoAverager, PostLocalSGDOptimizer
from gradwire.elastic import Elastic
from program_elastic import loss_of, network, once, wait_for_newcomer

STEPS = 120
INNER_STEPS = 5
RATE_AT = 3  # the step that changes the learning rate
KILL_AT = 14  # the step in which a worker is killed; an exchange ends it
WAIT_AT = 42  # the step that waits for the process in its place
INNER = partial(torch.optim.Adam, lr=0.01)
OUTER = partial(torch.optim.Adam, lr=0.02)


def train(model, optimizer, step, number):
    if step == RATE_AT:
        optimizer.param_groups[0]["lr"] = 0.03
    generator = torch.Generator().manual_seed(step * 1000 + number)
    optimizer.zero_grad()
    loss_of(model(torch.randn(4, 8, generator=generator))).backward()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    number = next(number for number in itertools.count() if once(folder / f"worker{number}"))
    elastic = Elastic()
    model = network()
    options = {"outer": OUTER}
    if "streaming" in sys.argv[2:]:
        options = {"fragments": 2, "overlap": 2, "mixing": 0.5, "hook": "int8:memory=error_feedback"}
    diloco = DilocoAverager(model.parameters(), INNER_STEPS, process_group=elastic.group, **options)
    optimizer = PostLocalSGDOptimizer(INNER(model.parameters()), diloco)
    elastic.add(optimizer)
    steps = []

    def step(at):
        if at.step == WAIT_AT and at.epoch == 2:
            wait_for_newcomer(at.epoch)
        train(model, optimizer, at.step, number)
        if at.step == KILL_AT and at.rank == 1 and once(folder / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append((at.step, at.size))
        optimizer.step()

    end = elastic.run(STEPS, step)
    if end == "finished":
        diloco.finish_exchanges()
        torch.save({"number": number, "steps": steps, "parameters": [p.detach() for p in model.parameters()],
                    "outer": diloco.outer_parameters(), "rate": optimizer.param_groups[0]["lr"]},
                   folder / f"final-{number}")
    print(end, elastic.counted)


if __name__ == "__main__":
    main()
