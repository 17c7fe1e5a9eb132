"""Durations as distributions: measured samples, or a mean and how much it varies. Randomness comes from outside."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Protocol

from starsd_edge.speculation.tree import DraftShape
from starsd_edge.telemetry.service_model import ServiceCost, size_of


class Times(Protocol):
    """A duration that is drawn anew each time, in seconds."""

    @property
    def mean_s(self) -> float:
        """The mean duration in seconds."""

    def draw(self, random: Random) -> float:
        """One duration, at least 0."""


@dataclass(frozen=True)
class GammaTimes:
    """A mean and a coefficient of variation: 0 is constant, 1 is the exponential distribution.

    Raises:
        ValueError: one of them is below 0.
    """

    mean_s: float
    variation: float = 0.0

    def __post_init__(self) -> None:
        if not (self.mean_s >= 0 and self.variation >= 0):
            raise ValueError(f"no durations: a mean of {self.mean_s} s that varies by {self.variation}")

    def draw(self, random: Random) -> float:
        """See `Times`."""
        return self.mean_s * varied(self.variation, random)


@dataclass(frozen=True)
class SampledTimes:
    """Measured durations, each as likely as it was seen.

    Raises:
        ValueError: there is none, or one below 0.
    """

    samples_s: Sequence[float]

    def __post_init__(self) -> None:
        check_samples(self.samples_s)

    @cached_property
    def mean_s(self) -> float:
        """See `Times`."""
        return statistics.fmean(self.samples_s)

    def draw(self, random: Random) -> float:
        """See `Times`."""
        return random.choice(self.samples_s)


class ServiceTimes(Protocol):
    """S(b, shape): what the hub's drafter takes for a batch of at least one shape."""

    def mean_s(self, shapes: Sequence[DraftShape]) -> float:
        """Mean seconds of a pass for these shapes."""

    def draw(self, shapes: Sequence[DraftShape], random: Random) -> float:
        """Seconds of one pass for these shapes, drawn at random."""


@dataclass(frozen=True)
class ModelService:
    """Service times from a cost model, with a coefficient of variation as in `GammaTimes`."""

    cost: ServiceCost
    variation: float = 0.0

    def mean_s(self, shapes: Sequence[DraftShape]) -> float:
        """See `ServiceTimes`."""
        return self.cost.predict(size_of(shapes))

    def draw(self, shapes: Sequence[DraftShape], random: Random) -> float:
        """See `ServiceTimes`."""
        return self.mean_s(shapes) * varied(self.variation, random)


@dataclass(frozen=True)
class SampledService:
    """Measured durations by size of batch, all of the one shape that was in use: shapes make no difference.

    Between the measured sizes the mean lies on a straight line, beyond them on the outermost one; the samples of the
    nearest size are scaled to it.

    Raises:
        ValueError: there is no sample, or a size or duration that cannot be.
    """

    samples_s: Mapping[int, Sequence[float]]

    def __post_init__(self) -> None:
        if not self.samples_s or min(self.samples_s) < 1:
            raise ValueError("no durations of a drafter: samples are wanted for batches of 1 and more")
        for samples in self.samples_s.values():
            check_samples(samples)

    def mean_s(self, shapes: Sequence[DraftShape]) -> float:
        """See `ServiceTimes`."""
        batch, sizes, means = len(shapes), self._sizes, self._means
        if batch in means:
            return means[batch]
        if len(sizes) == 1:
            return means[sizes[0]]
        right = min(max(bisect_left(sizes, batch), 1), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (means[high] - means[low]) / (high - low)
        return max(0.0, means[low] + (batch - low) * slope)

    def draw(self, shapes: Sequence[DraftShape], random: Random) -> float:
        """See `ServiceTimes`."""
        nearest = min(self._sizes, key=lambda size: abs(size - len(shapes)))
        drawn, mean = random.choice(self.samples_s[nearest]), self._means[nearest]
        return drawn * self.mean_s(shapes) / mean if mean else drawn

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted(self.samples_s)

    @cached_property
    def _means(self) -> dict[int, float]:
        return {size: statistics.fmean(samples) for size, samples in self.samples_s.items()}


def varied(variation: float, random: Random) -> float:
    """A factor of mean 1 and this coefficient of variation, gamma distributed: never below 0."""
    if variation == 0:
        return 1.0
    shape = variation**-2
    return random.gammavariate(shape, 1 / shape)


def check_samples(samples_s: Sequence[float]) -> None:
    """Raises ValueError where there is none, or one that is no duration."""
    if not samples_s or not all(0 <= sample < float("inf") for sample in samples_s):
        raise ValueError(f"no durations: {len(samples_s)} samples, each of which has to be at least 0 and finite")
