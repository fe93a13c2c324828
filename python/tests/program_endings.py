# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that end in every order, some at a time: two ranks each, forked from this process, which keeps the cores busy too.

    program_endings.py ROUNDS     each way to end, ROUNDS times; one line for each end that was not clean

Forked, because importing torch takes far longer than such a program. A child leaves the loop of its parent, runs its
program at the level of this module, and ends as any interpreter does.
"""
from __future__ import annotations

import atexit
import collections
import gc
import os
import signal
import sys
import tempfile
import threading

import torch
import torch.distributed as td

import gradwire
import gradwire.distributed as dist
from gradwire.distributed.optim import DilocoAverager
from gradwire.nn.parallel import DistributedDataParallel

SIZE = 2
AT_ONCE = 4  # programs
# A child that has not ended by then is ended by its alarm clock.
GUARD = 300


def hook(state, bucket):
    dist.all_reduce(bucket.buffer(), group=bucket.group)
    return bucket.buffer().div_(bucket.divisor)


def trained(hooked=True, **options):
    """A DistributedDataParallel after some steps: its lanes have just let go of what Python gave them."""
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), **options)
    if hooked:
        ddp.register_comm_hook({"of": "Python"}, hook)
    for _ in range(2):
        # Threads that run what this one has called carry these two Python functions as long as that takes.
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            ddp(torch.ones(2, 8)).sum().backward()
    return ddp


def never_destroyed():
    return {"ddp": trained(), "plain": trained(hooked=False)}


def destroyed_before():
    ddp = trained()
    dist.destroy_process_group()
    return {"ddp": ddp}


def destroyed_after():
    ddp = trained()
    del ddp
    dist.destroy_process_group()
    return {}


def destroyed_by_a_later_handler():
    atexit.register(dist.destroy_process_group)
    return {"ddp": trained()}


def group_first():
    group = dist.new_group()
    ddp = trained(process_group=group)
    dist.destroy_process_group(group)
    del group
    return {"ddp": ddp}


def cycle():
    gc.disable()
    ddp = trained()
    ddp.circle = [ddp]
    return {}


def held_by_cpp():
    # The hook's state holds the DistributedDataParallel, which holds the hook: no collector of Python's sees that.
    ddp = trained(hooked=False)
    ddp.replace_comm_hook([ddp], hook)
    ddp(torch.ones(2, 8)).sum().backward()
    return {}


def exits():
    globals()["ddp"] = trained()
    sys.exit(0)


def raises():
    globals()["ddp"] = trained()
    raise ValueError("the end")


def futures_of_collectives():
    called = []
    group = dist.group.WORLD.dup()
    futures = [group.allreduce([torch.ones(8)]).get_future().then(called.append) for _ in range(20)]
    futures += [dist.all_reduce(torch.ones(8), async_op=True).get_future().then(called.append) for _ in range(20)]
    return {"futures": futures, "group": group if int(os.environ["RANK"]) else None}


def nobody_answers():
    ddp = trained()
    if int(os.environ["RANK"]) == 0:
        return {"ddp": ddp, "work": dist.all_reduce(torch.ones(8), async_op=True)}
    return {"ddp": ddp}


def exchange_under_way():
    parameters = [torch.zeros(8, requires_grad=True)]
    diloco = DilocoAverager(parameters, 3, overlap=2)
    for _ in range(3 if int(os.environ["RANK"]) == 0 else 2):
        diloco.average_parameters(parameters)
    return {"diloco": diloco}


def graph_is_left():
    ddp = trained()
    return {"loss": ddp(torch.ones(2, 8)).sum(), "ddp": ddp}


def a_thread_waits():
    def listen():  # for what the other rank wants next
        try:
            dist.recv(torch.ones(3), 1 - int(os.environ["RANK"]))
        except RuntimeError:
            pass

    threading.Thread(target=listen, daemon=True).start()
    dist.all_reduce(torch.ones(1))
    return {}


def a_thread_waits_for_a_sum():
    def add():
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            pass

    if os.environ["RANK"] == "0":
        threading.Thread(target=add, daemon=True).start()
    return {}


def pytorchs():
    td.init_process_group("gradwire", init_method=f"file://{os.environ['MEET']}td", rank=int(os.environ["RANK"]),
                          world_size=SIZE)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
    return {"model": model, "works": [td.all_reduce(torch.ones(8), async_op=True) for _ in range(5)]}


WAYS = [never_destroyed, destroyed_before, destroyed_after, destroyed_by_a_later_handler, group_first, cycle, held_by_cpp,
        exits, raises, futures_of_collectives, nobody_answers, exchange_under_way,
        graph_is_left, a_thread_waits, a_thread_waits_for_a_sum,
        pytorchs]


def keep_busy():
    """Processes that use all cores until this one ends."""
    pids = []
    for _ in range(os.cpu_count() or 1):
        pid = os.fork()
        if pid == 0:
            parent = os.getppid()
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)
        pids.append(pid)
    return pids


def became_rank(number, folder, pids):
    """Forks the ranks of one program. True in each of them; else it has added their processes to `pids`."""
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            signal.alarm(GUARD)
            os.environ.update(RANK=str(rank), MEET=f"{folder}/{number}")
            written = os.open(f"{folder}/{number}.{rank}", os.O_CREAT | os.O_WRONLY)
            os.dup2(written, 1)
            os.dup2(written, 2)
            return True
        pids.append(pid)
    return False


def expect_clean_end(number, way, folder, pids):
    for rank, pid in enumerate(pids):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(f"{folder}/{number}.{rank}") as file:
            text = file.read()
        expected = (1, "ValueError: the end\n") if way is raises else (0, "")
        if code != expected[0] or not text.endswith(expected[1]) or "terminate" in text or not expected[1] and text:
            print(f"NOT CLEAN {way.__name__} rank {rank} code {code}: {text}", flush=True)


folder = tempfile.TemporaryDirectory()
busy = keep_busy()
program = None
running = collections.deque()
for number in range(int(sys.argv[1]) * len(WAYS)):
    if len(running) == AT_ONCE:
        expect_clean_end(*running.popleft())
    way, pids = WAYS[number % len(WAYS)], []
    if became_rank(number, folder.name, pids):
        folder._finalizer.detach()  # the parent's
        program = way
        break
    running.append((number, way, folder.name, pids))
if program is None:
    for each in running:
        expect_clean_end(*each)
    for pid in busy:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(f"{int(sys.argv[1]) * len(WAYS)} programs ended", flush=True)
else:
    rank = int(os.environ["RANK"])
    if program is not pytorchs:
        dist.init_process_group("shm", f"file://{os.environ['MEET']}", rank=rank, world_size=SIZE)
    globals().update(program())
