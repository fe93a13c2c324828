# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What a program may tell the step recorder (gradwire-run --record DIR, docs/recorder.md). Nothing here is needed, and
without a recorder each function does nothing. Call them on the thread that trains.

    for batch in batches:
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        gradwire.observe.tell_loss(loss)
"""
from typing import SupportsFloat

import torch

from gradwire import _C

__all__ = ["begin_step", "end_step", "tell_loss"]


def begin_step() -> None:
    """A step begins here, and not with the next forward pass through DDP. The step before ends, if it had not."""
    _C.begin_step()


def end_step() -> None:
    """The step ends here. What follows, such as an evaluation, belongs to no step until the next one begins."""
    _C.end_step()


def tell_loss(loss: SupportsFloat) -> None:
    """Shows the loss of the step under way, or else of the last step, in the report and in gradwire-run --watch. `loss`
    is a number or a tensor of one element; a tensor on a device is waited for."""
    _C.tell_loss(float(loss.detach() if isinstance(loss, torch.Tensor) else loss))
