# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What gradwire.integrations refuses: hooks that would be dropped, and calls that come too late."""
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

import gradwire.distributed as dist
from gradwire.integrations.accelerate import start, use_hook
from gradwire.integrations.lightning import GradwireStrategy


@pytest.fixture
def one_rank(monkeypatch, tmp_path):
    """Accelerate's state of one rank in a group over gradwire, which it takes for several ranks on CPUs."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.distributed.init_process_group("gradwire", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def test_lightnings_strategy_refuses_unknown_hooks_and_two_hooks():
    with pytest.raises(dist.InvalidArgument, match="int88"):
        GradwireStrategy(hook="int88")
    with pytest.raises(dist.InvalidArgument, match="ddp_comm_hook"):
        GradwireStrategy(hook="int8", ddp_comm_hook=lambda state, bucket: bucket)


def test_a_hook_is_refused_where_accelerate_makes_no_ddp():
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(dist.UnsupportedError, match="does not wrap"):
        use_hook(Accelerator(cpu=True), "int8")
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_hook_is_refused_when_it_is_wrong_or_late_or_the_second(one_rank):
    accelerator = Accelerator(cpu=True)
    with pytest.raises(dist.InvalidArgument, match="int88"):
        use_hook(accelerator, "int88")
    accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(dist.InvalidArgument, match="prepared already"):
        use_hook(accelerator, "int8")
    kwargs = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    with pytest.raises(dist.InvalidArgument, match="'fp16'"):
        use_hook(Accelerator(cpu=True, kwargs_handlers=[kwargs]), "int8")


def test_options_of_ddp_stay(one_rank):
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)])
    use_hook(accelerator, "int8")
    assert accelerator.prepare(torch.nn.Linear(2, 2)).static_graph


def test_start_is_refused_where_there_is_a_group_or_an_accelerator(one_rank):
    with pytest.raises(dist.InvalidArgument, match="default group already"):
        start()
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gradwire", store=torch.distributed.HashStore(), rank=0, world_size=1)


def test_start_is_refused_after_an_accelerator():
    AcceleratorState._reset_state(reset_partial_state=True)
    Accelerator(cpu=True)
    with pytest.raises(dist.InvalidArgument, match="before Accelerator"):
        start()
    AcceleratorState._reset_state(reset_partial_state=True)
