# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Batch normalization whose statistics cover the batches of all ranks."""
from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument
from gradwire.distributed.algorithms.ddp_comm_hooks._native import adapted
from gradwire.distributed._groups import _resolve

__all__ = ["SyncBatchNorm"]


def _batch_norm(
    input: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    by_batch: bool, momentum: float, eps: float,
) -> Tensor:
    """torch's function, also where the buffers are of another type than the parameters, as in DDP's mixed precision."""
    of_layer = [tensor for tensor in (mean, variance, weight, bias) if tensor is not None]
    types = {tensor.dtype for tensor in of_layer}
    if types <= {input.dtype} or (types == {torch.float32} and input.dtype in (torch.float16, torch.bfloat16)):
        return batch_norm(input, mean, variance, weight, bias, by_batch, momentum, eps)
    wide = torch.promote_types(input.dtype, torch.float32)
    for tensor in of_layer:
        wide = torch.promote_types(wide, tensor.dtype)

    def moved(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(wide)

    own = moved(mean), moved(variance)
    output = batch_norm(input.to(wide), own[0], own[1], moved(weight), moved(bias), by_batch, momentum, eps).to(input.dtype)
    for buffer, new in zip((mean, variance), own):
        if by_batch and buffer is not None and new is not None and new is not buffer:
            buffer.copy_(new)
    return output


class SyncBatchNorm(_BatchNorm):
    """torch.nn.SyncBatchNorm over gradwire, for tensors on the CPU too, which PyTorch's does not take.

    y = (x - mean) / sqrt(variance + eps) * weight + bias for each channel (dimension 1) of an input [N, C] or [N, C, ...].
    N and the other dimensions may differ between ranks, and N may be 0. In training, mean and variance are those of all ranks'
    elements of the channel: each rank's in the precision of the input, but at least in float32, combined in float64. In eval
    mode, and in a group of one rank, the layer is a plain BatchNorm.

    process_group: gradwire's or torch.distributed's. None: the default group at the time of forward(), gradwire's, or
        torch.distributed's where gradwire has none; without either, this rank alone. In an elastic job give elastic.group, and
        make the layers before run(), on all ranks in the same order.
    The other arguments, parameters and buffers are BatchNorm's.

    In training in a group of several ranks:
    - All ranks call forward() of the same layers in the same order, and all or none run backward. Forward is one all_gather of
      2 C + 2 doubles, backward one all_reduce of 2 C doubles. They run on a duplicate of the group, where it can have one, so
      they are never matched with the collectives of the program or of DDP. All layers over a group share the duplicate; the
      first forward() of all makes it, and it lives as long as the group. A rank that has joined in a Join takes no part, so the
      layer does not work with uneven numbers of batches.
    - Gradients are those of the sum of all ranks' losses; those of weight and bias are this rank's part, which DDP averages.
      A backward pass with create_graph (on all ranks) can be differentiated again.
    - Raises InvalidArgument on all ranks when a channel has one element over all ranks, and when one rank is in no-grad mode
      while another needs a gradient.
    A copy (copy.deepcopy()) has the same group. A layer with a group of its own cannot be pickled; its state_dict() can.
    """

    _layer_group: _C.LayerGroup | None
    _given: Any  # the group of the constructor

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.process_group = process_group

    @property
    def process_group(self) -> Any:
        """The group that was given. A new one holds from the next forward() on; set the same group on all ranks."""
        return self._given

    @process_group.setter
    def process_group(self, group: Any) -> None:
        self._layer_group = None if group is None else _C.LayerGroup(_resolved(group))
        self._given = group

    def forward(self, input: Tensor) -> Tensor:
        """The normalized input. Raises InvalidArgument for an input of another number of channels or of no floating type."""
        self._check_input_dim(input)
        tracks = self.training and self.track_running_stats
        # In training, statistics that are not tracked are left alone.
        mean, variance = (self.running_mean, self.running_var) if tracks or not self.training else (None, None)
        count = self.num_batches_tracked if tracks else None
        if self.training and (group := self._group()).has_others():
            return _C.sync_batch_norm(input, self.weight, self.bias, mean, variance, count, self.momentum, self.eps, group)
        momentum = self.momentum or 0.0
        if count is not None:
            # Before the batch is normalized: a checkpoint stops its second forward there.
            count.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(count)  # the mean of all batches
        by_batch = self.training or mean is None
        return _batch_norm(input, mean, variance, self.weight, self.bias, by_batch, momentum, self.eps)

    def _group(self) -> _C.LayerGroup:
        group = _resolved(self._given)
        if self._layer_group is None or self._layer_group.group is not group:
            self._layer_group = _C.LayerGroup(group)
        return self._layer_group

    # In Python, because torch.compile() does not look into the C++ runtime.
    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgument(f"SyncBatchNorm: the input has {input.dim()} dimensions; pass [N, C] or [N, C, ...]")
        if input.size(1) != self.num_features or self.num_features == 0:
            raise InvalidArgument(
                f"SyncBatchNorm: the input has {input.size(1)} channels in dimension 1; this layer was made for {self.num_features}"
            )
        if not input.is_floating_point():
            raise InvalidArgument(f"SyncBatchNorm: the input is of {input.dtype}; pass floating point numbers")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layer_group": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            made.__dict__[name] = value if name in ("_given", "_layer_group") else copy.deepcopy(value, memo)
        return made

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Replaces every BatchNorm (and torch.nn.SyncBatchNorm) in `module` by a SyncBatchNorm with the same tensors.

        Layers of this class that are there already get the group. Returns `module`, or its replacement where it is a BatchNorm
        itself. Does not communicate, except in an elastic job. Raises InvalidArgument, and changes nothing, for a lazy BatchNorm
        that has no shape yet.
        """
        for name, part in module.named_modules():
            if isinstance(part, _BatchNorm) and any(map(is_lazy, [*part.parameters(), *part.buffers()])):
                raise InvalidArgument(
                    f"convert_sync_batchnorm: '{name}' has no shape yet (a lazy module); run a forward pass of the module first."
                )
        return _Conversion(cls, process_group).converted(module)


class _Conversion:
    """One call of convert_sync_batchnorm(). A layer that stands in two places stays one layer."""

    def __init__(self, kind: type[SyncBatchNorm], group: Any) -> None:
        self._kind = kind
        self._group = group
        self._done: dict[Module, Module] = {}

    def converted(self, module: Module) -> Module:
        if module not in self._done:
            self._done[module] = module  # also where a module holds itself
            self._done[module] = self._replaced(module)
        return self._done[module]

    def _replaced(self, module: Module) -> Module:
        if isinstance(module, SyncBatchNorm):
            module.process_group = self._group
        elif isinstance(module, _BatchNorm):
            return self._synchronized(module)
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = self.converted(child)
        return module

    def _synchronized(self, plain: _BatchNorm) -> SyncBatchNorm:
        made = self._kind(
            plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats, self._group, device="meta"
        )
        for name, parameter in plain._parameters.items():
            made.register_parameter(name, parameter)
        for name, buffer in plain._buffers.items():
            made.register_buffer(name, buffer)
        if hasattr(plain, "qconfig"):
            made.qconfig = plain.qconfig
        return made.train(plain.training)


def _resolved(group: Any) -> ProcessGroup | None:
    """The gradwire group that `group` means; None for gradwire's default group, where there is one, and for this rank alone."""
    torch_runs = torch.distributed.is_available() and torch.distributed.is_initialized()
    if group is None and torch_runs and not _C.is_initialized():
        group = torch.distributed.group.WORLD
    if group is None:
        return None
    if torch.distributed.is_available() and isinstance(group, torch.distributed.ProcessGroup):
        return adapted(group)
    return _resolve(group)
