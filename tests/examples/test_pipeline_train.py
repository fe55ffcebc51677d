"""The training, in process: who goes on, who is stopped, who decides, and what a death in the middle costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from dex import AttributeMatch, Registry
from dexray.testing import FlowTest
from examples.pipelines.train import digits, models
from examples.pipelines.train.digits import Digits
from examples.pipelines.train.flow import Epoch, Plan, Prepare, Release, Train, TrainFlow, Training, progress, stage
from examples.pipelines.train.models import Models
from tests.examples.pipeline_parts import Breaking, Failing, whole_files

MakeTest = Callable[..., FlowTest]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Nobody is good enough: all finalists run to the end, and the best is always the same."""
    return Plan(str(tmp_path / "models"), first_epochs=1, all_epochs=3, finalists=2, good_enough=1.5)


def train(in_process: MakeTest, plan: Plan, parts: Digits | None = None) -> tuple[FlowTest, TrainFlow]:
    """A training up to the point where somebody has to decide."""
    flow = TrainFlow(parts or Digits())
    test = in_process(Registry([flow]))
    test.client.start_flow(flow, "digits", plan)
    until_registered(test)
    return test, flow


def until_registered(test: FlowTest) -> None:
    test.client.wait_for_attribute_match("digits", stage, AttributeMatch.equal_to("waiting for approval"))


def epochs(test: FlowTest) -> list[Epoch]:
    page = test.client.list_stream_messages("digits", progress, page_size=1_000)
    return [message.value for message in reversed(page.messages)]


def test_the_best_of_twenty_is_registered_and_released_when_somebody_says_yes(in_process: MakeTest, plan: Plan) -> None:
    test, flow = train(in_process, plan)
    trained = Counter(epoch.candidate for epoch in epochs(test))
    assert Counter(trained.values()) == {1: 18, 3: 2}, "two finalists went on where the first round ended"
    registry = Models(Path(plan.folder))
    stage, card = test.client.invoke_rpc(flow.look, "digits")
    assert (stage, card) == ("waiting for approval", registry.card("digits"))
    assert card.score_in_test > 0.8
    assert registry.released() is None
    assert test.client.invoke_rpc(flow.decide, "digits", (True, "Ada")) == "thank you, Ada"
    assert test.client.wait_for_flow("digits").single_output(str) == "digits is released by Ada"
    assert registry.released() == "digits"
    assert sorted(whole_files(Path(plan.folder))) == [
        "digits.npz",
        "digits/card.json",
        "digits/network.pickle",
        "released.json",
    ]
    network = digits.load(registry.network("digits"))
    assert float(network.score(*Digits().load(plan.data, "test"))) == pytest.approx(card.score_in_test, abs=1e-4)


def test_the_first_who_is_good_enough_stops_the_others(in_process: MakeTest, plan: Plan) -> None:
    test, _ = train(in_process, replace(plan, all_epochs=1_000, good_enough=0.93))
    assert Models(Path(plan.folder)).card("digits").score_when_chosen >= 0.93
    outcomes = Counter(step.outcome for step in test.steps_run("digits") if step.step_type == "Train")
    assert outcomes["cancelled"] == 1
    assert len(epochs(test)) < 20 + 1_000


def test_a_canceled_training_stops_between_two_epochs(plan: Plan, tmp_path: Path) -> None:
    """As its handler sees it: the finals run at the same time on a cluster only."""

    class Canceled:
        flow_id = "digits"
        attempt = 1

        def get_last_heartbeat_value(self, of: type) -> None: ...

        def is_cancellation_requested(self) -> bool:
            return True

    Digits().prepare(plan.data)
    handler = Train(Digits()).execute(cast(Any, Canceled()), Training(plan, digits.candidates()[0], 0, 1_000))
    with pytest.raises(StopIteration):
        next(handler)
    assert not plan.checkpoints("digits").exists()


@pytest.mark.parametrize("nth", [1, 22, 24])
def test_a_training_that_breaks_down_goes_on_at_its_checkpoint_and_finds_the_same_model(
    in_process: MakeTest, plan: Plan, tmp_path: Path, nth: int
) -> None:
    """The epochs that ran before are not run again: there are as many as in a run that nothing disturbs."""
    train(in_process, plan)
    undisturbed = Models(Path(plan.folder)).card("digits")
    there = replace(plan, folder=str(tmp_path / "there"))
    test, _ = train(in_process, there, Breaking(nth))
    assert Models(Path(there.folder)).card("digits") == undisturbed
    seen = Counter((epoch.candidate, epoch.epoch) for epoch in epochs(test))
    assert len(seen) == 20 + 2 * 2
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    ("step", "when"), [(Prepare, "after"), (Train, "before"), (Train, "after"), (Release, "after")]
)
def test_a_worker_that_is_killed_costs_nothing_but_time(
    in_process: MakeTest, plan: Plan, step: object, when: str
) -> None:
    flow = TrainFlow(Digits())
    test = in_process(Registry([flow]))
    test.kill_worker_on_attempt(step, 1, when=when)
    test.client.start_flow(flow, "digits", plan)
    until_registered(test)
    test.client.invoke_rpc(flow.decide, "digits", (True, "Ada"))
    assert test.client.wait_for_flow("digits").single_output(str) == "digits is released by Ada"
    assert len({(epoch.candidate, epoch.epoch) for epoch in epochs(test)}) == len(epochs(test))


def test_the_engine_may_be_away_while_somebody_thinks(in_process: MakeTest, plan: Plan) -> None:
    test, flow = train(in_process, plan)
    test.restart(down=timedelta(days=2))
    assert test.client.invoke_rpc(flow.decide, "digits", (False, "Ben")) == "thank you, Ben"
    assert test.client.wait_for_flow("digits").single_output(str) == "digits is not released: refused by Ben"
    assert Models(Path(plan.folder)).released() is None


def test_nobody_decides_twice_or_too_early(in_process: MakeTest, plan: Plan) -> None:
    flow = TrainFlow(Failing(0))  # it tries for a while
    test = in_process(Registry([flow]), skip_time=False)
    test.client.start_flow(flow, "early", plan)
    assert test.client.invoke_rpc(flow.decide, "early", (True, "Ada")) == "there is nothing to decide: first round"

    test, flow = train(in_process, plan)
    assert test.client.invoke_rpc(flow.decide, "digits", (False, "Ben")) == "thank you, Ben"
    assert test.client.wait_for_flow("digits").single_output(str).endswith("refused by Ben")


def test_when_nobody_decides_in_a_week_it_is_not_released(in_process: MakeTest, plan: Plan) -> None:
    test, _ = train(in_process, plan)
    test.advance(timedelta(days=7))
    assert test.client.wait_for_flow("digits").single_output(str) == "digits is not released: nobody decided"
    assert models.Models(Path(plan.folder)).released() is None


def test_candidates_that_fail_for_good_are_out_and_the_others_go_on(in_process: MakeTest, plan: Plan) -> None:
    test, _ = train(in_process, plan, Failing(64))
    assert "(32 hidden" in Models(Path(plan.folder)).card("digits").about
    assert Counter(seen.attempt for seen in test.errors) == dict.fromkeys(range(1, 6), 5)


def test_when_all_candidates_fail_the_flow_says_so(in_process: MakeTest, plan: Plan) -> None:
    flow = TrainFlow(Failing(0))
    test = in_process(Registry([flow]))
    test.client.start_flow(flow, "digits", plan)
    assert test.client.wait_for_flow("digits").error_message == "all 20 candidates have failed"
