"""Celery: a real worker with its pool, mingle, gossip and results, on Warren alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TimeoutError as ResultTimeout

from warren import Broker

PATIENCE_S = 60

TASKS = """
import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend=os.environ["BACKEND"])
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
"""


@pytest.fixture
def work_with(warren_broker: Broker, tmp_path: Path) -> Iterator[Callable[[str], Celery]]:
    """Starts a worker in another process; the application, with this result backend."""
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    (tmp_path / "results").mkdir()
    workers: list[subprocess.Popen[bytes]] = []
    apps: list[Celery] = []

    def start(backend: str) -> Celery:
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"]
        environment = {"BROKER_URL": warren_broker.url, "BACKEND": backend, "PATH": "/usr/bin:/bin"}
        with (tmp_path / "worker.log").open("ab") as log:
            workers.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
            )
        apps.append(Celery("tasks", broker=warren_broker.url, backend=backend))
        return apps[-1]

    yield start
    for app in apps:
        if hasattr(app.backend, "result_consumer"):
            app.backend.result_consumer.stop()
        app.close()
    for worker in workers:
        worker.terminate()
    # Celery's warm shutdown: it cancels its consumers and says goodbye to the broker.
    codes = [worker.wait(PATIENCE_S) for worker in workers]
    assert codes == [0] * len(codes), (tmp_path / "worker.log").read_text(encoding="utf-8")


def task(app: Celery, name: str, *arguments: Any, **options: Any) -> Any:
    return app.signature(f"tasks.{name}", args=arguments, **options)


def test_tasks_groups_chains_retries_and_delays_run(
    work_with: Callable[[str], Celery], warren_broker: Broker, until: Callable[..., None]
) -> None:
    """Results come back through the broker. One worker for all, since it takes seconds to start."""
    app = work_with("rpc://")
    assert task(app, "add", 2, 3).apply_async().get(timeout=PATIENCE_S) == 5

    many = group([task(app, "add", n, n) for n in range(50)], app=app).apply_async()
    assert many.get(timeout=PATIENCE_S) == [2 * n for n in range(50)]

    steps = chain(task(app, "add", 1, 1), task(app, "add", 10), task(app, "add", 100), app=app)
    assert steps.apply_async().get(timeout=PATIENCE_S) == 112

    retried = task(app, "succeed_at", 3).apply_async()
    assert retried.get(timeout=PATIENCE_S) == 3

    delayed = task(app, "add", 4, 4).apply_async(countdown=1.5)
    with pytest.raises(ResultTimeout):
        delayed.get(timeout=0.2)
    assert delayed.get(timeout=PATIENCE_S) == 8

    with pytest.raises(ValueError, match="as asked"):
        task(app, "fail").apply_async().get(timeout=PATIENCE_S)

    # Remote control goes through a fanout exchange and reply queues.
    (pong,) = app.control.ping(timeout=PATIENCE_S, limit=1)
    assert list(pong.values()) == [{"ok": "pong"}]

    # Late acknowledgements settled every task.
    def settled() -> bool:
        queue = warren_broker.call(lambda node: node.vhosts["/"].queues["celery"])
        return len(queue) == queue.unacked == 0

    until(settled)


def test_a_chord_runs_its_callback_after_the_whole_group(
    work_with: Callable[[str], Celery], tmp_path: Path
) -> None:
    """With results in files: Celery has no chords over `rpc://`. The callback waits in retries."""
    app = work_with(f"file://{tmp_path}/results")
    header = [task(app, "add", n, n) for n in range(10)]
    result = chord(header, task(app, "total"), app=app).apply_async()
    assert result.get(timeout=PATIENCE_S) == 90
