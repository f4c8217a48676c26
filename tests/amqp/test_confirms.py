"""Publisher confirms: every publish gets exactly one answer, and the right one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands
from pipe import Broker, Client, cut_frames, publish_frames
from stores import SlowBackingQueue, SlowQueues

from warren.amqp.confirms import ChannelConfirms
from warren.core.field import Field, longstr
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, Settlement


class Publisher:
    """What a client makes of the answers: the numbers it still waits for."""

    def __init__(self) -> None:
        self.outstanding: set[int] = set()
        self.acked: set[int] = set()
        self.nacked: set[int] = set()

    def hears(self, frames: bytes) -> None:
        cut, rest = cut_frames(frames)
        assert not rest
        for frame in cut:
            method = frame.method
            assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
            tag = method.delivery_tag
            assert tag in self.outstanding, f"{tag} was answered before"
            covered = {seq for seq in self.outstanding if seq <= tag} if method.multiple else {tag}
            self.outstanding -= covered
            (self.acked if isinstance(method, commands.Basic.Ack) else self.nacked).update(covered)


_answers = st.lists(st.sampled_from((SETTLED, SETTLED, PENDING, PENDING, REJECTED)), max_size=3)
_moves = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), _answers),
        st.tuples(st.just("publish"), _answers),
        st.tuples(st.just("settle"), st.integers(0, 1 << 16)),
        st.tuples(st.just("settle many"), st.integers(0, 1 << 16)),
        st.tuples(st.just("report"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(moves=_moves)
def test_every_publish_is_answered_once_and_as_its_queues_answered(
    moves: list[tuple[str, object]],
) -> None:
    news: list[None] = []
    confirms = ChannelConfirms(lambda: news.append(None))
    publisher = Publisher()
    open_answers: list[int] = []
    waiting: dict[int, int] = {}
    rejected: set[int] = set()
    settled: set[int] = set()

    def report() -> None:
        publisher.hears(confirms.report(1))
        assert publisher.acked == settled
        assert publisher.nacked == rejected
        news.clear()

    for move, argument in moves:
        told_before = len(news)
        if move == "publish":
            answers: list[Settlement] = argument  # type: ignore[assignment]
            seq = confirms.number()
            publisher.outstanding.add(seq)
            if REJECTED in answers:
                answers = [answer for answer in answers if answer is not PENDING]
                rejected.add(seq)
            elif PENDING in answers:
                waiting[seq] = answers.count(PENDING)
                open_answers += [seq] * waiting[seq]
            else:
                settled.add(seq)
            confirms.record(seq, tuple(answers))
            assert seq in waiting or len(news) > told_before
        elif move == "settle" and open_answers:
            assert isinstance(argument, int)
            seq = open_answers.pop(argument % len(open_answers))
            waiting[seq] -= 1
            confirms.settle(seq)
            if not waiting[seq]:
                settled.add(seq)
                assert len(news) > told_before
        elif move == "settle many" and open_answers:
            assert isinstance(argument, int)
            first = open_answers[argument % len(open_answers)]
            end = first
            while end in open_answers:
                open_answers.remove(end)
                waiting[end] -= 1
                if not waiting[end]:
                    settled.add(end)
                end += 1
            confirms.settle_many(first, end - first)
        elif move == "report":
            report()
    for seq in open_answers:
        confirms.settle(seq)
    settled |= set(waiting)
    report()
    assert not publisher.outstanding
    assert confirms.undisturbed


def test_what_becomes_safe_after_the_channel_is_gone_is_no_news() -> None:
    news: list[None] = []
    confirms = ChannelConfirms(lambda: news.append(None))
    confirms.record(confirms.number(), (PENDING,))
    news.clear()
    confirms.close()
    confirms.settle(1)
    assert not news


def confirming(client: Client, channel: int = 1) -> Client:
    client.selects_confirms(channel)
    return client


def test_publishes_of_one_turn_are_confirmed_by_one_multiple_ack(client: Client) -> None:
    confirming(client).declares("q")
    for _ in range(5):
        client.publishes("q")
    ack = client.receives(commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (5, True)
    client.publishes("q")
    ack = client.receives(commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (6, False)
    client.receives_nothing()


def test_a_return_is_written_before_the_ack(client: Client) -> None:
    confirming(client).publishes("nobody", mandatory=True)
    returned = client.receives_content(commands.Basic.Return)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


def test_a_full_queue_nacks_and_the_others_are_acked(client: Client) -> None:
    arguments = {"x-max-length": Field("l", 1), "x-overflow": longstr("reject-publish")}
    confirming(client).declares("q", arguments=arguments)
    for _ in range(3):
        client.publishes("q")
    client.publishes("nobody")
    answers = [frame.method for frame in client.frames()]
    publisher = Publisher()
    publisher.outstanding = {1, 2, 3, 4}
    for answer in answers:
        assert isinstance(answer, commands.Basic.Ack | commands.Basic.Nack)
        tag = answer.delivery_tag
        mine = {seq for seq in publisher.outstanding if seq <= tag} if answer.multiple else {tag}
        publisher.outstanding -= mine
        if isinstance(answer, commands.Basic.Nack):
            publisher.nacked |= mine
    assert publisher.nacked == {2, 3} and not publisher.outstanding


def test_a_persistent_message_is_confirmed_when_its_queue_has_it_safe() -> None:
    queues = SlowQueues()
    client = Broker(new_backing_queue=queues.new).connects()
    client.opens_channel(1)
    confirming(client).declares("q", durable=True)
    client.publishes("q", b"1", delivery_mode=2)
    client.publishes("q", b"2")
    client.publishes("q", b"3", delivery_mode=2)
    assert client.receives(commands.Basic.Ack).delivery_tag == 2
    client.receives_nothing()
    queues.settle(2)
    assert client.receives(commands.Basic.Ack).delivery_tag == 3
    queues.settle(1)
    ack = client.receives(commands.Basic.Ack)
    assert ack.delivery_tag == 1 or ack.multiple
    client.receives_nothing()


def test_a_message_for_two_queues_is_confirmed_when_both_have_it_safe() -> None:
    queues = SlowQueues()
    client = Broker(new_backing_queue=queues.new).connects()
    client.opens_channel(1)
    for name in ("a", "b"):
        client.declares(name)
        client.sends(commands.Queue.Bind, queue=name, exchange="amq.fanout")
        client.receives(commands.Queue.BindOk)
    confirming(client).publishes("", exchange="amq.fanout", delivery_mode=2)
    queues.settle(1)
    client.receives_nothing()
    queues.settle(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == 1


def test_a_channel_reopened_under_its_number_hears_nothing_of_the_old_ones_publishes() -> None:
    queues = SlowQueues()
    client = Broker(new_backing_queue=queues.new).connects()
    client.opens_channel(1)
    confirming(client).declares("q")
    client.publishes("q", delivery_mode=2)
    client.sends(commands.Channel.Close)
    client.receives(commands.Channel.CloseOk)
    client.opens_channel(1)
    confirming(client).publishes("q")
    queues.settle(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == 1
    client.receives_nothing()
    assert isinstance(queues.made[0], SlowBackingQueue)


def test_slow_queues_settle_many_publishes_of_one_read() -> None:
    queues = SlowQueues()
    client = Broker(new_backing_queue=queues.new).connects()
    client.opens_channel(1)
    client.declares("q", durable=True)
    client.selects_confirms()
    client.sends_octets(publish_frames(1, "", "q", b"x", delivery_mode=2) * 3)
    client.receives_nothing()
    for _ in range(3):
        queues.settle()
    assert client.receives(commands.Basic.Ack).delivery_tag == 3


def test_a_publish_that_is_refused_with_its_channel_is_not_confirmed_with_those_before() -> None:
    broker = Broker()
    client = broker.connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.declares("q")
    broker.node.vhost_limits.replace("/", {"max-messages": 2})
    client.sends_octets(b"".join(publish_frames(1, "", "q", b"%d" % number) for number in range(3)))
    ack = client.receives(commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (2, True)
    client.receives_close(406)
    assert client.frames() == []
