# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One member of an elastic job of test_elastic.py: program_elastic.py FOLDER [zero|scaled|follow|norm|catches|join].

catches: the loop leaves out a batch whose step raises, so it catches the errors of collectives too.

follow: the process in the place of the killed rank follows the others before it takes part.
join: each step is a Join over one to three batches, with a step of the optimizer after each, and the rank dies in the second one.
norm: the model has a layer that normalizes by the samples of all members.
scaled: as zero, with a GradScaler whose gradients are unscaled before the step in which the rank dies.
zero: the members share out the state of Adam, and the killed rank dies after it has stepped its own parameters."""
import datetime
import os
import pathlib
import signal
import sys
import time

import torch

import gradwire
import gradwire.distributed as dist
from gradwire.distributed.algorithms import Join, JoinableStep
from gradwire.distributed.optim import ZeroRedundancyOptimizer
from gradwire.nn import SyncBatchNorm
from gradwire.nn.parallel import DistributedDataParallel

STEPS = 120
KILL_AT = 40  # the step in which a rank is killed
WAIT_AT = 80  # the step that waits for the process in its place
MEET_AT = 100  # the step at which the others wait until a process that follows is there
LAST_ALONE = 110  # the step at which they wait until that process has caught up


def network(normalized=False):
    torch.manual_seed(1)
    # The gradient of a bias before a normalization is rounding alone, which Adam makes large.
    first = torch.nn.Linear(8, 16, bias=not normalized)
    middle = torch.nn.BatchNorm1d(16) if normalized else torch.nn.Tanh()
    return torch.nn.Sequential(first, middle, torch.nn.Linear(16, 1))


def optimizers(model, optimizer=None):
    optimizer = torch.optim.Adam(model.parameters(), 0.01) if optimizer is None else optimizer
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 30)


def samples(step, rank, size):
    generator = torch.Generator().manual_seed(step * 1000 + size * 100 + rank)
    return torch.randn(4, 8, generator=generator)


def batches(step, rank):
    """How many batches a rank has in a step, where the ranks have different numbers."""
    return 1 + (step + rank) % 3


def loss_of(output):
    return output.square().mean()


def wait_for(key):
    """Waits until the coordinator has decided what `key` of the job's store tells."""
    store = dist.PrefixStore("elastic", dist.FileStore(os.environ["GRADWIRE_ELASTIC"]))
    store.wait([key], datetime.timedelta(seconds=60))


def wait_for_newcomer(epoch, what="change"):
    """Waits until the members of the epoch are to stop for the process that comes, which then finds steps left.

    what: "follower/0" waits until that process may follow them. Members with little state are ready for it at the next
    step, and it follows from the one after that."""
    wait_for(f"epoch/{epoch}/{what}")


def once(path):
    """Whether this is the first call for the path, of all processes."""
    try:
        path.touch(exist_ok=False)
        return True
    except FileExistsError:
        return False


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    follows = "follow" in sys.argv[2:]
    if follows and (folder / "killed").exists():
        wait_for("epoch/2")  # which it follows: a process that comes while the others meet is in their epoch at once
    uneven = "join" in sys.argv[2:]
    elastic = gradwire.elastic.Elastic(seed=3, follow=follows, copy_before_step=uneven)
    net = SyncBatchNorm.convert_sync_batchnorm(network("norm" in sys.argv[2:]), elastic.group)
    model = DistributedDataParallel(net, process_group=elastic.group)
    scaled = "scaled" in sys.argv[2:]
    with_zero = "zero" in sys.argv[2:] or scaled
    present = None  # the step under way

    def die_once():
        if present.step == KILL_AT and present.rank == 1 and once(folder / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    class DyingAdam(torch.optim.Adam):
        def step(self, closure=None):
            loss = super().step(closure)
            die_once()
            return loss

    zero = ZeroRedundancyOptimizer(model.parameters(), DyingAdam, elastic.group, lr=0.01) if with_zero else None
    optimizer, scheduler = optimizers(model, zero)
    history = []
    followed = 0
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    elastic.add(model, optimizer, scheduler, scaler)
    elastic.add_state("history", lambda: bytes(history), lambda state: history.__setitem__(slice(None), state))

    def train_uneven(at):
        with Join([model, JoinableStep(model, optimizer.step)]):
            for k in range(batches(at.step, at.rank)):
                optimizer.zero_grad()
                loss = loss_of(model(samples(at.step + STEPS * k, at.rank, at.size)))
                if k == 1:
                    die_once()
                loss.backward()
                optimizer.step()
        scheduler.step()
        history.append(at.size)

    def step(at):
        nonlocal present, followed
        present = at
        followed += at.follows
        if at.step == MEET_AT and at.follows:
            (folder / "met").touch()
        while at.step == MEET_AT and follows and at.epoch == 2 and not (folder / "met").exists():
            time.sleep(0.01)
        if at.epoch == 2 and not at.follows and at.step == WAIT_AT:
            wait_for_newcomer(at.epoch, "follower/0" if follows else "change")
        if at.epoch == 2 and not at.follows and follows and at.step == LAST_ALONE:
            wait_for_newcomer(at.epoch)
        if uneven:
            train_uneven(at)
            return
        optimizer.zero_grad()
        loss = loss_of(model(samples(at.step, at.rank, at.size)))
        if not with_zero:
            die_once()
        try:
            scaler.scale(loss).backward()
        except RuntimeError:
            if "catches" in sys.argv[2:]:
                return
            raise
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        history.append(at.size)

    end = elastic.run(STEPS, step)
    if end == "finished":
        state = {"parameters": [p.detach() for p in model.parameters()], "history": history, "rate": scheduler.get_last_lr()}
        state["buffers"] = list(model.buffers())
        torch.save(state, folder / f"final-{os.getpid()}")
    print(end, elastic.counted)
    if followed:
        print("followed", followed)


if __name__ == "__main__":
    main()
