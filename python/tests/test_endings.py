# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a Python program is clean in every order of destruction, and a group may be dropped at any time.

GRADWIRE_ENDINGS is how often each way to end is tried on busy cores: once, and 72 times in the slow run, which makes 1,008.
"""
import os
import pathlib
import subprocess
import sys

import gradwire

ENDINGS = int(os.environ.get("GRADWIRE_ENDINGS", "1"))
GUARD = 500


def test_every_end_is_clean_on_a_busy_machine():
    program = pathlib.Path(__file__).with_name("program_endings.py")
    where = os.pathsep.join([str(pathlib.Path(gradwire.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run([sys.executable, str(program), str(ENDINGS)], capture_output=True, text=True, check=False,
                            env={**os.environ, "PYTHONPATH": where, "OMP_NUM_THREADS": "1"}, timeout=GUARD * ENDINGS)
    assert result.returncode == 0 and "programs ended" in result.stdout, result.stdout + result.stderr
    assert "NOT CLEAN" not in result.stdout, result.stdout
    print(result.stdout)


DROPS = """
import os, torch
import torch.distributed as td
from datetime import timedelta
import gradwire, gradwire.distributed as dist
from gradwire.distributed import nn

rank, size, meet = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MEET"]
dist.init_process_group("shm", f"file://{meet}", rank=rank, world_size=size)
world = dist.group.WORLD

def made(number):
    return dist.make_process_group("shm", dist.FileStore(f"{meet}-{number}", size), rank, size)

def used(group):
    group.allreduce([torch.ones(3)]).wait()

def dup(number):
    used(world.dup())

def split(number):
    used(world.split(0, rank))

def make(number):
    used(made(number))

def graph(number):
    group = made(number)
    total = nn.all_reduce(torch.ones(3, requires_grad=True), group=group)
    used(group)
    del group  # the graph of `total` is the last to hold it

def backend(number):
    backend = gradwire._C.make_c10d_backend(td.FileStore(f"{meet}-{number}", size), rank, size, timedelta(seconds=60))
    backend.allreduce([torch.ones(3)]).wait()

def adapted(number):
    group = made(number)
    backend = gradwire.to_c10d(group)
    used(group)
    del group

def hook(number):
    group = world.dup()
    used(group)
    held = gradwire._C.hooks.make_allreduce_hook(group)
    del group

for way in (dup, split, make, graph, backend, adapted, hook):
    for number in range(40):
        way(f"{way.__name__}{number}")
    print(way.__name__, flush=True)
dist.destroy_process_group()
"""


def test_a_group_that_python_drops_ends_while_its_thread_wants_the_lock(run_script):
    for process in run_script(DROPS, 2):
        output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0 and output.split() == ["dup", "split", "make", "graph", "backend", "adapted", "hook"]
