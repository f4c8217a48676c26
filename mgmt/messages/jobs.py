"""The jobs of a node, including finished ones, and what the cluster keeps about jobs.

A job is kept as a parameter of its virtual host from its beginning to its end. A crash, a stop of
the node or a new leader of the queue interrupts a job: it ends, the parameter stays, and operators
can have it started again. Messages that it has moved are where they belong, so the second run does
the rest; only copies may be made twice. The parameter says how far the job is (`progress.py`): a
job with a limit writes it before it handles messages, a job that copies now and then, and every job
when it is interrupted, if its node still can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import msgspec

from warren.core.access.access_control import User
from warren.core.definitions.validation import NotThere, ValidationFailed
from warren.core.errors import BrokerError
from warren.core.log_line import log_event, log_fault
from warren.core.messages.message_filter import InvalidFilter
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.messages.job import Job, JobState
from warren.mgmt.messages.plan import InvalidPlan, JobPlan, parse_plan
from warren.mgmt.messages.progress import AT_THE_BEGINNING, Progress
from warren.mgmt.waiting import taken

log = logging.getLogger("warren.queue")

COMPONENT = "message-job"

RUNNING_MAX = 20
"""Jobs that run on a node at a time: each adds work to every turn of the loop."""

KEPT_MAX = 100
"""Finished jobs that are still shown."""


NOTE_S = 1.0
"""How long a stopping node waits for the cluster to store that a job is over."""


class NotNow(BrokerError):
    """The node begins no further job: it runs `RUNNING_MAX` jobs already, or is stopping."""


class JobKey(NamedTuple):
    vhost: str
    name: str


class KeptJob(NamedTuple):
    """A job as the cluster keeps it, and how far it was."""

    key: JobKey
    queue: str
    plan: JobPlan
    progress: Progress


class MessageJobs:
    """Begins jobs on queues that this node leads, and keeps the last ones to be shown."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._jobs: dict[JobKey, Job] = {}
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}
        self._numbers = count(1)
        self._stop_wanted = asyncio.Event()
        node.parameters.register(COMPONENT, _check)

    def items(self) -> list[tuple[JobKey, Job]]:
        """The jobs of this node, the oldest first."""
        return list(self._jobs.items())

    def get(self, key: JobKey) -> Job | None:
        return self._jobs.get(key)

    def kept(self, vhost: str | None = None) -> list[KeptJob]:
        """The unfinished jobs of all nodes. A job that runs on none of them is interrupted."""
        found = []
        for parameter in self._node.parameters.all(COMPONENT, vhost):
            value = parameter.value
            key = JobKey(parameter.vhost, parameter.name)
            plan = parse_plan(value["plan"])
            found.append(KeptJob(key, value["queue"], plan, _progress(value)))
        return found

    def new_name(self, queue: LocalQueue, plan: JobPlan) -> str:
        moment = int(self._node.clock.wall_time() * 1000)
        return f"{plan.action} {queue.name} {moment}-{next(self._numbers)}"

    async def begin(
        self,
        name: str,
        queue: LocalQueue,
        plan: JobPlan,
        user: User | None,
        before: Progress = AT_THE_BEGINNING,
    ) -> None:
        """Begin a job on a queue that this node leads. `before` is how far it was, if it is started
        again. Raises `NotNow`."""
        if len(self._tasks) >= RUNNING_MAX:
            raise NotNow(f"{RUNNING_MAX} jobs are running on node '{self._node.name}'")
        key = JobKey(queue.vhost_name, name)

        async def record(done: int) -> None:
            await self._keep(key, job, done)

        job = Job(self._node, queue, plan, user, before=before, record=record)
        self._jobs.pop(key, None)
        self._jobs[key] = job
        if not plan.dry_run:
            await self._keep(key, job, before.done)
        if self._stop_wanted.is_set():
            del self._jobs[key]
            raise NotNow(f"node '{self._node.name}' is stopping")
        self._forget_old()
        self._tasks[key] = asyncio.create_task(self._run(key, job))

    async def _keep(self, key: JobKey, job: Job, done: int) -> None:
        """Store the job in the cluster, with the number of messages it may have done."""
        progress = msgspec.to_builtins(job.progress)
        progress.pop("done", None)
        value = {
            "queue": job.queue.name,
            "plan": msgspec.to_builtins(job.plan),
            "progress": progress,
            **({"done": done} if done else {}),
        }
        parameters = self._node.parameters
        await taken(lambda: parameters.set(COMPONENT, key.vhost, key.name, value))

    async def _run(self, key: JobKey, job: Job) -> None:
        try:
            await job.run()
        except Exception:
            log_fault(log, "message_job_failed", vhost=key.vhost, name=key.name)
            job.fail("an unexpected error, see the log")
        log_event(
            log,
            logging.INFO,
            "message_job_over",
            vhost=key.vhost,
            name=key.name,
            state=job.state.value,
            done=job.done,
            left=sum(job.left.values()),
            reason=job.reason or None,
        )
        try:
            if not job.plan.dry_run:
                await self._unless_stopped(self._note_end(key, job))
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]

    async def _note_end(self, key: JobKey, job: Job) -> None:
        if job.state is not JobState.INTERRUPTED:
            await self.forget(key)
        else:
            # If the node cannot write this, the number reserved for the limit stays.
            with suppress(BrokerError):
                await self._keep(key, job, job.done)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, but give it up `NOTE_S` after the node begins to stop: the cluster's store
        may be out of reach, and then the work would never end."""
        doing = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop_wanted.wait())
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait((doing,), timeout=NOTE_S)
        if doing.cancel():
            await asyncio.wait((doing,))
        if not doing.cancelled():
            doing.result()

    async def forget(self, key: JobKey) -> bool:
        """Delete what the cluster keeps about the job. False if there was nothing."""
        parameters = self._node.parameters
        try:
            await taken(lambda: parameters.clear(COMPONENT, key.vhost, key.name))
        except NotThere:
            return False
        return True

    def drop(self, key: JobKey) -> None:
        """Stop showing a finished job."""
        self._jobs.pop(key, None)

    def _forget_old(self) -> None:
        over = [key for key, job in self._jobs.items() if job.is_over]
        for key in over[: max(0, len(over) - KEPT_MAX)]:
            del self._jobs[key]

    async def stop(self) -> None:
        """Interrupt all jobs when the node stops: messages under way arrive first."""
        self._stop_wanted.set()
        for job in self._jobs.values():
            if not job.is_over:
                job.stop(interrupted=True)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)


def _progress(value: Any) -> Progress:
    """How far a job is, from its parameter. Raises `msgspec.ValidationError`."""
    progress = {**value.get("progress", {}), "done": value.get("done", 0)}
    return msgspec.convert(progress, Progress)


def _check(vhost: str, name: str, value: Any, user: User | None) -> None:
    """Check the parameter of a job. Raises `ValidationFailed`."""
    if not isinstance(value, dict) or not isinstance(value.get("queue"), str):
        raise ValidationFailed("a message job has a queue and a plan")
    done = value.get("done", 0)
    if not isinstance(done, int) or done < 0:
        raise ValidationFailed(f"a message job has done a number of messages, not {done!r}")
    try:
        _progress(value)
        parse_plan(value.get("plan"))
    except msgspec.ValidationError as error:
        raise ValidationFailed(f"the progress of a message job: {error}") from error
    except (InvalidPlan, InvalidFilter) as error:
        raise ValidationFailed(f"the plan of a message job: {error}") from error
