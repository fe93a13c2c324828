# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""torchft: each rank is a replica of its own. --die STEP: rank 1 leaves then, and rank 0 goes on alone."""
import os
from datetime import timedelta

import torch
from common import STEPS, Report, arguments, batch, make_model
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

args = arguments(die=-1)
rank = int(os.environ["RANK"])
timeout = timedelta(seconds=30)
if args.backend == "gradwire":
    from gradwire.integrations.torchft import ProcessGroupGradwire as Group
else:
    Group = ProcessGroupGloo

# Where replicas find each other: rank 0's lighthouse, whose address is in the launcher's store.
meet = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
if rank == 0:
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1 if args.die >= 0 else 2, join_timeout_ms=2000,
                                  heartbeat_timeout_ms=2000)
    meet.set("lighthouse", lighthouse.address())
# Each replica has a store of its own.
own = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), 0.05)


def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(
    pg=Group(timeout=timeout), load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    min_replica_size=1 if args.die >= 0 else 2, use_async_quorum=False, timeout=timeout, rank=0, world_size=1,
    store_addr="localhost", store_port=own.port, lighthouse_addr=meet.get("lighthouse").decode(),
    replica_id=f"replica{rank}", init_sync=False,
)
# The lighthouse waits for a replica that it knows, so no replica trains alone before both managers have reported to it.
meet.set(f"ready{rank}", "")
meet.wait(["ready0", "ready1"])
wrapped = DistributedDataParallel(manager, model)
managed = Optimizer(manager, optimizer)
report = Report(args.folder)
participants = []
while manager.current_step() < STEPS:
    pictures, labels = batch(manager.current_step(), rank)
    managed.zero_grad()
    loss = torch.nn.functional.cross_entropy(wrapped(pictures), labels)
    loss.backward()
    managed.step()
    participants.append(manager.num_participants())
    report.step(loss.detach())
    if rank == 1 and manager.current_step() == args.die:
        os._exit(0)
report.write(participants=participants)
# The lighthouse goes last: rank 1 may still ask it.
meet.set(f"done{rank}", "")
meet.wait(["done0"] if args.die >= 0 else ["done0", "done1"])
manager.shutdown(wait=False)
os._exit(0)
