"""A runtime that writes down what definitions ask of it, and answers from a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dex import ChannelMessage, FlowResult, FlowStatus, Stream
from dex._runtime import HandlerRuntime
from dex.step import StepOutput, stream_frame


class RecordingRuntime(HandlerRuntime):
    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers = answers

    def _asked(self, name: str, *arguments: Any) -> Any:
        self.calls.append((name, *arguments))
        return self.answers.get(name)

    def publish(self, channel: Any, instance: str | None, value: Any) -> None:
        self._asked("publish", channel, instance, value)

    def delete_message(self, channel: Any, instance: str | None, message_id: str) -> None:
        self._asked("delete_message", channel, instance, message_id)

    def channel_size(self, channel: Any, instance: str | None) -> int:
        return int(self._asked("channel_size", channel, instance))

    def channel_keys(self, channel: Any) -> tuple[str, ...]:
        return tuple(self._asked("channel_keys", channel))

    def pending_messages(self, channel: Any, instance: str | None) -> Sequence[ChannelMessage[Any]]:
        return tuple(self._asked("pending_messages", channel, instance))

    def channel_results(self, channel: Any, instance: str | None) -> Sequence[Any]:
        return tuple(self._asked("channel_results", channel, instance))

    def get_attribute(self, attribute: Any, instance: str | None) -> Any:
        return self._asked("get_attribute", attribute, instance)

    def set_attribute(self, attribute: Any, instance: str | None, value: Any) -> None:
        self._asked("set_attribute", attribute, instance, value)

    def attribute_keys(self, attribute: Any) -> tuple[str, ...]:
        return tuple(self._asked("attribute_keys", attribute))

    def subflow_result(self, index: int) -> FlowResult:
        self._asked("subflow_result", index)
        return FlowResult(FlowStatus.RUNNING)

    def subflow_flow_id(self, index: int) -> str:
        return str(self._asked("subflow_flow_id", index))

    def write_stream(self, stream: Stream[Any], value: Any) -> StepOutput | None:
        self._asked("write_stream", stream, value)
        return stream_frame(stream, value)


class RecordingContext:
    """Stands for the Context of a generator or synchronous handler."""

    def __init__(self, runtime: HandlerRuntime) -> None:
        self._runtime = runtime
