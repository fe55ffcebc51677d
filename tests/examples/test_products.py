"""The products, under the virtual clock: what customers get, and what becomes of it when something goes wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from dex import FlowAlreadyStartedError, FlowNotActiveOrNotFoundError, FlowStatus, RpcLockConflictError, StepExecutionId
from dexray.testing import FlowTest
from examples.products import (
    email_agent,
    engagement,
    job_post,
    microservices,
    money_transfer,
    order_processing,
    polling,
    shortlist_candidates,
    signup,
    subscription,
)
from examples.products.email_agent import EmailAgentFlow, Letter, RuleModel, Turn
from examples.products.engagement import EngagementFlow, Offer
from examples.products.job_post import JobPostFlow, Post
from examples.products.microservices import OrchestrationFlow
from examples.products.money_transfer import MoneyTransferFlow, Transfer
from examples.products.order_processing import Order, OrderProcessingFlow, Shipment
from examples.products.polling import PollingFlow
from examples.products.shortlist_candidates import Candidate, ShortlistFlow
from examples.products.signup import Form, UserSignupFlow
from examples.products.subscription import Plan, SubscriptionFlow
from tests.examples.kit import away, now, outputs, run
from tests.world import World, scenario

DAY = timedelta(days=1)
DAYS = 86400.0


class Bank:
    """Keeps its books as a bank should: by key, and with canceled keys remembered. `broken`: refuses these accounts;
    `away`: this many calls fail before or, every second one, after they had their effect."""

    def __init__(self, broken: str = "", away: int = 0) -> None:
        self.broken, self.away = broken, away
        self.booked: dict[str, tuple[str, int]] = {}
        self.canceled: set[str] = set()

    def balance(self, account: str) -> int:
        return 1000 + sum(amount for name, amount in self.booked.values() if name == account)

    def note(self, account: str, text: str, key: str) -> None:
        self._keep(account, 0, key)

    def book(self, account: str, amount: int, key: str) -> None:
        self._keep(account, amount, key)

    def _keep(self, account: str, amount: int, key: str) -> None:
        if self.broken == account and amount > 0:
            raise PermissionError(f"the account of {account} is closed")
        if amount:
            self.away -= 1
        if amount and self.away >= 0 and self.away % 2:
            raise ConnectionError("the bank is away")
        if key not in self.canceled:
            self.booked[key] = (account, amount)
        if amount and self.away >= 0:
            raise ConnectionError("the answer of the bank got lost")

    def cancel(self, key: str) -> None:
        self.booked.pop(key, None)
        self.canceled.add(key)


@scenario()
async def test_money_goes_once_though_the_bank_is_away_again_and_again(world: World) -> None:
    bank = Bank(away=7)
    flow = MoneyTransferFlow(bank)
    await world.deploy(flow)
    assert await run(world, flow, Transfer("Ada", "Ben", 300), timeout=3600) == ["300 went from Ada to Ben"]
    assert (bank.balance("Ada"), bank.balance("Ben")) == (700, 1300)


@scenario()
async def test_a_transfer_that_can_not_be_completed_is_undone(world: World) -> None:
    bank = Bank(broken="Ben")
    flow = MoneyTransferFlow(bank)
    await world.deploy(flow)
    await world.start(flow, "flow", Transfer("Ada", "Ben", 300))
    result = await world.result("flow", 9999)
    assert (result.status, result.error_message) == (FlowStatus.FAILED, "undone: the account of Ben is closed")
    assert (bank.booked, bank.balance("Ada")) == ({}, 1000)


@scenario()
async def test_who_has_not_enough_transfers_nothing(world: World) -> None:
    bank = Bank()
    flow = MoneyTransferFlow(bank)
    await world.deploy(flow)
    await world.start(flow, "flow", Transfer("Ada", "Ben", 1001))
    assert (await world.result("flow")).error_message == "Ada has not enough"
    assert bank.booked == {}


class Shop:
    def __init__(self, refused: int = 0) -> None:
        self.refused = refused
        self.books: list[str] = []
        self.reminded_at: list[float] = []

    def charge(self, card: str, price: int, key: str) -> None:
        if self.refused:
            self.refused -= 1
            raise PermissionError("the card is refused")
        self.books.append(f"+{price}")

    def refund(self, card: str, price: int, key: str) -> None:
        self.books.append(f"-{price}")

    def remind_warehouse(self, article: str) -> None:
        self.reminded_at.append(round(now() / DAYS, 2))


ORDER = Order("Ada's card", "a bicycle", 300)


@scenario()
async def test_the_warehouse_is_reminded_daily_until_it_ships(world: World) -> None:
    shop = Shop(refused=2)
    flow = OrderProcessingFlow(shop)
    await world.deploy(flow)
    await world.start(flow, "order", ORDER)
    await world.advance(2.5 * DAYS)
    assert await world.client.invoke_rpc(flow.how_is_it, world.id("order")) == "charged"
    await world.restart()
    await world.publish("order", order_processing.shipped, Shipment("parcel 12"))
    assert outputs(await world.result("order")) == ["a bicycle is on its way: parcel 12"]
    assert (shop.books, shop.reminded_at) == (["+300"], [1.0, 2.0])


@scenario()
async def test_what_is_sold_out_is_paid_back(world: World) -> None:
    shop = Shop()
    flow = OrderProcessingFlow(shop)
    await world.deploy(flow)
    await world.start(flow, "order", ORDER)
    await world.publish("order", order_processing.shipped, Shipment())
    assert outputs(await world.result("order")) == ["a bicycle is sold out; 300 is paid back"]
    assert shop.books == ["+300", "-300"]


@scenario()
async def test_an_order_on_a_refused_card_fails_and_says_so(world: World) -> None:
    flow = OrderProcessingFlow(Shop(refused=9))
    await world.deploy(flow)
    await world.start(flow, "order", ORDER)
    assert (await world.result("order")).error_message == "the card is refused"
    assert await world.client.invoke_rpc(flow.how_is_it, world.id("order")) == "refused"


def test_a_customer_is_answered_when_the_card_is_charged() -> None:
    with FlowTest(order_processing.registry) as test:
        client = test.client
        assert order_processing.buy(client, "good", ORDER) == "charged"


class Services:
    def __init__(self) -> None:
        self.keys: list[str] = []

    def call(self, number: int, data: str, key: str) -> str:
        self.keys.append(key.partition("/")[2])
        return f"{number} {data}"


@pytest.mark.parametrize("is_ready", [True, False])
@scenario()
async def test_a_branch_waits_until_somebody_is_ready_or_for_a_day(world: World, is_ready: bool) -> None:
    services = Services()
    flow = OrchestrationFlow(services)
    await world.deploy(flow)
    await world.start(flow, "flow", "apples")
    await world.advance(3600)
    if is_ready:
        await world.publish("flow", microservices.ready, None)
    said = outputs(await world.result("flow", 2 * DAYS))
    assert said == (["2 apples", "3 apples"] if is_ready else ["2 apples", "4 apples"])
    assert services.keys == ["CallAPI1-1", "CallAPI2-1", "CallAPI3-1" if is_ready else "CallAPI4-1"]


@scenario()
async def test_of_many_who_swap_at_once_each_gets_what_another_left(world: World) -> None:
    flow = OrchestrationFlow(Services())
    await world.deploy(flow)
    await world.start(flow, "flow", "data 0")
    await world.until_phase("flow", "CallAPI3-1", "waiting")

    async def swap(value: str) -> str | None:
        while True:
            try:
                return await world.client.invoke_rpc(flow.swap, world.id("flow"), value)
            except RpcLockConflictError:
                await asyncio.sleep(0.01)

    values = [f"data {number}" for number in range(1, 10)]
    left = [*await asyncio.gather(*(swap(value) for value in values)), await swap("last")]
    assert sorted(map(str, left)) == sorted(["data 0", *values])


class Messages:
    """The other system is away until a time."""

    def __init__(self, away_until: float = 0.0) -> None:
        self.away_until = away_until
        self.reminded: list[int] = []
        self.notified: list[str] = []

    def remind(self, seeker: str, text: str) -> None:
        self.reminded.append(round(now() / 60))

    def notify(self, system: str, text: str) -> None:
        if now() < self.away_until:
            raise ConnectionError("the other system is away")
        self.notified.append(text.rpartition(" ")[2])


@scenario()
async def test_an_offer_is_repeated_until_it_is_accepted_and_the_first_decision_counts(world: World) -> None:
    messages = Messages(away_until=45 * 60)
    flow = EngagementFlow(messages)
    await world.deploy(flow)
    await world.start(flow, "offer", Offer("Acme", "Ada", remind_every=timedelta(minutes=10)))
    await world.advance(25 * 60)

    async def decide(accepts: bool) -> str:
        try:
            return await world.client.invoke_rpc(flow.decide, world.id("offer"), accepts)
        except RpcLockConflictError:
            return "refused, because somebody else is deciding"
        except FlowNotActiveOrNotFoundError:
            return "too late"

    said = await asyncio.gather(*(decide(accepts) for accepts in (True, False, False)))
    await world.advance(60 * 60)
    (decision,) = outputs(await world.result("offer"))
    assert decision in said
    assert ({"accepted", "declined"} & set(said)) == {decision}
    assert (messages.reminded, messages.notified) == ([10, 20], [decision])
    await world.advance(100 * DAYS)
    assert len(messages.reminded) == 2


@scenario()
async def test_who_opts_out_of_reminders_may_still_decide_until_the_offer_expires(world: World) -> None:
    messages = Messages()
    flow = EngagementFlow(messages)
    await world.deploy(flow)
    await world.start(flow, "offer", Offer("Acme", "Ada"))
    await world.client.invoke_rpc(flow.opt_out_of_reminders, world.id("offer"))
    await world.restart()
    await world.advance(61 * DAYS)
    assert outputs(await world.result("offer")) == ["expired"]
    assert (messages.reminded, messages.notified) == ([], ["expired"])
    assert await world.client.get_attribute(world.id("offer"), engagement.status) == "expired"


class Billing:
    def __init__(self) -> None:
        self.charges: dict[str, tuple[float, int]] = {}

    def welcome(self, customer: str) -> None: ...

    def charge(self, customer: str, price: int, key: str) -> None:
        self.charges[key.rpartition("/")[2]] = (round(now() / DAYS, 1), price)


@scenario()
async def test_bills_follow_the_trial_and_a_new_price_moves_no_day(world: World) -> None:
    billing = Billing()
    flow = SubscriptionFlow(billing)
    await world.deploy(flow)
    await world.start(flow, "ada", Plan("Ada", 10, bills=3))
    await world.advance(45 * DAYS)
    await world.publish("ada", subscription.new_price, 12)
    await world.restart()
    await world.advance(100 * DAYS)
    assert outputs(await world.result("ada")) == ["ended after 3 bills"]
    assert billing.charges == {"1": (30.0, 10), "2": (60.0, 12), "3": (90.0, 12)}


@scenario()
async def test_who_cancels_is_not_charged_any_more(world: World) -> None:
    billing = Billing()
    flow = SubscriptionFlow(billing)
    await world.deploy(flow)
    await world.start(flow, "ada", Plan("Ada", 10))
    await world.advance(61 * DAYS)
    said = await world.client.invoke_rpc(flow.describe, world.id("ada"))
    assert said == "2 bills so far, the next is 10"
    await world.publish("ada", subscription.cancel, "moving")
    assert outputs(await world.result("ada")) == ["canceled after 2 bills: moving"]
    await world.advance(100 * DAYS)
    assert len(billing.charges) == 2


class Office:
    def has_approved(self, house: str, question: int) -> bool:
        return question >= 4


@scenario()
async def test_a_house_is_handed_over_when_two_have_reported_and_the_office_was_asked_long_enough(world: World) -> None:
    flow = PollingFlow(Office(), DAY)
    await world.deploy(flow)
    await world.start(flow, "house", "No 12")
    await world.publish("house", polling.painted, "Ada")
    await world.advance(2.5 * DAYS)
    await world.restart()
    await world.publish("house", polling.plumbed, "Ben")
    assert outputs(await world.result("house", 3 * DAYS)) == [
        "No 12: painted by Ada, plumbed by Ben, approved at question 4"
    ]
    assert now() == pytest.approx(4 * DAYS, abs=5)


class Letters:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, to: str, text: str, key: str = "") -> None:
        self.sent.append(to)


@scenario()
async def test_a_user_is_written_to_daily_until_the_link_is_followed_however_often(world: World) -> None:
    mailer = Letters()
    flow = UserSignupFlow(mailer)
    await world.deploy(flow)
    await world.start(flow, "ada", Form("ada", "ada@example.org"))
    await world.advance(2.5 * DAYS)
    assert await world.client.invoke_rpc(flow.verify, world.id("ada")) == "you are verified"
    assert outputs(await world.result("ada")) == ["ada is verified after 3 letters"]
    assert await world.client.invoke_rpc(flow.verify, world.id("ada")) == "you are verified already"
    assert mailer.sent == ["ada@example.org"] * 3


def test_a_name_is_given_once_and_a_form_that_is_sent_again_is_the_same_one() -> None:
    with FlowTest(signup.registry) as test:
        client = test.client
        first = Form("ada", "ada@example.org")
        assert signup.sign_up(client, first, "form 1") == "look into your letterbox"
        assert signup.sign_up(client, first, "form 1") == "look into your letterbox"
        assert signup.sign_up(client, Form("ada", "ben@example.org"), "form 2") == "the name ada is taken"
        with pytest.raises(FlowAlreadyStartedError):
            client.start_flow(signup.flow, "ada", first)


class SlowMirror:
    """Takes a while, so that updates overtake each other, and fails at first."""

    def __init__(self) -> None:
        self.post: Post | None = None
        self.failures = 3

    def update(self, post_id: str, post: Post) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the mirror is away")
        if self.post is None or post.revision > self.post.revision:
            self.post = post


@scenario()
async def test_the_mirror_has_the_newest_post_in_the_end(world: World) -> None:
    mirror = SlowMirror()
    flow = JobPostFlow(mirror)
    await world.deploy(flow)
    await world.start(flow, "post", None, job_post.started_with(Post("Gardener", "Likes roses", 100)))
    for revision in range(1, 6):
        changed = Post("Gardener", "Likes roses", 100 + revision, revision)
        assert await world.client.invoke_rpc(flow.update, world.id("post"), changed)
    await world.restart()
    await world.advance(3600)
    assert mirror.post == Post("Gardener", "Likes roses", 105, 6)
    assert await world.client.invoke_rpc(flow.read, world.id("post")) == mirror.post
    assert (await world.describe("post")).status == "RUNNING"


def test_of_two_editors_the_second_has_to_read_again() -> None:
    with FlowTest(job_post.registry) as test:
        client = test.client
        assert job_post.edit(client, "post") == [True, False]
        assert client.invoke_rpc(job_post.flow.read, "post").title == "Head gardener"
        assert job_post.posts_about(client, "gardener", at_least=150) == ["post"]
        assert job_post.posts_about(client, "gardener", at_least=250) == []
        client.stop_flow("post")
        client.wait_for_flow("post")
        assert job_post.posts_about(client, "gardener", at_least=150) == []


def test_open_offers_of_an_employer_are_found_until_they_are_decided() -> None:
    with FlowTest(engagement.registry) as test:
        client = test.client
        for name, employer in (("one", "Acme"), ("two", "Acme"), ("three", "O'Hara")):
            client.start_flow(engagement.flow, name, Offer(employer, "Ada"))
            client.wait_for_step_completion(name, StepExecutionId(engagement.Initialize))
        assert sorted(engagement.open_offers(client, "Acme")) == ["one", "two"]
        assert engagement.open_offers(client, "O'Hara") == ["three"]
        assert client.invoke_rpc(engagement.flow.decide, "one", False) == "declined"
        assert engagement.open_offers(client, "Acme") == ["two"]


@scenario()
async def test_candidates_hear_of_it_only_if_their_employer_wants_that(world: World) -> None:
    mailer = Letters()
    flow = ShortlistFlow(mailer)
    await world.deploy(flow, shortlist_candidates.opt_in_flow)
    await world.start(shortlist_candidates.opt_in_flow, "acme")
    await world.start(shortlist_candidates.opt_in_flow, "bolt")
    await world.publish("bolt", shortlist_candidates.opt_out, None)
    for name, employer in (("Ada", "acme"), ("Ben", "bolt"), ("Cleo", "nobody"), ("Dan", "acme")):
        await world.start(flow, name, Candidate(world.id(employer), name))
    await world.advance(200)
    await world.publish("Dan", shortlist_candidates.revoked, "a mistake")
    said = [outputs(await world.result(name, 400)) for name in ("Ada", "Ben", "Cleo", "Dan")]
    no = ["not told: the employer has not consented"]
    assert said == [["told"], no, no, ["revoked: a mistake"]]
    assert mailer.sent == ["Ada"]


class Mail:
    def __init__(self) -> None:
        self.sent: list[tuple[Letter, float]] = []

    def send(self, letter: Letter, key: str) -> None:
        self.sent.append((letter, round(now())))


class UnreliableModel(RuleModel):
    """Fails every second time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def next_turn(self, conversation: list[str]) -> Turn:
        self.asked += 1
        if self.asked % 2:
            raise ConnectionError("the model is overloaded")
        return super().next_turn(conversation)


@scenario()
async def test_the_agent_sends_the_letter_that_was_agreed_last_at_its_time(world: World) -> None:
    mail = Mail()
    flow = EmailAgentFlow(UnreliableModel(), mail)
    await world.deploy(flow)
    await world.start(flow, "agent", "Ada")
    for text in ("good morning", "send regards to Ben in 1000", "send love to Cleo in 1000"):
        await world.advance(100)
        await world.client.invoke_rpc(flow.say, world.id("agent"), text)
    await world.advance(10)
    await world.restart()
    assert outputs(await world.result("agent", 2000)) == ["sent to Cleo"]
    assert mail.sent == [(Letter("Cleo", "love", 1000), 1301)]
    assert await world.client.invoke_rpc(flow.read, world.id("agent")) == [
        "agent: Hello, Ada",
        "user: good morning",
        "agent: What shall I send, and to whom?",
        "user: send regards to Ben in 1000",
        "agent: I will write to Ben in 1000 s",
        "user: send love to Cleo in 1000",
        "agent: I will write to Cleo in 1000 s",
    ]


@scenario()
async def test_a_letter_that_was_canceled_is_never_sent(world: World) -> None:
    mail = Mail()
    flow = EmailAgentFlow(RuleModel(), mail)
    await world.deploy(flow)
    await world.start(flow, "agent", "Ada")
    await world.client.invoke_rpc(flow.say, world.id("agent"), "send regards to Ben in 1000")
    await world.advance(999)
    await world.client.invoke_rpc(flow.say, world.id("agent"), "cancel")
    await world.advance(10**6)
    assert mail.sent == []
    assert await world.client.get_attribute(world.id("agent"), email_agent.turns) == 2


@scenario()
async def test_a_transfer_is_complete_though_everything_was_away_for_a_day(world: World) -> None:
    bank = Bank(away=4)
    flow = MoneyTransferFlow(bank, patience=timedelta(days=2))
    await world.deploy(flow)
    await world.start(flow, "flow", Transfer("Ada", "Ben", 300))
    await world.advance(0.5)
    await away(world, DAYS)
    assert outputs(await world.result("flow", 3 * DAYS)) == ["300 went from Ada to Ben"]
    assert (bank.balance("Ada"), bank.balance("Ben")) == (700, 1300)
    assert money_transfer.flow.get_flow_type() == "MoneyTransferFlow"
