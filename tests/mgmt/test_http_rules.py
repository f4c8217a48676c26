"""Rules for every HTTP request: logins, requests from other sites, headers, long lists."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from api_client import ApiClient

from warren import Broker
from warren.config import Listener
from warren.core.access.login_throttle import OF_ADDRESS_MAX, OF_NAME_MAX
from warren.core.node import Node


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, cors_origins=("https://tools.example",)) as broker:
        yield broker


def ask(
    broker: Broker, method: str, path: str, body: str | None = None, **headers: str
) -> HTTPResponse:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    answer.content = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def test_headers_and_the_name_of_the_cluster_may_be_configured() -> None:
    headers = (("Strict-Transport-Security", "max-age=600"), ("X-Frame-Options", "SAMEORIGIN"))
    with Broker(http_port=0, http_headers=headers, cluster_name="orders") as broker:
        for path in ("/", "/api/whoami", "/api/none"):
            answer = ask(broker, "GET", path)
            assert answer.headers.get_all("X-Frame-Options") == ["SAMEORIGIN"]
            assert answer.headers["Strict-Transport-Security"] == "max-age=600"
        named = ApiClient(broker)
        assert named.get("/cluster-name")[1] == {"name": "orders"}
        assert named.put("/cluster-name", {"name": "sales"})
        assert named.get("/cluster-name")[1] == {"name": "sales"}


def test_one_slash_at_the_end_of_a_path_changes_nothing(broker: Broker) -> None:
    client = ApiClient(broker)
    assert client.put("/queues/%2F/q/", {})
    for path in ("/overview", "/queues", "/queues/%2F", "/queues/%2F/q"):
        statuses = [
            (client.ask(method, f"{path}{end}").status)
            for method in ("GET", "OPTIONS")
            for end in ("", "/", "//")
        ]
        assert statuses[:2] == [200, 200] and statuses[3:5] == [200, 200], path
        assert statuses[2] == 404
    assert ask(broker, "OPTIONS", "/api/queues/").headers["Allow"] == "HEAD, GET, OPTIONS"


def test_nobody_is_told_anything(broker: Broker) -> None:
    for path in ("/api/overview", "/api/queues", "/api/openapi.json", "/metrics", "/api/nodes/x"):
        answer = ask(broker, "GET", path)
        assert answer.status == 401, path
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="RabbitMQ Management"'
        assert answer.content == b""  # type: ignore[attr-defined]


def test_whoever_guesses_has_to_wait_and_so_has_the_right_password(broker: Broker) -> None:
    guesser = ApiClient(broker, "guest", "wrong")
    answers = [guesser.ask("GET", "/whoami") for _ in range(OF_NAME_MAX + 2)]
    assert [answer.status for answer in answers[:OF_NAME_MAX]] == [401] * OF_NAME_MAX
    assert answers[-1].status == 429
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert ApiClient(broker).get("/whoami")[0] == 429


def test_who_guesses_behind_a_proxy_does_not_lock_the_others_out(broker: Broker) -> None:
    for user in ("ann", "bob"):
        assert ApiClient(broker).put(f"/users/{user}", {"password": "p", "tags": "management"})
    statuses = [
        ApiClient(broker, f"name{number}", "x").get("/whoami")[0]
        for number in range(OF_ADDRESS_MAX + 5)
    ]
    assert statuses[0] == 401 and statuses[-1] == 429
    # A right password gets in; a wrong one is answered as if there were no such user.
    assert ApiClient(broker, "ann", "p").get("/whoami")[0] == 200
    assert ApiClient(broker, "bob", "x").get("/whoami")[0] == 429
    assert ApiClient(broker, "bob", "p").get("/whoami")[0] == 429
    assert ApiClient(broker, "ann", "p").get("/whoami")[0] == 200


def log_in(broker: Broker, password: str = "guest") -> HTTPResponse:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    return ask(broker, "POST", "/api/login", f"username=guest&password={password}", **form)


def test_the_cookie_of_a_login_lets_in(broker: Broker) -> None:
    answer = log_in(broker)
    assert (answer.status, answer.content) == (200, b'"ok"')  # type: ignore[attr-defined]
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    shown = ask(broker, "GET", "/api/whoami", Cookie=cookie.split(";")[0])
    assert json.loads(shown.content)["name"] == "guest"  # type: ignore[attr-defined]
    assert log_in(broker, "wrong").status == 401


def test_another_site_cannot_use_the_cookie(broker: Broker) -> None:
    cookie = log_in(broker).headers["Set-Cookie"].split(";")[0]
    own = f"http://{broker.host}:{broker.http_port}"
    for origin, wanted in (("https://evil.example", 403), (own, 201)):
        answer = ask(broker, "PUT", "/api/vhosts/made", "{}", Cookie=cookie, Origin=origin)
        assert answer.status == wanted


def test_other_sites_are_answered_only_where_configured(broker: Broker) -> None:
    allowed = "Access-Control-Allow-Origin"
    assert allowed not in ask(broker, "GET", "/api/auth", Origin="https://evil.example").headers
    good = ask(broker, "OPTIONS", "/api/queues", Origin="https://tools.example")
    assert good.headers[allowed] == "https://tools.example"
    assert "PUT" in good.headers["Access-Control-Allow-Methods"]


def test_every_answer_carries_what_browsers_go_by(broker: Broker) -> None:
    for path in ("/api/auth", "/api/overview", "/api/none"):
        headers = ask(broker, "GET", path).headers
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-cache"


def test_large_answers_are_compressed_for_who_wants_it(broker: Broker) -> None:
    who = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    plain = ask(broker, "GET", "/api/openapi.json", **who)
    packed = ask(broker, "GET", "/api/openapi.json", Accept_Encoding="gzip", **who)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 3


def test_asking_for_the_head_of_a_long_answer_leaves_the_connection_usable(broker: Broker) -> None:
    who = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}

    def declare(node: Node) -> None:
        for number in range(2000):
            node.vhosts["/"].declare_queue(
                f"q{number}", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
            )

    broker.call(declare)
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
    for path in ("/api/bindings", "/api/definitions"):
        for packed in ("identity", "gzip"):
            connection.request("HEAD", path, headers={**who, "Accept-Encoding": packed})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            assert answer.headers["Content-Type"] == "application/json"
            connection.request("GET", path, headers=who)
            answer = connection.getresponse()
            assert answer.status == 200 and json.loads(answer.read())
    connection.close()


def test_what_is_no_http_harms_nobody(broker: Broker) -> None:
    for rubbish in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"AMQP\x00\x00\x09\x01"):
        connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
        connection.connect()
        connection.sock.sendall(rubbish)
        connection.sock.settimeout(5)
        connection.sock.recv(1000)
        connection.close()
    assert ApiClient(broker).get("/whoami")[0] == 200


def test_the_first_requests_may_come_at_once() -> None:
    """The server is loaded by the first of them; the others wait with it."""
    with Broker(http_port=0) as broker:
        connections = [
            http.client.HTTPConnection(broker.host, broker.http_port, timeout=30) for _ in range(20)
        ]
        for connection in connections:
            connection.request("GET", "/api/auth")
        assert [connection.getresponse().status for connection in connections] == [200] * 20
        for connection in connections:
            connection.close()


def test_a_list_of_thousands_is_whole_and_in_order() -> None:
    with Broker(http_port=0) as broker:
        client = ApiClient(broker)

        def declare(node: object) -> None:
            vhost = node.vhosts["/"]  # type: ignore[attr-defined]
            for number in range(3000):
                vhost.declare_queue(
                    f"q{number:04}",
                    durable=False,
                    exclusive_owner=None,
                    auto_delete=False,
                    arguments={},
                )

        broker.call(declare)
        names = [f"q{number:04}" for number in range(3000)]
        _, rows = client.get("/queues?columns=name")
        assert [row["name"] for row in rows] == names
        _, rows = client.get("/queues?columns=name&sort=name&sort_reverse=true")
        assert [row["name"] for row in rows] == names[::-1]
        pages = [client.get(f"/queues?page={page}&page_size=500")[1] for page in range(1, 7)]
        assert [row["name"] for page in pages for row in page["items"]] == names
        assert {(page["total_count"], page["page_count"]) for page in pages} == {(3000, 6)}
        _, found = client.get("/queues?page=1&name=q29&page_size=500")
        assert [row["name"] for row in found["items"]] == names[2900:]
        assert (found["filtered_count"], found["total_count"]) == (100, 3000)
        _, by_regex = client.get("/queues?page=1&name=^Q..(00|99)$&use_regex=true")
        assert [row["name"] for row in by_regex["items"]][:2] == ["q0000", "q0099"]
        _, bindings = client.get("/bindings?columns=destination")
        assert [row["destination"] for row in bindings] == names


def test_a_filter_cannot_stop_the_node(broker: Broker) -> None:
    client = ApiClient(broker)
    assert client.put("/queues/%2F/" + "a" * 60 + "!", {})[0] == 201
    status, refusal = client.get("/queues?page=1&use_regex=true&name=(a%7Caa)%2B%24")
    assert (status, refusal["reason"]) == (400, "the regular expression takes too long to match")
    status, refusal = client.get("/queues?page=1&use_regex=true&name=" + "(a%7Ca)" * 300)
    assert status == 400 and "too large" in refusal["reason"]


def test_strangers_send_little_and_nobody_sends_packed(broker: Broker) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert ask(broker, "POST", "/api/login", "username=" + "a" * 10_000, **form).status == 413
    assert ask(broker, "POST", "/api/login", "x", Content_Encoding="gzip", **form).status == 415
    charset = {"Content_Type": "application/x-www-form-urlencoded; charset=nope"}
    assert ask(broker, "POST", "/api/login", "username=a", **charset).status == 400
    client = ApiClient(broker)
    assert client.ask("PUT", "/queues/%2F/q", b" " * (2 << 20)).status == 413
    large = {"properties": {}, "routing_key": "q", "payload_encoding": "string"}
    status, answer = client.post(
        "/exchanges/%2F/amq.default/publish", {**large, "payload": "x" * (2 << 20)}
    )
    assert (status, answer) == (200, {"routed": False})


GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
OWN = "http://{host}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://localhost:3000"},
        {"Sec_Fetch_Site": "cross-site", "Origin": OWN},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[bad"},
        {"Origin": "http://{host}1"},
        {"Origin": "https://evil.example", "X_Forwarded_Host": "mq.example"},
    ],
)
def test_pages_of_other_sites_change_nothing_whatever_the_login(
    broker: Broker, headers: dict[str, str]
) -> None:
    host = f"{broker.host}:{broker.http_port}"
    sent = {name: value.format(host=host) for name, value in headers.items()}
    form = {"Content_Type": "text/plain"}
    body = '{"password":"x","tags":"administrator","ignored":"="}'
    for login in (GUEST, {"Cookie": log_in(broker).headers["Set-Cookie"].split(";")[0]}, {}):
        answer = ask(broker, "PUT", "/api/users/eve", body, **login, **form, **sent)
        assert answer.status == 403
        told = json.loads(answer.content)  # type: ignore[attr-defined]
        assert told["error"] == "cross_site" and "another site" in told["reason"]
    bulk = ask(broker, "POST", "/api/users/bulk-delete", '{"users":["guest"]}', **GUEST, **sent)
    assert bulk.status == 403
    urlencoded = {"Content_Type": "application/x-www-form-urlencoded"}
    into = ask(broker, "POST", "/api/login", "username=guest&password=guest", **urlencoded, **sent)
    assert into.status == 403 and "Set-Cookie" not in into.headers
    assert ApiClient(broker).get("/users/eve")[0] == 404
    assert ask(broker, "GET", "/api/whoami", **GUEST, **sent).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "same-origin", "Origin": OWN},
        # Behind a proxy the node does not know what it is called.
        {"Sec_Fetch_Site": "same-origin", "Origin": "https://mq.example"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": OWN},
        {"Origin": "https://MQ.example", "X_Forwarded_Host": "mq.example"},
        {"Origin": "https://mq.example:8443", "X_Forwarded_Host": "mq.example:8443, inner"},
        {"Sec_Fetch_Site": "cross-site", "Origin": "https://tools.example"},
        {"Origin": "https://tools.example"},
    ],
)
def test_tools_own_pages_and_configured_sites_go_on(
    broker: Broker, headers: dict[str, str]
) -> None:
    host = f"{broker.host}:{broker.http_port}"
    sent = {name: value.format(host=host) for name, value in headers.items()}
    assert ask(broker, "PUT", "/api/vhosts/made", "{}", **GUEST, **sent).status == 201


def test_who_goes_away_in_the_middle_of_a_list_leaves_no_trace(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def declare(node: object) -> None:
        vhost = node.vhosts["/"]  # type: ignore[attr-defined]
        for number in range(5000):
            vhost.declare_queue(
                f"q{number}", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
            )

    broker.call(declare)
    for _ in range(5):
        connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=30)
        connection.request(
            "GET", "/api/queues", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        )
        connection.getresponse().read(1000)
        connection.close()
    assert ApiClient(broker).get("/whoami")[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_probes_want_no_login_and_say_why_a_node_is_not_ready() -> None:
    metrics = (Listener("127.0.0.1", 0),)
    with Broker(http_port=0, metrics_listeners=metrics, path_prefix="/broker") as broker:
        managed = broker._running.management.managed  # type: ignore[union-attr]
        ports = [port for _, port in broker._running.http_ports]

        def probe(port: int, path: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection(broker.host, port, timeout=30)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text

        for port in ports:
            assert probe(port, "/health/live") == (200, "alive\n")
            assert probe(port, "/health/ready") == (200, "ready\n")
        for attribute, value, reason in (
            ("suspended", True, "no new clients are let in\n"),
            ("drained", True, "in maintenance\n"),
            ("paused", "etcd is lost", "paused: etcd is lost\n"),
        ):
            broker.call(lambda node, name=attribute, to=value: setattr(managed, name, to))
            for port in ports:
                assert probe(port, "/health/ready") == (503, reason)
                assert probe(port, "/health/live")[0] == 200
