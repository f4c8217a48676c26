"""What a sink is told, and what it refuses before anything is sent."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types

from warren.spark_export.errors import OptionRefused
from warren.spark_export.sink.sink import batch_writer, stream_writer
from warren.spark_export.sink.sink_options import BrokerAddress, SinkOptions

STRING = types.StringType()
BODY = types.StructType([types.StructField("body", types.BinaryType())])


def with_body(name: str, kind: types.DataType) -> types.StructType:
    """A body, and another column."""
    return types.StructType([*BODY.fields, types.StructField(name, kind)])


ENOUGH = {"host": "rabbit", "exchange": "trade"}


def test_a_url_says_where_and_as_whom() -> None:
    options = SinkOptions.parse({"URL": "amqp://me%40home:p%2Fw@rabbit:1234/my%2Fhost"})
    assert options.address == BrokerAddress("rabbit", 1234, "my/host", "me@home", "p/w")
    assert "p/w" not in repr(options)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://rabbit", BrokerAddress("rabbit", 5672, "/", "guest", "guest")),
        ("amqp://rabbit/", BrokerAddress("rabbit", 5672, "/", "guest", "guest")),
        ("amqps://rabbit/v", BrokerAddress("rabbit", 5671, "v", "guest", "guest", tls=True)),
        ("amqp://[::1]:5/%2F", BrokerAddress("::1", 5, "/", "guest", "guest")),
    ],
)
def test_what_a_url_does_not_say_is_the_default(url: str, address: BrokerAddress) -> None:
    assert SinkOptions.parse({"url": url}).address == address


def test_the_parts_can_be_options() -> None:
    given = {"host": "rabbit", "vhost": "shop", "username": "me", "password": "pw", "tls": "true"}
    files = {"caFile": "/ca", "certFile": "/cert", "keyFile": "/key"}
    assert SinkOptions.parse({**given, **files}).address == BrokerAddress(
        "rabbit", 5671, "shop", "me", "pw", True, "/ca", "/cert", "/key"
    )


def test_defaults_are_safe() -> None:
    options = SinkOptions.parse({"host": "rabbit"})
    assert (options.mandatory, options.confirms, options.delivery_mode) == (True, True, 2)
    assert (options.max_in_flight, options.confirm_timeout_s) == (1000, 60)
    assert options.generate_message_ids


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs the option url"),
        ({"host": "a", "exchnage": "x"}, "no option 'exchnage'; it has url, host"),
        ({"host": "a", "path": "/data"}, "no option 'path'"),
        ({"url": "http://a"}, "begins with 'http'"),
        ({"url": "amqp://a:port"}, "cannot be read"),
        ({"url": "amqp://a/b?heartbeat=5"}, "has a query"),
        ({"url": "amqp://a/b/c"}, "written %2F"),
        ({"url": "amqp://a", "vhost": "b"}, "url and vhost are both given"),
        ({"host": "a", "caFile": "/ca"}, "are for TLS"),
        ({"host": "a", "tls": "true", "keyFile": "/k"}, "without certFile"),
        ({"host": "a", "vhost": "v" * 128}, "longer than 127"),
        ({"host": "a", "port": "70000"}, "port is '70000', not a whole number from 1 to 65535"),
        ({"host": "a", "maxInFlight": "0"}, "maxInFlight is '0', not a whole number from 1"),
        ({"host": "a", "maxInFlight": "9" * 5000}, "9', not a whole number from 1"),
        ({"host": "a", "mandatory": "yes"}, "mandatory is 'yes', not true or false"),
        ({"host": "a", "deliveryMode": "3"}, "deliveryMode is '3', not 1"),
        ({"host": "a", "routingKey": "k" * 256}, "routingKey has 256 octets, of 255"),
        ({"host": "a", "jobId": "j" * 191}, "jobId has 191 octets"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionRefused, match=text):
        SinkOptions.parse(given)


def test_no_text_shows_a_password() -> None:
    with pytest.raises(OptionRefused) as refused:
        SinkOptions.parse({"url": "amqp://me:s3cret@a:port"})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "given", "text"),
    [
        (BODY, {"exchange": None}, "neither an option nor a column exchange"),
        (BODY, {"exchange": ""}, "neither an option routingKey nor a column routing_key"),
        (types.StructType().add("text", STRING), {}, "no part of a message is in column text"),
        (types.StructType().add("type", STRING), {}, "no column body .*bodyColumn"),
        (types.StructType().add("body", types.LongType()), {}, "column body is bigint.*to_json"),
        (with_body("colour", STRING), {}, "no part of a message is in column colour"),
        (with_body("BODY", STRING), {}, "two columns body"),
        (with_body("priority", STRING), {}, "column priority is string, not one of byte, short"),
        (with_body("headers", types.ArrayType(STRING)), {}, "column headers is array<string>"),
        (
            with_body("headers", types.MapType(types.IntegerType(), STRING)),
            {},
            "column headers is map<int,string>.*map of names",
        ),
    ],
)
def test_a_dataframe_that_cannot_be_messages_is_refused(
    schema: types.StructType, given: dict[str, str | None], text: str
) -> None:
    options = {name: one for name, one in {**ENOUGH, **given}.items() if one is not None}
    with pytest.raises(OptionRefused, match=text):
        batch_writer(options, schema, overwrite=False)
    with pytest.raises(OptionRefused, match=text):
        stream_writer(options, schema, overwrite=False)


def test_extra_columns_may_be_ignored_and_the_body_may_have_another_name() -> None:
    schema = types.StructType().add("colour", STRING).add("body", STRING).add("text", STRING)
    given = {**ENOUGH, "bodyColumn": "Text", "ignoreExtraColumns": "true"}
    assert batch_writer(given, schema, False).columns.numbers == {"body": 2}


def test_names_of_columns_ignore_case() -> None:
    schema = types.StructType().add("Body", STRING).add("Routing_Key", STRING)
    assert batch_writer(ENOUGH, schema, False).columns.numbers == {"body": 0, "routing_key": 1}


def test_overwriting_is_refused() -> None:
    with pytest.raises(OptionRefused, match=r'mode\("append"\)'):
        batch_writer(ENOUGH, BODY, overwrite=True)
    with pytest.raises(OptionRefused, match=r'outputMode\("append"\)'):
        stream_writer(ENOUGH, BODY, overwrite=True)


def test_each_write_without_a_job_id_draws_one_that_its_tasks_share() -> None:
    first, second = (batch_writer(ENOUGH, BODY, False) for _ in range(2))
    assert first.options.job_id != second.options.job_id
    assert pickle.loads(pickle.dumps(first)) == first
    assert batch_writer({**ENOUGH, "jobId": "nightly"}, BODY, False).options.job_id == "nightly"
