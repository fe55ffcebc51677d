"""One command's turn at a Flow: what it has emitted so far, each event already applied."""

from __future__ import annotations

from dex.wire.specs import ASYNC, EXECUTE, SYNC, WAIT_FOR, FlowSpec, MethodSpec, StepSpec
from dexray.machine.events import AnyEvent, FlowClosed, StepCancelled
from dexray.machine.evolve import evolve
from dexray.machine.state import RUNNING, TIMEOUT, Flow, FlowState, StepState
from dexray.protocol.attempts import AttemptKey


class UnknownStep(Exception):
    """The deployed code has no such Step: the Flow can't go on until it is deployed again."""

    def __init__(self, flow_type: str, step_type: str) -> None:
        super().__init__(
            f"Flow {flow_type} as deployed has no Step {step_type!r}: deploy a version that has it, and it goes on"
        )


class Turn:
    """Collects the events of one command. `cancels` names running attempts that are to be asked to stop, `parents`
    Steps whose wait has SubFlows that are to be started."""

    __slots__ = ("cancels", "dirty", "events", "flow", "now", "parents", "spec")

    def __init__(self, flow: Flow, spec: FlowSpec | None, now: float) -> None:
        self.flow = flow
        self.spec = spec
        self.now = now
        self.events: list[AnyEvent] = []
        self.cancels: list[AttemptKey] = []
        self.parents: list[str] = []
        self.dirty: dict[
            str, None
        ] = {}  # Channels that got messages: their waiters are looked at when the turn settles

    @property
    def state(self) -> FlowState:
        return self.flow.state

    def emit(self, event: AnyEvent) -> None:
        if isinstance(event, StepCancelled):
            self._cancel_attempt(self.state.steps[event.step])
            self.dirty.update(dict.fromkeys(event.returned))
        elif isinstance(event, FlowClosed):
            for step in self.state.steps.values():
                self._cancel_attempt(step)
        evolve(self.flow, event, self.now)
        self.events.append(event)

    def _cancel_attempt(self, step: StepState) -> None:
        if step.phase == RUNNING:
            self.cancels.append(key_of(self.state, step))

    def step_spec(self, step: StepState) -> StepSpec:
        return step.override if step.override is not None else self.deployed_step(step.step_type)

    def known_spec(self, step: StepState) -> StepSpec | None:
        """As `step_spec`, but None where the deployed code has no such Step (or the Step is the timeout handler)."""
        if step.override is not None:
            return step.override
        return self.spec.steps.get(step.step_type) if self.spec is not None else None

    def deployed_step(self, step_type: str) -> StepSpec:
        spec = self.spec.steps.get(step_type) if self.spec is not None else None
        if spec is None:
            raise UnknownStep(self.state.flow_type, step_type)
        return spec

    def durability(self, method: MethodSpec | None) -> str:
        """The method's own, then the FlowConfig's, then SYNC; pinned when the call becomes pending."""
        if method is not None and method.durability:
            return method.durability
        return ASYNC if self.state.config.step_durability == ASYNC else SYNC


def key_of(state: FlowState, step: StepState) -> AttemptKey:
    return AttemptKey(state.flow_id, state.run_id, step.id, step.method, step.attempt)


def running_step(state: FlowState, key: AttemptKey) -> StepState | None:
    """The Step whose running attempt this is; None when it is not running, or not any more."""
    step = state.steps.get(key.step_execution_id)
    if (
        key.run_id != state.run_id
        or step is None
        or step.phase != RUNNING
        or step.method != key.method
        or step.attempt != key.attempt
    ):
        return None
    return step


def method_of(state: FlowState, step: StepState, spec: StepSpec | None) -> MethodSpec:
    """The options of the method call that is pending or running. `spec` is None for the timeout handler alone."""
    if step.method == TIMEOUT:
        handler = state.timeout_handler
        return handler.method if handler is not None else MethodSpec()
    assert spec is not None
    if step.method == WAIT_FOR:
        return spec.wait_for if spec.wait_for is not None else MethodSpec()
    assert step.method == EXECUTE
    return spec.execute
