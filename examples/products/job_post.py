"""Job post: an object that lives as long as the post does, is read and changed by RPCs, and mirrored elsewhere.

The Flow has no start Step: its first values come with the start, as Attributes. Each change starts a Step that updates
another system in the background, so that the editor need not wait for that system, nor for its bad days. The Steps may
overtake each other; each sends what holds when it runs, with a revision by which an older one is told.

If a process dies in the middle: a change and the Step that mirrors it are one commit. The mirror is behind for a while,
never for ever.

Run it with `python -m examples.products.job_post`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    Client,
    Context,
    Flow,
    FlowConfig,
    IndexType,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    dead_end,
    quoted,
    rpc,
)


@dataclass(frozen=True)
class Post:
    title: str
    text: str
    salary: int
    revision: int = 1


class Mirror(Protocol):
    def update(self, post_id: str, post: Post) -> None:
        """Takes the post unless it has a newer revision."""


class NoMirror:
    def update(self, post_id: str, post: Post) -> None: ...


title = Attribute("title", str, index=AttributeIndex(IndexType.FULL_TEXT, "JobTitle"))
text = Attribute("text", str)
salary = Attribute("salary", int, index=AttributeIndex(IndexType.INT, "JobSalary"))
revision = Attribute("revision", int)


def post_of(context: Context) -> Post:
    return Post(title.get(context) or "", text.get(context) or "", salary.get(context), revision.get(context))


class ExternalUpdate(Step[None]):
    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(total_duration=timedelta(days=1)))

    def execute(self, context: Context, input: None) -> StepDecision:
        self.mirror.update(context.flow_id, post_of(context))
        return dead_end()


class JobPostFlow(Flow[None]):
    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(ExternalUpdate(self.mirror))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(title, text, salary, revision)

    @rpc
    def read(self, context: Context) -> RPCResult[Post]:
        return RPCResult(post_of(context))

    @rpc(is_transactional=True)
    def update(self, context: Context, input: Post) -> RPCResult[bool]:
        """Changes the post, unless somebody has changed it since the editor read it (by `revision`)."""
        if input.revision != revision.get(context):
            return RPCResult(False)
        title.set(context, input.title)
        text.set(context, input.text)
        salary.set(context, input.salary)
        revision.set(context, input.revision + 1)
        return RPCResult(True, next_steps=(StepMovement.of(ExternalUpdate, None),))


flow = JobPostFlow(NoMirror())
registry = Registry([flow])


def started_with(post: Post) -> StartFlowOptions:
    options = StartFlowOptions(config_override=FlowConfig(step_durability=StepDurability.ASYNC))
    options = options.with_attribute(title, post.title).with_attribute(text, post.text)
    return options.with_attribute(salary, post.salary).with_attribute(revision, post.revision)


def posts_about(client: Client, words: str, at_least: int) -> list[str]:
    """The Flow IDs of open posts whose titles have these words, with a salary of so much."""
    query = f"JobTitle = {quoted(words)} AND JobSalary >= {at_least} AND ExecutionStatus = 'RUNNING'"
    return [entry.flow_id for entry in client.search_flows(query, page_size=100).flows]


def edit(client: Client, post_id: str) -> list[bool]:
    """Two editors read the same post; the second to write is told to read it again."""
    client.start_flow(flow, post_id, None, started_with(Post("Gardener", "Likes roses", 100)))
    read = client.invoke_rpc(flow.read, post_id)
    return [
        client.invoke_rpc(flow.update, post_id, Post("Head gardener", read.text, 200, read.revision)),
        client.invoke_rpc(flow.update, post_id, Post(read.title, "Likes tulips", 100, read.revision)),
    ]


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        post_id = f"post-{uuid4()}"
        print(edit(client, post_id))
        print(client.invoke_rpc(flow.read, post_id))
        print("found:", post_id in posts_about(client, "gardener", at_least=150))
        client.stop_flow(post_id, StopFlowOptions(reason="filled"))


if __name__ == "__main__":
    main()
