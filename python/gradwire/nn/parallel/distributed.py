# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: one module on several ranks, each with its own data."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, NoReturn, cast

import torch
from torch import Tensor
from torch.nn import Module

from gradwire import _C, _end
from gradwire._C import CommHook, ProcessGroup
from gradwire._errors import DistError, InvalidArgument, MismatchError, UnsupportedError
from gradwire.distributed._groups import _resolve
from gradwire.distributed._objects import all_gather_object
from gradwire.distributed.algorithms.ddp_comm_hooks._native import GivenHook, native_hook
from gradwire.distributed.algorithms.join import Join, Joinable, JoinHook
from gradwire.nn.parallel._arguments import device_index, mixed_precision_of, refuse
from gradwire.nn.parallel._module_checks import ParameterWatch, require_steps_after_averaging, require_usable, sparse_weights
from gradwire.nn.parallel._nested import moved_to, tensors_in

__all__ = ["DistributedDataParallel"]

# The logging data that are no numbers.
_LOGGED_AS_TEXT = {
    "backend_name", "module_name", "comm_hook", "ignored_parameters", "dtypes", "bucket_sizes", "rebuilt_bucket_sizes",
    "rebuilt_per_bucket_param_names", "bucket_order", "prev_iteration_grad_ready_order", "unused_parameters", "error",
}

# The beginning of an error of C++.
_MODULES_DIFFER = "The modules given to DistributedDataParallel differ"


class _Ended:
    """Stands for the C++ object at the end of the interpreter."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InvalidArgument("DistributedDataParallel: the interpreter of this rank is ending; its threads have ended.")


class DistributedDataParallel(Module, Joinable):
    """Averages the gradients of `module` over the ranks of `process_group` while backward() runs.

        model = DistributedDataParallel(model)
        loss = loss_of(model(x), target)
        loss.backward()                  # gradients are averages by its end
        optimizer.step()

    module: the same on every rank; rank 0's values are taken over by all (init_sync False: no call on the group at
        construction, the caller answers for equal modules).
    device_ids: at most one CUDA device, where inputs move; None: wherever they are.
    process_group: None: the default group.
    forward_sync_buffers: rank 0's buffers go to all before each forward in training mode that follows a synchronized
        one, and at construction in any case. broadcast_buffers (PyTorch's old name, which counts where the new one is not given):
        False skips both.
    bucket_cap_mb: cap of all buckets in MiB; None: 1 for the first, 25 for the others.
    bucket_cap_mb_list: a cap for each bucket in the order of launch, the last one also for all later buckets.
        bucket_cap_mb does not count then, as in PyTorch.
    find_unused_parameters: some parameters may get no gradient, others in each iteration and on each rank.
    static_graph: every iteration on every rank has the same graph.
    gradient_as_bucket_view: .grad is a view into its bucket for good. False: a .grad that is kept keeps its values, but
        an array of it does not (.grad.numpy(), DLPack): the next backward() writes into it. clone() .grad first.
    mixed_precision: an object with param_dtype, reduce_dtype and buffer_dtype (gradwire.nn.parallel.MixedPrecision, or
        PyTorch's): parameters and inputs are of a lower precision in forward and backward, buckets of another one.
    delay_all_reduce_named_params: (name, parameter) of those whose gradients are reduced together when that of
        param_to_hook_all_reduce is there.
    Weights of embeddings with sparse=True have buckets of their own, which hooks do not get: their .grad is sparse.

    lanes (gradwire's own): threads that run hooks, 0 to 8; -1: chosen. 0 runs hooks on the backward thread.

    Options must be the same on all ranks; modules or options that differ are refused on all of them. After an error in
    a synchronized backward pass the object is at its end on every rank, and every later forward raises. Of PyTorch's
    other arguments those are refused, not ignored, that would ask for something else than what happens.
    """

    def __init__(
        self,
        module: Module,
        device_ids: list[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        lanes: int = -1,
    ) -> None:
        super().__init__()
        refuse(
            device_mesh=device_mesh is not None,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            dim=dim != 0,
        )
        if not isinstance(module, Module):
            raise TypeError(f"DistributedDataParallel: a torch.nn.Module was expected, not {type(module).__name__}.")
        self.process_group = _resolve(process_group)
        require_usable(module, alone=self.process_group.size() == 1)
        indices = [device_index(device) for device in device_ids or []]
        if output_device is not None and [device_index(output_device)] != indices:
            raise InvalidArgument("DistributedDataParallel: output_device must be the device in device_ids.")
        self.module = module
        self.device_ids = device_ids
        self.output_device = output_device
        at_construction = broadcast_buffers is None or bool(broadcast_buffers)
        self._forward_sync_buffers = at_construction if forward_sync_buffers is None else bool(forward_sync_buffers)
        self._sync = True
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.mixed_precision = mixed_precision
        delayed = list(delay_all_reduce_named_params or [])
        named = self._take_parameters(delayed)
        self._core_arguments: dict[str, Any] = {
            "parameters": named,
            "sparse": sparse_weights(module) - self.parameters_to_ignore,
            "process_group": self.process_group,
            "device_ids": indices,
            "broadcast_buffers": at_construction,
            "forward_sync_buffers": forward_sync_buffers,
            "bucket_cap_mb": None if bucket_cap_mb_list else bucket_cap_mb,
            "bucket_caps_mb": list(bucket_cap_mb_list or []),
            "find_unused_parameters": find_unused_parameters,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "lanes": lanes,
            "mixed_precision": mixed_precision_of(mixed_precision),
            "delay_all_reduce_named_params": [name for name, _ in delayed],
            "param_to_hook_all_reduce": next(
                (name for name, parameter in module.named_parameters() if parameter is param_to_hook_all_reduce), ""
            ),
        }
        self._core = self._make_core(init_sync)
        self.device = named[0][1].device
        self.device_type = self.device.type
        self._settled = False  # _set_static_graph() comes too late
        self._hook: _C.CommHook | None = None
        _end.ends_before_groups(self)

    def _take_parameters(self, delayed: list[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.nn.Parameter]]:
        """Notes which parameters and buffers the module has; returns the parameters, without those to leave alone."""
        self.parameters_to_ignore = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))
        self._parameter_watch = ParameterWatch(self.module, self.parameters_to_ignore)
        self._buffers_seen = self._named_buffers()
        named = [(name, p) for name, p in self.module.named_parameters() if name not in self.parameters_to_ignore]
        # PyTorch's names, which programs use.
        names_of_delayed = [name for name, _ in delayed]
        if both := [name for name in names_of_delayed if name in self.parameters_to_ignore]:
            raise InvalidArgument(
                f"DistributedDataParallel: delay_all_reduce_named_params names '{both[0]}', and the module's "
                "_ddp_params_and_buffers_to_ignore names it too. Leave it out of the first, and it is not averaged, or out "
                "of the second."
            )
        self._module_parameters = [parameter for name, parameter in named if name not in names_of_delayed]
        self._delay_all_reduce_params = [parameter for _, parameter in delayed]
        return named

    def _make_core(self, init_sync: bool) -> _C.DdpCore:
        try:
            return _C.DdpCore(
                buffers=self._buffers_seen, init_sync=init_sync, static_graph=self.static_graph, **self._core_arguments
            )
        except MismatchError as error:
            if _MODULES_DIFFER in str(error):  # all ranks have it
                self._require_same_ignored(error)
            raise

    def _require_same_ignored(self, error: MismatchError) -> None:
        """Raises a MismatchError that says so where the ranks ignore other parameters and buffers. Collective."""
        every: list[Any] = [None] * self.process_group.size()
        try:
            all_gather_object(every, sorted(self.parameters_to_ignore), self.process_group)
        except DistError:  # the group has devices alone, or another rank has ended
            return
        for rank, names in enumerate(every):
            for here, there, name in [(0, rank, n) for n in every[0] if n not in names] + [
                (rank, 0, n) for n in names if n not in every[0]
            ]:
                raise MismatchError(
                    "DistributedDataParallel was made with _ddp_params_and_buffers_to_ignore that differ: "
                    f"'{name}' is named on rank {here} and not on rank {there}; all ranks must ignore the same ones."
                ) from error

    def _named_buffers(self) -> list[tuple[str, Tensor]]:
        """The module's buffers, without those to leave alone."""
        return [(name, b) for name, b in self.module.named_buffers() if name not in self.parameters_to_ignore]

    def _follow_buffers(self) -> None:
        """Lets the C++ object know of buffers that were added or replaced: `module.mean = ...` makes another tensor."""
        if not (self.forward_sync_buffers and self.training):
            return
        seen, self._buffers_seen = self._buffers_seen, self._named_buffers()
        if len(seen) != len(self._buffers_seen) or any(a[1] is not b[1] for a, b in zip(seen, self._buffers_seen)):
            self._core.set_buffers(self._buffers_seen)

    def _settle(self) -> None:
        """Before the first pass: what cannot be averaged any more is refused."""
        if not self._settled:
            require_steps_after_averaging(self._module_parameters + self._delay_all_reduce_params)
        self._settled = True

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """module(*inputs, **kwargs); tensors among the arguments move to the device in device_ids."""
        if self._sync and torch.is_grad_enabled():
            self._parameter_watch.require_known(self.module, self.process_group.rank())
        self._follow_buffers()
        self._settle()
        self._core.before_forward(self.training)
        try:
            if self._core.moves_inputs():
                inputs = moved_to(inputs, self._core.to_device)
                kwargs = moved_to(kwargs, self._core.to_device)
            output = self.module(*inputs, **kwargs)
            self._core.after_forward(tensors_in(output, []))
        except BaseException:
            self._core.abandon_forward()
            raise
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forward passes within only accumulate on this rank. Nothing is sent but buffers, before the first one."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def forward_sync_buffers(self) -> bool:
        """The constructor's argument. May be set between two forwards, to the same on all ranks, which is not compared."""
        return self._forward_sync_buffers

    @forward_sync_buffers.setter
    def forward_sync_buffers(self, sync: bool) -> None:
        self._core.set_forward_sync_buffers(bool(sync))
        self._forward_sync_buffers = bool(sync)

    @property
    def broadcast_buffers(self) -> bool:
        """PyTorch's old name of forward_sync_buffers."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, sync: bool) -> None:
        self.forward_sync_buffers = sync

    @property
    def require_forward_param_sync(self) -> bool:
        """Whether the training forward before was synchronized, so that the next one may send buffers; True at first.

        May be set, to the same on all ranks; the next training forward sets it again.
        """
        return self._core.buffers_are_due()

    @require_forward_param_sync.setter
    def require_forward_param_sync(self, due: bool) -> None:
        self._core.set_buffers_due(bool(due))

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether backward passes of the forwards to come average gradients; False: they only accumulate."""
        return self._sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, sync: bool) -> None:
        self._core.set_sync(bool(sync))
        self._sync = bool(sync)

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Training with other numbers of batches on each rank: a rank that leaves goes on with zeros until all have.

        divide_by_initial_world_size False: sums are divided by the ranks that still have inputs.
        throw_on_early_termination: every rank raises EarlyTermination as soon as one has left.

        For a ZeroRedundancyOptimizer beside it, or a Joinable of yours: gradwire.distributed.algorithms.Join.
        """
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        raise UnsupportedError("DistributedDataParallel's part of a Join runs in C++; pass the object to Join.")

    @property
    def join_device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def join_process_group(self) -> ProcessGroup:
        return self.process_group

    def _enter_join(self, kwargs: dict[str, Any]) -> _C.Joinable:
        self._settle()
        return self._core

    def register_comm_hook(self, state: Any, hook: GivenHook | CommHook) -> None:
        """One hook, before the first synchronized backward pass; collective in the groups that `state` holds.

        hook: a callable (state, bucket) that returns a torch.futures.Future of one tensor, or the tensor. It runs for
        one bucket at a time, in bucket order, on a thread of DDP's; collectives it calls on DDP's group go to a
        duplicate of it, so several may follow one another. DDP does not divide: the hook does, by bucket.divisor. An
        exception ends DDP on all ranks. Or a hook of gradwire.hooks, with state None.

        A state that remembers what the hook did not send may have two methods, which DDP looks up here. Both run in the
        thread of backward(), after the last bucket of an iteration; an exception ends DDP. revert_unused(names): no
        rank used these parameters, so their averages are not applied, and .grad stays as it was. Each was in
        bucket.absent() on this rank. The state brings its memory of them back to what it was before the iteration, or
        what the hook delivered of them is lost. end_iteration(): all gradients are in place.

        With state_dict() and load_state_dict(dict), the state goes where that of a hook of gradwire.hooks goes: a step of
        an elastic job that is done again begins with the state before it, and members that come get the state. The dict
        has str keys, and tensors, numbers, bools, strings and lists of these. Values whose keys begin with 'local/' are
        this rank's own, and are tensors of a floating-point type; all others are the same on all ranks.
        load_state_dict() replaces all of the state; keys of 'local/' may be missing, and the tensors lie on the CPU.
        """
        native = native_hook(state, hook)
        self._core.register_comm_hook(native)
        self._hook = native

    def replace_comm_hook(self, state: Any, hook: GivenHook | CommHook | None) -> None:
        """Another hook (None: plain averaging) from the next synchronized forward on; on all ranks alike."""
        native = None if hook is None else native_hook(state, hook)
        self._core.replace_comm_hook(native)
        self._hook = native

    def bucket_order(self) -> list[str]:
        """Names of parameters in the order of their buckets; empty before the second synchronized forward, and with find_unused_parameters."""
        return list(self._core.bucket_order())

    def next_bucket_order(self) -> list[str]:
        """As bucket_order(), but known on rank 0 after the first iteration, and on all ranks after set_bucket_order().

        A run that may save at any time saves this order of rank 0, and every rank begins with it.
        """
        return list(self._core.next_bucket_order())

    def set_bucket_order(self, names: list[str]) -> None:
        """Begins with a saved order, so that a run goes on with the same bits; before the first forward. Empty: without one."""
        self._core.set_bucket_order(names)

    def payload_bytes(self) -> int:
        """What this object's collectives had to send from this rank so far, by the textbook algorithms."""
        return int(self._core.payload_bytes())

    def _set_static_graph(self) -> None:
        """As static_graph=True at the construction, for code written when PyTorch had no such argument.

        On all ranks, which is not compared, before the first forward and set_bucket_order().
        """
        if self.static_graph:
            return
        if self._settled or self.next_bucket_order():
            raise InvalidArgument(
                "DistributedDataParallel: _set_static_graph() comes before the first forward and set_bucket_order(); "
                "give static_graph=True at the construction."
            )
        self.static_graph = True
        due = self.require_forward_param_sync
        before, self._core = self._core, cast(_C.DdpCore, _Ended())
        del before  # its hooks on the parameters go before those of the next one come
        try:
            self._replace_core(due)
        except BaseException:
            self.static_graph = False
            self._replace_core(due)
            raise

    def _replace_core(self, buffers_due: bool) -> None:
        self._core = self._make_core(init_sync=False)
        self._core.set_sync(self._sync)
        self._core.set_forward_sync_buffers(self._forward_sync_buffers)
        self._core.set_buffers_due(buffers_due)
        if self._hook is not None:
            self._core.register_comm_hook(self._hook)

    @property
    def modules_buffers(self) -> list[Tensor]:
        """The module's buffers, without those to leave alone."""
        return [buffer for _, buffer in self._named_buffers()]

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """What is known of this object and its iterations: under PyTorch's names and of PyTorch's types where those exist."""
        data = self._core.logging_data()
        largest_cap = max(map(int, data.pop("bucket_cap_bytes").split(", ")))
        return {
            **{name: value if name in _LOGGED_AS_TEXT else int(value) for name, value in data.items()},
            "bucket_cap_bytes": largest_cap,
            "has_error": int(bool(data["error"])),
            "module_name": type(self.module).__name__,
            "device_ids": ", ".join(str(device) for device in self.device_ids or []),
            "iteration": self._core.iterations(),
        }

    def _end(self) -> None:
        """At the end of the interpreter: lets go of the C++ object, whose threads end with it."""
        self._core = cast(_C.DdpCore, _Ended())

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("DistributedDataParallel cannot be pickled or copied; save .module, or its state_dict().")

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: Module, params_and_buffers_to_ignore: list[str]) -> None:
        """Names of parameters and buffers of `module` that DistributedDataParallel is to leave alone."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]
