"""Celery: a real worker with its pool, mingle, gossip and results, on Warren alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TimeoutError as ResultTimeout

from warren import Broker

PATIENCE_S = 60

TASKS = '''
import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    result_expires=600,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def succeed_at(self, attempt):
    if self.request.retries < attempt:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def fail():
    raise ValueError("as asked")
'''


@pytest.fixture
def tasks(warren_broker: Broker, tmp_path: Path) -> Iterator[Celery]:
    """The application, with a worker of its own in another process."""
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    log = (tmp_path / "worker.log").open("wb")
    worker = subprocess.Popen(
        [
            sys.executable, "-m", "celery", "-A", "tasks", "worker",
            "--pool", "solo", "--loglevel", "info",
        ],
        cwd=tmp_path,
        env={"BROKER_URL": warren_broker.url, "PATH": "/usr/bin:/bin"},
        stdout=log,
        stderr=log,
    )  # fmt: skip
    log.close()
    app = Celery("tasks", broker=warren_broker.url, backend="rpc://", set_as_current=False)
    try:
        yield app
    finally:
        worker.terminate()
        code = worker.wait(PATIENCE_S)
        app.close()
    # Celery's warm shutdown: it cancels its consumers and says goodbye to the broker.
    assert code == 0, (tmp_path / "worker.log").read_text(encoding="utf-8")


def task(app: Celery, name: str, *arguments: Any, **options: Any) -> Any:
    return app.signature(f"tasks.{name}", args=arguments, **options)


def test_tasks_groups_chains_retries_and_delays_run(
    tasks: Celery, warren_broker: Broker, until: Callable[..., None]
) -> None:
    """One worker for all of them, since it takes seconds to start."""
    assert task(tasks, "add", 2, 3).apply_async().get(timeout=PATIENCE_S) == 5

    many = group([task(tasks, "add", n, n) for n in range(50)], app=tasks).apply_async()
    assert many.get(timeout=PATIENCE_S) == [2 * n for n in range(50)]

    steps = chain(
        task(tasks, "add", 1, 1), task(tasks, "add", 10), task(tasks, "add", 100), app=tasks
    )
    assert steps.apply_async().get(timeout=PATIENCE_S) == 112

    retried = task(tasks, "succeed_at", 3).apply_async()
    assert retried.get(timeout=PATIENCE_S) == 3

    delayed = task(tasks, "add", 4, 4).apply_async(countdown=2)
    with pytest.raises(ResultTimeout):
        delayed.get(timeout=0.5)
    assert delayed.get(timeout=PATIENCE_S) == 8

    with pytest.raises(ValueError, match="as asked"):
        task(tasks, "fail").apply_async().get(timeout=PATIENCE_S)

    # Remote control goes through a fanout exchange and reply queues.
    (pong,) = tasks.control.ping(timeout=5, limit=1)
    assert list(pong.values()) == [{"ok": "pong"}]

    # Late acknowledgements settled every task.
    def settled() -> bool:
        queue = warren_broker.call(lambda node: node.vhosts["/"].queues["celery"])
        return len(queue) == queue.unacked == 0

    until(settled)


def test_a_chord_runs_its_callback_after_the_whole_group(warren_broker: Broker) -> None:
    """With a result backend of its own: Celery has no chords over `rpc://`."""
    app = Celery(broker=warren_broker.url, backend="cache+memory://", set_as_current=False)

    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        result = chord((square.s(number) for number in range(20)), total.s()).apply_async()
        assert result.get(timeout=PATIENCE_S) == sum(number * number for number in range(20))
    app.close()
