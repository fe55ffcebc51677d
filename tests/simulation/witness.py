"""The clients' side of the audit: what they asked for, what they were told, and what is there at the end.

An answer is looked at when it leaves the owner: what it says must be in the database by then, for an owner can die in
the next moment. At the end, when all faults have stopped: what was acknowledged is there once, what never was is there
once or not at all, and messages of one producer are in its order.
"""

from __future__ import annotations

from collections import Counter

from dex.wire import service as s
from dex.wire.service import ServiceFailure
from tests.simulation.auditor import Auditor
from tests.simulation.books import Run, past


class Witness:
    def __init__(self, auditor: Auditor) -> None:
        self.auditor = auditor
        self.asked: dict[tuple[str, str], s.AnyRequest] = {}  # writes, by Flow ID and the id of the call
        self.answers: dict[tuple[str, str], s.Answer] = {}
        self.produced: dict[tuple[str, str], list[bytes]] = {}  # by Flow ID and producer, in the order of its calls
        self.told_counts: Counter[str] = Counter()

    def ask(self, request: s.AnyRequest) -> None:
        """A client is about to send this for the first time."""
        key = call_key(request)
        if key:
            self.asked[request.flow_id, key] = request
        if isinstance(request, s.StartFlow):
            policies = self.auditor.policies.setdefault((request.flow_id, request.request_id), set())
            policies.add(request.id_reuse_policy)
        if isinstance(request, s.StopFlow | s.TimeTravel) or (
            isinstance(request, s.StartFlow) and request.id_reuse_policy == "ALLOW_TERMINATE_IF_RUNNING"
        ):
            self.auditor.stoppable.add(request.flow_id)

    # Answers ----------------------------------------------------------------------------------------------------------

    def told(self, request: s.AnyRequest, answer: s.Answer, since: int) -> None:
        """`since`: the version of the books when the request came."""
        require, what = self.auditor.require, (type(request).__name__, request.flow_id)
        runs = self.auditor.of_flow.get(request.flow_id, [])
        self.told_counts[type(request).__name__] += 1
        key = call_key(request)
        if key and not (isinstance(request, s.InvokeRpc) and not any(run.rpcs[key] for run in runs)):
            before = self.answers.setdefault((request.flow_id, key), answer)
            # A start that finds its own request id on the current run answers with that run, and begins none.
            moved = getattr(request, "ignore_already_started", False)
            same = moved or before == answer or (isinstance(answer, s.RpcAnswer) and before.output == answer.output)  # type: ignore[attr-defined]
            # A life that began since knows of no repeat: its handler runs, and when it changes nothing, nobody looks
            # into the journal for an answer that nobody waits for any more.
            same = same or (isinstance(request, s.InvokeRpc) and request.fresh)
            require(same, "two answers", *what, before, answer)
        match request, answer:
            case s.StartFlow() | s.TimeTravel(), s.Started(run_id=run_id):
                require(any(run.run_id == run_id for run in runs), "told too early", *what, run_id)
            case s.Publish(), s.Published(message_ids=ids):
                require(any(run.ids.issuperset(ids) for run in runs), "told too early", *what, ids)
            case s.SetAttribute(value=value), s.Done() if value is not None:
                require(any(run.written[value] for run in runs), "told too early", *what, value)
            case s.StopFlow(), s.Done():
                require(any(run.status for run in runs), "told too early", *what)
            case s.InvokeRpc(), s.RpcAnswer(output=output):
                self.told_of_rpc(request, output, runs)
            case s.WaitForFlow(), s.FlowOutcome():
                run = next((run for run in runs if run.run_id == answer.run_id), None)
                require(run is not None and run.status == answer.status != "", "told too early", *what, answer)
                if run is not None:
                    found = [[one.step_type, one.step_execution_id, one.output] for one in answer.completions]
                    require(found == run.completions, "outcome", *what, found, run.completions)
            case s.GetAttribute(name=name), s.AttributeValue(found=found, value=value):
                states = self.states(runs, since)
                require(
                    (value if found else None) in [state.get(name) for state in states], "told too early", *what, value
                )
            case s.WaitForAttribute(name=name), s.AttributeValue(value=value):
                ever = [state.get(name) for run in runs for _, state in run.history] + [
                    r.attributes.get(name) for r in runs
                ]
                require(value in ever, "told too early", *what, value)
            case s.WaitForStep(step=step), s.Done():
                require(any(step in run.over for run in runs), "told too early", *what, step)
            case s.DescribeFlow(), s.FlowDescription():
                self.told_of_flow(answer, runs)

    def states(self, runs: list[Run], since: int) -> list[dict[str, bytes]]:
        """All that the Attributes of the current run have been since then, as the database has it."""
        found = []
        for run in runs:
            changes = run.history
            first = max((n for n, (version, _) in enumerate(changes) if version <= since), default=0)
            found += [state for _, state in changes[first:]] or [{}]
            if not first and changes and changes[0][0] > since:
                found.append({})
        return found

    def told_of_rpc(self, request: s.InvokeRpc, output: bytes | None, runs: list[Run]) -> None:
        log = self.auditor.log
        attempt = log.attempts.get(int.from_bytes(output[1:], "big")) if output else None
        self.auditor.require(attempt is not None, "invented result", request, output)
        if attempt is None or attempt.task.key.flow_id != request.flow_id:
            self.auditor.require(False, "answer of another", request, output)
            return
        result = attempt.results[0]
        writes = getattr(result, "writes", None)
        wants = writes and (writes.attributes or writes.publications or writes.events)
        if wants or getattr(result, "movements", ()):
            there = any(run.rpcs[request.request_id] for run in runs)
            self.auditor.require(there, "told too early", "InvokeRpc", request.flow_id, request.request_id)

    def told_of_flow(self, answer: s.FlowDescription, runs: list[Run]) -> None:
        run = next((run for run in runs if run.run_id == answer.run_id), None)
        self.auditor.require(run is not None, "told too early", "DescribeFlow", answer.run_id)
        if run is None or answer.problem:
            return
        ended = answer.status != "RUNNING"
        self.auditor.require(not ended or run.status == answer.status, "told too early", "DescribeFlow", answer)
        for step in answer.steps:
            number = int(step.step_execution_id.rpartition("-")[2])
            self.auditor.require(
                step.step_type == "sys:timeout_handler" or run.counters[step.step_type] >= number,
                "told too early",
                "DescribeFlow",
                step.step_execution_id,
            )

    def refused(self, request: s.AnyRequest, failure: ServiceFailure) -> None:
        """What an error says of the Flow must be so, too."""
        require, runs = self.auditor.require, self.auditor.of_flow.get(request.flow_id, [])
        self.told_counts[f"{failure.code} {failure.sub_status}"] += 1
        if failure.code == "ALREADY_EXISTS":
            require(bool(runs), "told too early", request, failure)
        elif failure.sub_status == "FLOW_NOT_EXISTS" and failure.code == "FAILED_PRECONDITION":
            require(any(run.status for run in runs), "told too early", request, failure)
        elif failure.code in ("INTERNAL", "DATA_LOSS", "UNIMPLEMENTED"):
            require(False, "engine error", request, failure)

    # The end ----------------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        require, auditor = self.auditor.require, self.auditor
        starts: dict[tuple[str, str], int] = Counter()
        for (flow_id, _), request in self.asked.items():
            runs = auditor.of_flow.get(flow_id, [])
            answer = self.answers.get((flow_id, call_key(request)))
            match request:
                case s.StartFlow():
                    starts[flow_id, request.request_id] += 1
                    if isinstance(answer, s.Started):
                        require(any(run.run_id == answer.run_id for run in runs), "lost", request)
                case s.Publish():
                    for value in request.values:
                        counts = [run.published[value] for run in runs if run.parent is None]
                        require(sum(counts) <= 1, "published twice", request, counts)
                        require(
                            answer is None or sum(counts) + sum(r.published[value] for r in runs) > 0, "lost", request
                        )
                case s.SetAttribute(value=value) if value is not None:
                    counts = [run.written[value] for run in runs if run.parent is None]
                    require(sum(counts) <= 1, "written twice", request, counts)
                case s.InvokeRpc():
                    counts = [run.rpcs[request.request_id] for run in runs if run.parent is None]
                    require(sum(counts) <= 1, "RPC twice", request, counts)
        self.count_children()
        for flow_id, runs in auditor.of_flow.items():
            begun = Counter(run.request_id for run in runs if run.parent is None)
            for request_id, count in begun.items():
                allowed = starts.get((flow_id, request_id), 1)
                require(count <= allowed, "started twice", flow_id, request_id, count)
            for run in runs:
                require(max(run.published.values(), default=0) <= 1, "published twice", run.run_id)
                for (of_flow, producer), values in self.produced.items():
                    if of_flow == flow_id:
                        found = [value for value in run.order if value in set(values)]
                        wanted = [value for value in values if value in set(found)]
                        require(found == wanted, "order of a producer", run.run_id, producer, found, wanted)

    def count_children(self) -> None:
        """Each run of a parent has one child at most for each SubFlow that a Step has waited for."""
        allowed: Counter[str] = Counter()
        for run_id, run in self.auditor.runs.items():
            for *_, event in past(self.auditor.runs, run_id):
                if event[0] == "WaitStarted/1":
                    children = sum(condition["kind"] == "subflow" for condition in event[2].get("conditions", ()))
                    allowed.update(f"SubFlow:{run.flow_id}-{event[1]}-{number}" for number in range(children))
        for flow_id, runs in self.auditor.of_flow.items():
            if flow_id.startswith("SubFlow:"):
                begun = sum(run.parent is None for run in runs)
                self.auditor.require(begun <= allowed[flow_id], "started twice", flow_id, begun, allowed[flow_id])


def call_key(request: s.AnyRequest) -> str:
    """What makes repeats of a write known."""
    if isinstance(request, s.StartFlow):
        return request.call_id
    if isinstance(
        request, s.Publish | s.SetAttribute | s.StopFlow | s.SkipTimer | s.UpdateFlowConfig | s.InvokeRpc | s.TimeTravel
    ):
        return request.request_id
    return ""
