# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One member of an elastic job of test_elastic.py, of which the first to start is slow: program_slow.py FOLDER."""
import pathlib
import sys
import time

import torch

from gradwire.elastic import Elastic, SlowRule
from gradwire.nn.parallel import DistributedDataParallel
from program_elastic import once

STEPS = 40


def main():
    pause = 0.15 if once(pathlib.Path(sys.argv[1]) / "slow") else 0.01
    torch.set_num_threads(1)
    named = []
    elastic = Elastic(slow=SlowRule(factor=2, steps=3, drop=True), on_slow=named.append)
    model = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=elastic.group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    elastic.add(model, optimizer)

    def step(at):
        time.sleep(pause)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    end = elastic.run(STEPS, step)
    slow = named[0]
    assert slow.own_seconds > 2 * slow.others_seconds > 0
    assert slow.host
    # One write, which no other rank's can come between.
    print(f"{end} slow rank {slow.rank}\n", end="")


if __name__ == "__main__":
    main()
