# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the parity test: for each case (state, hook) for DistributedDataParallel.register_comm_hook.

Hooks that PyTorch's Gloo cannot run are made of PyTorch's own arithmetic, with collectives that Gloo can run.
"""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks, default_hooks, powerSGD_hook, quantization_hooks)


def _done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def _gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def allreduce(_case):
    return None, default_hooks.allreduce_hook


def fp16_compress(_case):
    return None, default_hooks.fp16_compress_hook


def noop(_case):
    return None, debugging_hooks.noop_hook


def bf16_compress(_case):
    """Gloo refuses bfloat16 sums: cast and divide as default_hooks does, sum with one rounding at the end."""
    def hook(_state, bucket):
        narrow = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
        parts = [part.view(torch.bfloat16) for part in _gather(narrow.view(torch.uint8))]
        total = torch.stack([part.float() for part in parts]).sum(0).to(torch.bfloat16)
        return _done(bucket.buffer().copy_(total))
    return None, hook


def quantize_per_tensor(_case):
    """PyTorch's hook raises IndexError on Gloo, where it indexes the future's value; the rest of it is this."""
    def hook(_state, bucket):
        tensor = bucket.buffer()
        observer = torch.ao.quantization.MinMaxObserver()
        observer(tensor)
        scale, zero_point = observer.calculate_qparams()
        scales = _gather(torch.stack([scale[0], zero_point[0].float()]))
        mine = scales[dist.get_rank()]
        codes = _gather(quantization_hooks._quantize_per_tensor_backend(tensor, mine[0], mine[1]))
        total = torch.zeros_like(tensor)
        for part, (one_scale, one_zero) in zip(codes, scales):
            total += quantization_hooks._dequantize_per_tensor_backend(part, one_scale, one_zero)
        return _done(total / dist.get_world_size())
    return None, hook


def quantize_per_channel(_case, row=512):
    """The same for rows of 512, padded with zeros, by a whole row where there is nothing to pad."""
    def hook(_state, bucket):
        tensor = bucket.buffer()
        rows = torch.nn.functional.pad(tensor, (0, row - len(tensor) % row)).view(-1, row)
        observer = torch.ao.quantization.PerChannelMinMaxObserver()
        observer(rows)
        scale, zero_point = observer.calculate_qparams()
        scales = _gather(torch.stack([scale, zero_point.float()]))
        mine = scales[dist.get_rank()]
        codes = _gather(quantization_hooks._quantize_per_channel_backend(rows, mine[0], mine[1]))
        total = torch.zeros_like(rows)
        for part, (one_scale, one_zero) in zip(codes, scales):
            total += quantization_hooks._dequantize_per_channel_backend(part, one_scale, one_zero)
        return _done(total.flatten()[:len(tensor)] / dist.get_world_size())
    return None, hook


def _power_sgd_state(case):
    given = dict(option.split("=") for option in case.hook.partition(":")[2].split(","))
    names = {"rank": ("matrix_approximation_rank", int), "start": ("start_powerSGD_iter", int),
             "error_feedback": ("use_error_feedback", lambda text: text == "1"),
             "warm_start": ("warm_start", lambda text: text == "1"),
             "epsilon": ("orthogonalization_epsilon", float), "seed": ("random_seed", int),
             "same_shape": ("batch_tensors_with_same_shape", lambda text: text == "1")}
    options = {names[key][0]: names[key][1](value) for key, value in given.items()}
    return powerSGD_hook.PowerSGDState(None, **options)


def power_sgd(case):
    """With several buckets in flight PyTorch's aborts or hangs on Gloo, so each is waited for."""
    def hook(state, bucket):
        return _done(powerSGD_hook.powerSGD_hook(state, bucket).wait())
    return _power_sgd_state(case), hook


def batched_power_sgd(case):
    """PyTorch's hook hands 2-D matrices to a check for 3-D ones and raises AssertionError; the rest of it is this.

    Where the bucket is no square it also feeds the error of the padding back, which is no parameter's; gradwire keeps
    errors by parameter and none of the padding. So compare with error feedback only where there is no padding.
    """
    orthogonalize = powerSGD_hook._orthogonalize

    def hook(state, bucket):
        powerSGD_hook._orthogonalize = lambda matrix: orthogonalize(matrix.unsqueeze(0))
        try:
            return _done(powerSGD_hook.batched_powerSGD_hook(state, bucket).wait())
        finally:
            powerSGD_hook._orthogonalize = orthogonalize
    return _power_sgd_state(case), hook
