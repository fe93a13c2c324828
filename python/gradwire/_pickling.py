# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What objects of the C++ runtime do when they are pickled or copied: values are, what belongs to a process is not."""
from __future__ import annotations

from typing import Any, Callable, NoReturn

from gradwire import _C

__all__ = ["register"]

_VALUES = (
    _C.AllgatherOptions, _C.AllreduceOptions, _C.AllToAllOptions, _C.BarrierOptions, _C.BroadcastOptions,
    _C.GatherOptions, _C.MixedPrecision, _C.ReduceOptions, _C.ReduceScatterOptions, _C.ScatterOptions,
)

_REFUSED = {
    _C.CommHook: "save its state_dict(), and make it again",
    _C.GradBucket: "it lives as long as the call of the hook that gets it",
    _C.ProcessGroup: "every process makes its own, with init_process_group() or new_group()",
    _C.Store: "it is a connection of this process; make one with the same arguments in the other process",
    _C.Work: "it belongs to a call of this process",
    _C.optim.NativeAverager: "save its state_dict(), and make it again",
}


def _made(kind: type[Any], fields: dict[str, Any]) -> Any:
    if kind is _C.MixedPrecision:
        return kind(**fields)
    value = kind()
    for name, field in fields.items():
        setattr(value, name, field)
    return value


def _reduce_value(value: Any) -> tuple[Any, ...]:
    names = [name for name in dir(type(value)) if isinstance(getattr(type(value), name), property)]
    return _made, (type(value), {name: getattr(value, name) for name in names})


def _refusal(why: str) -> Callable[[Any, int], NoReturn]:
    def refuse(value: Any, protocol: int) -> NoReturn:
        raise TypeError(f"a {type(value).__name__} cannot be pickled or copied: {why}.")

    return refuse


def register() -> None:
    """Once, when the runtime has been loaded. Classes that derive from these do the same."""
    for kind in _VALUES:
        setattr(kind, "__reduce__", _reduce_value)
    for refused, why in _REFUSED.items():
        setattr(refused, "__reduce_ex__", _refusal(why))
