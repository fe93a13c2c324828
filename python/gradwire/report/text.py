# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers for people."""

from __future__ import annotations


def scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """`value` in the largest unit that it holds at least one of, else in the last; three digits."""
    factor, unit = next(((factor, unit) for factor, unit in units if abs(value) >= factor), units[-1])
    number = round(value / factor, 9)
    digits = 0 if abs(number) >= 99.95 or number == int(number) else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"


def human_bytes(value: float) -> str:
    """Decimal units: "1.70 MB"."""
    return scaled(value, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def human_seconds(value: float) -> str:
    if value == 0:
        return "0"
    return scaled(value, ((1, "s"), (1e-3, "ms"), (1e-6, "µs")))


def binary_bytes(value: float) -> str:
    """The sizes of benchmarks are powers of two, or near: "25 MiB"."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} B"


def plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def loss_text(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def count_of(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
