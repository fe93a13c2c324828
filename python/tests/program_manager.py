# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A loop in the terms of torchft (a manager with quorum and commit calls), over Elastic: program_manager.py FOLDER.

The job of test_elastic.py that loses a rank, and that takes one step back because a rank votes against it.
"""
import os
import pathlib
import signal
import sys

import torch

import gradwire
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel
from program_elastic import KILL_AT, STEPS, WAIT_AT, loss_of, network, once, optimizers, samples, wait_for_newcomer

VOTE_AT = 10  # the step that a rank votes against


class Manager:
    """The calls of torchft's manager. A replica is a member of the job, and a quorum is an epoch."""

    def __init__(self, elastic):
        self._elastic = elastic
        self._quorum = None
        self._error = None

    def run(self, steps, body):
        """Calls body() until `steps` steps are committed."""

        def step(at):
            self._quorum = at
            self._error = None
            body()

        return self._elastic.run(steps, step)

    def start_quorum(self):
        """The number of the quorum. Members come and go between two steps, so there is nothing to wait for here."""
        return self._quorum.epoch

    def current_step(self):
        return self._quorum.step

    def num_participants(self):
        return self._quorum.size

    def participating_rank(self):
        return self._quorum.rank

    def allreduce(self, tensor):
        """The average over the quorum, in place."""
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=self._elastic.group)

    def report_error(self, error):
        """Something of this step went wrong here, so that it must not be committed."""
        self._error = error

    def should_commit(self):
        """Whether all participants are content; else the step is taken back on all, and done again."""
        votes = torch.tensor([0 if self._error is None else 1])
        dist.all_reduce(votes, group=self._elastic.group)
        if votes.item() > 0:
            raise dist.AbortedError(f"{votes.item()} of {self._quorum.size} participants voted against the step")
        return True


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    elastic = gradwire.elastic.Elastic(seed=3)
    manager = Manager(elastic)
    model = DistributedDataParallel(network(), process_group=elastic.group)
    optimizer, scheduler = optimizers(model)
    history = []
    elastic.add(model, optimizer, scheduler)
    elastic.add_state("history", lambda: bytes(history), lambda state: history.__setitem__(slice(None), state))

    def body():
        epoch = manager.start_quorum()
        step, rank, size = manager.current_step(), manager.participating_rank(), manager.num_participants()
        if step == WAIT_AT and size == 1:
            wait_for_newcomer(epoch)
        optimizer.zero_grad()
        loss = loss_of(model(samples(step, rank, size)))
        if step == KILL_AT and rank == 1 and once(folder / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if step == VOTE_AT and rank == 1 and once(folder / "voted"):
            manager.report_error(ArithmeticError(f"the loss of epoch {epoch} is not to be trusted"))
        average = loss.detach().clone()
        manager.allreduce(average)
        if manager.should_commit():
            optimizer.step()
            scheduler.step()
            history.append(size)

    end = manager.run(STEPS, body)
    if end == "finished":
        state = {"parameters": [p.detach() for p in model.parameters()], "history": history, "rate": scheduler.get_last_lr()}
        torch.save(state, folder / f"final-{os.getpid()}")
    print(end, elastic.counted, "in epoch", manager.start_quorum())


if __name__ == "__main__":
    main()
