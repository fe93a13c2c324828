# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training over gradwire's C++ runtime, with the names of torch.distributed.

    import gradwire.distributed as dist
    from gradwire.nn.parallel import DistributedDataParallel

    dist.init_process_group()                     # under gradwire-run or torchrun
    model = DistributedDataParallel(model)
    model.register_comm_hook(*gradwire.hooks.power_sgd(rank=4))

After `import gradwire`, torch.distributed.init_process_group("gradwire") runs PyTorch's own collectives over it.
See docs/python.md for what differs from PyTorch. gradwire.report and gradwire.plan need neither torch nor the runtime.
"""
import importlib.util as _importlib

__all__ = ["distributed", "elastic", "from_c10d", "hooks", "nn", "observe", "to_c10d", "utils"]

if all(_importlib.find_spec(name) is not None for name in ("gradwire._build", "torch")):
    from gradwire._runtime import __version__ as __version__, distributed, elastic, from_c10d, hooks, nn, observe, to_c10d, utils
else:  # the folder of the sources, or a Python without torch: gradwire.report and gradwire.plan alone

    def __getattr__(name: str) -> object:
        raise AttributeError(
            f"gradwire.{name} needs the C++ runtime, which lies beside the built package (build/python) or an installed one, "
            "and a Python that has torch."
        )
