"""The small types of TensorRT's Python interface that the fake has."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar

import numpy as np


class _Number(Enum):
    """An enumeration of pybind's kind: its members are no ints, but can be turned into them."""

    def __int__(self) -> int:
        return int(self.value)


class DataType(_Number):
    """What a tensor holds."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    INT64 = 8


NUMPY_TYPES: dict[DataType, np.dtype[Any]] = {
    DataType.FLOAT: np.dtype(np.float32),
    DataType.HALF: np.dtype(np.float16),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT32: np.dtype(np.int32),
    DataType.BOOL: np.dtype(np.bool_),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT64: np.dtype(np.int64),
}


class TensorIOMode(_Number):
    """Whether a tensor goes in or comes out."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(_Number):
    """Where a tensor has to be."""

    DEVICE = 0
    HOST = 1


class ExecutionContextAllocationStrategy(_Number):
    """Who provides the memory that a context works in."""

    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class Dims:
    """A shape: a sequence, and no tuple."""

    MAX_DIMS: ClassVar[int] = 8
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Iterable[int] = ()) -> None:
        self._sizes = [int(size) for size in shape]

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> int:
        if not -len(self._sizes) <= index < len(self._sizes):
            raise IndexError("Out of bounds")
        return self._sizes[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list):
            raise TypeError("__eq__(): incompatible function arguments.")
        return self._sizes == list(other)

    def __repr__(self) -> str:
        return str(tuple(self._sizes))


class _Severity(_Number):
    """How bad a message is."""

    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class ILogger:
    """Told what happens; to be derived from."""

    Severity = _Severity
    INTERNAL_ERROR = _Severity.INTERNAL_ERROR
    ERROR = _Severity.ERROR
    WARNING = _Severity.WARNING
    INFO = _Severity.INFO
    VERBOSE = _Severity.VERBOSE

    def __init__(self) -> None:
        self.was_initialised = True

    def log(self, severity: _Severity, msg: str) -> None:
        """Take a message."""
        raise NotImplementedError("ILogger.log has to be overridden")


class Logger(ILogger):
    """Prints what is bad enough."""

    def __init__(self, min_severity: _Severity = _Severity.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: _Severity, msg: str) -> None:
        """Print a message."""
        if int(severity) <= int(self.min_severity):
            print(f"[TRT] [{severity.name[0]}] {msg}")
