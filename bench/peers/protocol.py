# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Contestants in Python: the lines that bench/worker.h describes, and its loop around what is measured."""
import os
import socket
import time
import traceback
from typing import NamedTuple

import torch


class Measurement(NamedTuple):
    bytes: int
    iterations: int
    warm_up: int
    variant: str
    cold: bool


class Subject:
    """What a contestant does; the methods are those of worker.h's Subject."""

    def prepare(self, what):
        pass

    def refill(self):
        pass

    def barrier(self):
        pass

    def run(self):
        raise NotImplementedError


def pin_to_processor(index):
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[index % len(allowed)]})


def _measure(what, subject, evict):
    subject.prepare(what)
    samples = []
    for i in range(what.warm_up + what.iterations):
        subject.refill()
        if what.cold:
            evict.add_(1)
        subject.barrier()
        begin = time.perf_counter()
        subject.run()
        took = time.perf_counter() - begin
        if i >= what.warm_up:
            samples.append(took * 1e6)
    subject.barrier()
    return samples


def _one_line(error):
    """What is wrong: the innermost message of an error in a callback, and the place of an error that says nothing."""
    first = (str(error).strip().splitlines() or [""])[0]
    if not first:
        return f"{type(error).__name__} in {traceback.extract_tb(error.__traceback__)[-1].name}"
    _, separator, inner = first.rpartition("when running the callback: ")
    return inner if separator else f"{type(error).__name__}: {first}"


def serve(path, contestant, rank, subject):
    """Serves the coordinator at `path` until it says quit or goes away. After an error it may ask for something else."""
    evict = torch.zeros(64 << 20, dtype=torch.uint8)
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.sendall(f"hello {contestant} {rank}\n".encode())
    for command in line.makefile():
        words = command.split()
        if words[0] == "quit":
            break
        what = Measurement(int(words[1]), int(words[2]), int(words[3]), words[4], words[5] == "cold")
        try:
            samples = _measure(what, subject, evict)
            reply = "samples " + " ".join(f"{s:.3f}" for s in samples) if rank == 0 else "done"
        except Exception as error:
            reply = f"error {_one_line(error)}"
        line.sendall(f"{reply}\n".encode())
