"""What stands behind the handles of the fake TensorRT: who owns what, what is set, and what is under way."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.support.fake_device import FakeDevice
from tests.support.fake_plan import Plan, PlanTensor, Shape, bind_dimensions, sized
from tests.support.fake_programs import Program
from tests.support.fake_streams import Stream, Work
from tests.support.fake_trt_types import ILogger

if TYPE_CHECKING:
    from tests.support.fake_context import IExecutionContext
    from tests.support.fake_tensorrt import ICudaEngine, Runtime


@dataclass(eq=False)
class EngineState:
    """What an engine is, and whether it and its owners are there still."""

    device: FakeDevice
    plan: Plan
    program: Program
    runtime: weakref.ref[Runtime]
    engine: weakref.ref[ICudaEngine] | None = None

    def require_engine(self) -> ICudaEngine:
        """The engine, if it is there still."""
        engine = self.engine() if self.engine else None
        if engine is None:
            raise self.device.faults.undefined("a context was used whose engine is gone")
        self.require_logger()
        return engine

    def require_logger(self) -> ILogger:
        """The logger of the runtime, if both are there still."""
        runtime = self.runtime()
        if runtime is None:
            raise self.device.faults.undefined("an engine was used whose runtime is gone")
        return runtime.logger

    def refuse(self, what: str) -> Literal[False]:
        """Say no, as TensorRT does: in the log."""
        self.require_logger().log(ILogger.ERROR, f"Error Code 3: API Usage Error ({what})")
        self.device.faults.note(what)
        return False

    def tensor(self, name: str) -> PlanTensor | None:
        """An input or output by its name, None (and said) for none."""
        if not isinstance(name, str):
            raise TypeError("incompatible function arguments: a tensor's name is a str")
        self.require_logger()
        tensor = self.plan.tensor(name)
        if tensor is None:
            self.refuse(f"there is no tensor {name!r}")
        return tensor


@dataclass(frozen=True)
class Workspace:
    """Memory that a pass works in, and leaves rubbish in."""

    address: int
    size: int


@dataclass(eq=False)
class ContextState:
    """What is set in a context, and which of its passes are not done.

    Attributes:
        version: counts every change that a captured graph would not notice.
        shape_version: counts the changes of shapes and profile.
        flushed: the shape version of the last plain pass.
        flight: passes that may not be done.
        switch: the last change of profile.
    """

    engine: EngineState
    needs_workspace: bool
    context: weakref.ref[IExecutionContext] | None = None
    profile: int = 0
    shapes: dict[str, Shape] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    workspace: Workspace | None = None
    version: int = 0
    shape_version: int = 0
    flushed: int = -1
    flight: list[Work] = field(default_factory=list)
    switch: Work | None = None

    def __post_init__(self) -> None:
        self.forget_shapes()

    def forget_shapes(self) -> None:
        """Only inputs of a fixed shape have one from now on."""
        inputs = [tensor for tensor in self.engine.plan.tensors if tensor.is_input]
        self.shapes = {tensor.name: sized(tensor, {}) for tensor in inputs if not tensor.is_dynamic}
        self.note_shapes()

    def note_shapes(self) -> None:
        """Shapes were changed."""
        self.version += 1
        self.shape_version += 1

    def unset_shapes(self) -> list[str]:
        """The inputs whose shapes are still to be set.

        Raises:
            RuntimeError: the shapes of two inputs do not agree.
        """
        try:
            bind_dimensions(self.engine.plan.tensors, self.shapes)
        except ValueError as error:
            raise RuntimeError(f"shape inference failed: {error}") from None
        return [
            tensor.name for tensor in self.engine.plan.tensors if tensor.is_input and tensor.name not in self.shapes
        ]

    def unready(self, *, in_capture: bool) -> str:
        """Why a pass cannot be queued, in a few words; empty if it can."""
        if self.switch is not None and not self.switch.done:
            raise self.engine.device.faults.undefined("a pass before the change of profile was waited for")
        try:
            missing = self.unset_shapes()
        except RuntimeError as error:
            return str(error)
        plan, places = self.engine.plan, self.addresses
        unbound = [tensor.name for tensor in plan.tensors if tensor.name not in places]
        apart = [output for output, source in plan.aliases.items() if places.get(output) != places.get(source)]
        homeless = self.needs_workspace and plan.activation_bytes > 0 and self.workspace is None
        reasons = (
            (missing, f"no shape was set for {', '.join(missing)}"),
            (unbound, f"no address was set for {', '.join(unbound)}"),
            (apart, f"{', '.join(apart)} must lie where the input lies that it is an alias of"),
            (homeless, "no memory to work in was given"),
            (in_capture and self.flushed != self.shape_version, "a plain pass has to come before this one is captured"),
        )
        return next((reason for holds, reason in reasons if holds), "")

    def require_context(self) -> None:
        """Whether the context and its engine are there still, for a pass that was queued or captured."""
        if self.context is None or self.context() is None:
            raise self.engine.device.faults.undefined("a context is gone whose pass was not done, or is in a graph")
        self.engine.require_engine()

    def require_idle(self, what: str) -> None:
        """Whether all passes are done."""
        if any(not work.done for work in self.flight):
            raise self.engine.device.faults.undefined(f"{what} while a pass of the context is not done")

    def require_alone(self, stream: Stream) -> None:
        """Whether a pass may be queued on this stream beside those that are not done."""
        self.flight = [work for work in self.flight if not work.done]
        if any(work.stream is not stream for work in self.flight):
            raise self.engine.device.faults.undefined("a context was used on two streams at once")

    def note_switch(self, work: Work) -> None:
        """A change of profile was queued."""
        self.switch = work
