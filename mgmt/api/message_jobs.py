"""Jobs that move, copy, delete, requeue, redrive or replay messages of a queue (docs/messages.md).

A job runs on the node that leads its queue; every node answers requests about all jobs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from warren.core.errors import AccessRefused, BrokerError
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import STREAM
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.changes import audit
from warren.mgmt.api.listed_queue import ListedQueue, leader_of, queue_of
from warren.mgmt.api.looking import SHOWN_BYTES, message_rows
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ApiError, BadRequest, ObjectNotFound, from_broker
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.messages.job import Job, JobState
from warren.mgmt.messages.jobs import JobKey, KeptJob, NotNow
from warren.mgmt.messages.plan import Action, InvalidPlan, JobPlan, check_positions, parse_plan
from warren.mgmt.messages.progress import AT_THE_BEGINNING
from warren.mgmt.messages.sources import source_of, why_no_replay
from warren.shovel.redrive import Back


async def begin(request: ApiRequest) -> Any:
    """Begin the job that the body describes (`JobPlan`), and answer its name."""
    listed = queue_of(request)
    return await _begin(request, listed, _plan(await request.body()))


async def redrive(request: ApiRequest) -> Any:
    """Begin to send the dead letters in a queue back to where they came from."""
    listed = queue_of(request)
    plan = {**await request.body(), "action": Action.REDRIVE.value}
    if "to" in plan:
        plan["back_to"] = plan.pop("to")
        known = [back.value for back in Back]
        if plan["back_to"] not in known:
            raise BadRequest(f"to should be {' or '.join(known)}, not {plan['back_to']!r}")
    return await _begin(request, listed, _plan(plan))


async def replay(request: ApiRequest) -> Any:
    """Begin to send messages of a stream, or messages that a queue has retained, to a queue or an
    exchange again."""
    listed = queue_of(request)
    return await _begin(
        request, listed, _plan({**await request.body(), "action": Action.REPLAY.value})
    )


def _plan(body: Any) -> JobPlan:
    try:
        return parse_plan(body)
    except InvalidPlan as error:
        raise BadRequest(str(error)) from error


async def _begin(
    request: ApiRequest, listed: ListedQueue, plan: JobPlan, again: KeptJob | None = None
) -> Row:
    """Begin a job, and answer its name. `again` is an interrupted job to start again, or None."""
    vhost, queue = listed
    name = again.key.name if again is not None else None
    _check(request, vhost, queue, plan)
    if not isinstance(queue, LocalQueue):
        body = msgspec.to_builtins(plan)
        return dict(await _asked_of_leader(request, listed, body, name))
    queue.check_access(None)
    try:
        check_positions(plan, len(source_of(queue, plan).levels))
    except InvalidPlan as error:
        raise BadRequest(str(error)) from error
    except BrokerError as error:
        raise from_broker(error) from error
    jobs = request.managed.message_jobs
    name = name or jobs.new_name(queue, plan)
    user = None if request.caller.local else request.caller.user
    try:
        before = AT_THE_BEGINNING if again is None else again.progress
        await jobs.begin(name, queue, plan, user, before)
    except NotNow as error:
        raise ApiError(503, "unavailable", error.text) from error
    if not plan.dry_run:
        _put_on_record(request, queue, name, plan)
    return {"job": name}


def _put_on_record(request: ApiRequest, queue: Queue, name: str, plan: JobPlan) -> None:
    """Audit a job that has begun. Positions are only counted, for there may be thousands."""
    what = msgspec.to_builtins(plan)
    doing = what.pop("action")
    if plan.positions is not None:
        what["positions"] = len(plan.positions)
    vhost = queue.vhost_name
    audit(
        request, "message_job_begun", vhost=vhost, queue=queue.name, name=name, doing=doing, **what
    )


async def _asked_of_leader(
    request: ApiRequest, listed: ListedQueue, body: Row, name: str | None
) -> Any:
    peers = request.peers
    parts = {"vhost": listed.vhost.name, "queue": listed.queue.name}
    path = JOBS_OF_QUEUE
    if name is not None:
        parts, path = {"vhost": listed.vhost.name, "name": name}, RESTART
    try:
        if peers is None:
            raise BrokerError("the queue is led by another node")
        node = leader_of(request, listed)
        return await peers.ask(node, request, path, parts, method="POST", body=body)
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


def _check(request: ApiRequest, vhost: VirtualHost, queue: Queue, plan: JobPlan) -> None:
    """Raise `ApiError` unless the caller may do this and the plan's target exists."""
    _check_rights(request, vhost.name, queue.name, plan)
    is_stream = queue.settings.type is STREAM
    if is_stream and plan.action not in (Action.COPY, Action.REPLAY):
        raise BadRequest(
            f"messages stay in a stream: from '{queue.name}' they can be copied or replayed"
        )
    if plan.action is Action.REPLAY and not is_stream and queue.settings.retention is None:
        raise BadRequest(why_no_replay(queue))
    if plan.to_queue is not None:
        _check_queue(vhost, queue, plan.to_queue, plan)
    if plan.to_exchange is not None:
        exchange = vhost.exchanges.get(plan.to_exchange)
        if exchange is None:
            raise BadRequest(f"there is no exchange '{plan.to_exchange}' in vhost '{vhost.name}'")
        if exchange.internal:
            raise BadRequest(f"exchange '{plan.to_exchange}' is internal")


def _check_rights(request: ApiRequest, vhost: str, queue: str, plan: JobPlan) -> None:
    """Raise `ApiError` unless the caller may read the queue, and write where its messages go."""
    request.check(vhost, "queue", queue, "read")
    if plan.action is Action.REQUEUE:
        request.check(vhost, "queue", queue, "write")
    if plan.to_queue is not None:
        request.check(vhost, "queue", plan.to_queue, "write")
    if plan.to_exchange is None:
        return
    request.check(vhost, "exchange", plan.to_exchange, "write")
    if not request.caller.local and plan.routing_key is not None:
        access, user = request.node.access, request.caller.user
        try:
            access.check_topic(user, vhost, plan.to_exchange, plan.routing_key, "write")
        except AccessRefused as error:
            raise from_broker(error) from error


def _check_queue(vhost: VirtualHost, queue: Queue, name: str, plan: JobPlan) -> None:
    target = vhost.queues.get(name)
    if target is None:
        raise BadRequest(f"there is no queue '{name}' in vhost '{vhost.name}'")
    if target is queue and queue.is_stream:
        raise BadRequest("a stream's own messages are in it already")
    if target is queue and plan.action is not Action.REPLAY:
        raise BadRequest("a queue's own messages are put at its end by requeue")
    try:
        target.check_access(None)
    except BrokerError as error:
        raise from_broker(error) from error


# Jobs that have begun


async def list_jobs(request: ApiRequest) -> Any:
    visible = {vhost.name for vhost in request.visible_vhosts()}
    rows = await _rows(request)
    return await answer_rows(request, [row for row in rows if row["vhost"] in visible])


async def list_of_vhost(request: ApiRequest) -> Any:
    vhost = request.vhost().name
    rows = await _rows(request)
    return await answer_rows(request, [row for row in rows if row["vhost"] == vhost])


async def get_job(request: ApiRequest) -> Any:
    key = _key(request)
    for row in await _rows(request):
        if JobKey(row["vhost"], row["name"]) == key:
            request.check(key.vhost, "queue", row["queue"], "read")
            return answer_row(request, row)
    raise ObjectNotFound()


async def delete_job(request: ApiRequest) -> None:
    """Stop a running job, or forget one that is over or was interrupted."""
    key = _key(request)
    jobs = request.managed.message_jobs
    rows = {JobKey(row["vhost"], row["name"]): row for row in await _rows(request)}
    row = rows.get(key)
    if row is None:
        raise ObjectNotFound()
    _check_rights(request, key.vhost, row["queue"], parse_plan(row["plan"]))
    job = jobs.get(key)
    if job is not None and not job.is_over:
        job.stop()
    elif job is not None:
        jobs.drop(key)
    peers = request.peers
    if request.passed:
        return
    if peers is not None and row["node"] != request.node.name:
        await peers.ask_all(request, JOB, dict(request.http.match_info), method="DELETE")
    if row["state"] == JobState.INTERRUPTED:
        await jobs.forget(key)
    audit(request, "message_job_deleted", vhost=key.vhost, name=key.name)


async def restart_job(request: ApiRequest) -> Any:
    """Start an interrupted job again, with the rights of the caller."""
    key = _key(request)
    jobs = request.managed.message_jobs
    kept = {one.key: one for one in jobs.kept(key.vhost)}.get(key)
    found = [row for row in await _rows(request) if (row["vhost"], row["name"]) == key]
    if found and (found[0]["state"] != JobState.INTERRUPTED or kept is None):
        raise BadRequest(_why_no_restart(JobState(found[0]["state"])))
    if kept is None:
        raise ObjectNotFound()
    vhost = request.vhost()
    queue = vhost.queues.get(kept.queue)
    if queue is None:
        raise BadRequest(f"there is no queue '{kept.queue}' in vhost '{vhost.name}'")
    return await _begin(request, ListedQueue(vhost, queue), kept.plan, kept)


def _why_no_restart(state: JobState) -> str:
    """Why a job in this state cannot be started again.

    `INTERRUPTED` is asked for only if the cluster keeps nothing about the job.
    """
    over = {
        JobState.COMPLETED: "is completed",
        JobState.STOPPED: "was stopped",
        JobState.FAILED: "has failed",
        JobState.INTERRUPTED: "was a dry run or was forgotten",
    }
    return f"the job {over[state]}: begin a new one" if state in over else "the job is running"


def _key(request: ApiRequest) -> JobKey:
    return JobKey(request.vhost().name, request.name("name"))


async def _rows(request: ApiRequest) -> list[Row]:
    """All jobs. Each node reports its own; a job that no node reports was interrupted."""
    jobs = request.managed.message_jobs
    own = {(key.vhost, key.name): await _row(request, key, job) for key, job in jobs.items()}
    if request.passed:
        return list(own.values())
    rows = {(kept.key.vhost, kept.key.name): _interrupted_row(kept) for kept in jobs.kept()}
    peers = request.peers
    if peers is not None:
        for answered in (await peers.ask_all(request, "/message-jobs")).values():
            rows |= _newer(rows, {(row["vhost"], row["name"]): row for row in answered})
    rows |= _newer(rows, own)
    return [rows[key] for key in sorted(rows)]


def _newer(known: dict[Any, Row], found: dict[Any, Row]) -> dict[Any, Row]:
    """The found rows that replace known ones. Two nodes report a job that was interrupted on one
    and started again on the other; the row that is not interrupted wins."""
    over = JobState.INTERRUPTED
    return {
        key: row
        for key, row in found.items()
        if key not in known or known[key]["state"] == over or row["state"] != over
    }


async def _row(request: ApiRequest, key: JobKey, job: Job) -> Row:
    samples = await message_rows(request, job.source, job.samples, SHOWN_BYTES)
    may_read = True
    try:
        request.check(key.vhost, "queue", job.queue.name, "read")
    except ApiError:
        may_read = False
    return {
        **_plan_row(key, job.queue.name, job.plan),
        "node": request.node.name,
        "state": job.state.value,
        "reason": job.reason,
        "looked_at": job.looked_at,
        "matched": job.matched,
        "done": job.done,
        "under_way": job.under_way,
        "left": [{"reason": why, "messages": count} for why, count in job.left.most_common()],
        "samples": samples if may_read else [],
    }


def _interrupted_row(kept: KeptJob) -> Row:
    return {
        **_plan_row(kept.key, kept.queue, kept.plan),
        "node": None,
        "state": JobState.INTERRUPTED.value,
        "done": kept.progress.done,
        "reason": "its node has stopped, or cannot be reached",
    }


def _plan_row(key: JobKey, queue: str, plan: JobPlan) -> Row:
    return {
        "vhost": key.vhost,
        "name": key.name,
        "queue": queue,
        "action": plan.action.value,
        "dry_run": plan.dry_run,
        "plan": msgspec.to_builtins(plan),
    }


JOBS_OF_QUEUE = "/queues/{vhost}/{queue}/messages/jobs"
JOB = "/message-jobs/{vhost}/{name}"
RESTART = f"{JOB}/restart"

ENDPOINTS = [
    Endpoint(
        JOBS_OF_QUEUE, {"POST": begin}, summary="Begins to move, copy, delete or requeue messages"
    ),
    Endpoint(
        "/queues/{vhost}/{queue}/redrive",
        {"POST": redrive},
        summary="Sends dead letters back to where they came from",
    ),
    Endpoint(
        "/queues/{vhost}/{queue}/replay",
        {"POST": replay},
        summary="Sends messages of a stream, or what a queue has retained, once more",
    ),
    Endpoint("/message-jobs", {"GET": list_jobs}, summary="All jobs on messages"),
    Endpoint("/message-jobs/{vhost}", {"GET": list_of_vhost}, summary="Message jobs of a vhost"),
    Endpoint(JOB, {"GET": get_job, "DELETE": delete_job}, summary="One job; stops or forgets it"),
    Endpoint(RESTART, {"POST": restart_job}, summary="Starts an interrupted job again"),
]
