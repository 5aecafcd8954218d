"""Repeated measurements of one quantity, and their statistics.

Pure functions. A median is shown with its spread; a ratio is taken within each repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Samples:
    """One value per repeat, in the order of the repeats."""

    values: tuple[float, ...]
    unit: str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a measurement without a single value")

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a share of the median; 0 for a single value."""
        middle = self.median
        return (max(self.values) - min(self.values)) / middle if middle else 0.0

    def over(self, other: Samples) -> Samples:
        """The ratios to ``other``, repeat by repeat."""
        if len(self.values) != len(other.values):
            raise ValueError(f"{len(self.values)} repeats beside {len(other.values)}")
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(mine / its for mine, its in pairs), "x")

    def __str__(self) -> str:
        text = formatted(self.median, self.unit)
        return text if len(self.values) == 1 else f"{text} ±{self.spread / 2:.0%}"


def formatted(value: float, unit: str) -> str:
    """Format a number with its unit and three digits: ``9.31 M/s``, ``0.412``, ``1.27 ms``."""
    if unit == "x":
        return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"


def percentile(seconds: npt.NDArray[np.float64], share: float) -> float:
    """Return the measured duration that ``share`` of all do not exceed, without interpolation."""
    return float(np.percentile(seconds, share * 100, method="higher"))
