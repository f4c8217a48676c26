"""The metrics (management_api.md section 5), and the functions that give their values.

Each family is a list of metrics and a function that gives the values of one object in that order.
"""

from __future__ import annotations

import math

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.core.messages.message_stats import MessageStats
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.metrics.exposition import Metric, Values
from warren.mgmt.queue_members import operations, term_of


def _gauge(name: str, words: str) -> Metric:
    return Metric(name, "gauge", words)


def _counter(name: str, words: str) -> Metric:
    return Metric(name, "counter", words)


# The node

CHURN = (
    _counter("connections_opened_total", "Connections opened"),
    _counter("connections_closed_total", "Connections closed or lost"),
    _counter("channels_opened_total", "Channels opened"),
    _counter("channels_closed_total", "Channels closed"),
    _counter("queues_declared_total", "Declarations of queues"),
    _counter("queues_created_total", "Queues made"),
    _counter("queues_deleted_total", "Queues deleted"),
)


def churn(managed: ManagedNode) -> Values:
    counts = managed.node.counts
    return (
        counts.connections_opened,
        counts.connections_closed,
        counts.channels_opened,
        counts.channels_closed,
        counts.queues_declared,
        counts.queues_created,
        counts.queues_deleted,
    )


SHOVELS = (_gauge("shovels", "Shovels that run here, by their state"),)
SHOVEL_MESSAGES = (
    _counter("shovel_messages_moved_total", "Messages that shovels of this node have moved"),
)

DELAYED = (_gauge("messages_delayed", "Messages that wait in delayed exchanges"),)

STREAMS = (_gauge("stream_messages", "Messages that are in streams led here"),)

DEDUPLICATED = (
    _counter("messages_deduplicated_total", "Messages dropped because their id had come before"),
)

RETAINED = (
    _gauge("messages_retained", "Acknowledged messages that queues led here have retained"),
    _gauge("messages_retained_bytes", "Octets of these messages in the log"),
)

TRACES = (
    _counter("trace_records_total", "Records of lives of messages that were kept"),
    _counter("trace_records_lost_total", "Records that were not kept"),
    _counter("trace_messages_passed_over_total", "Messages selected while too many were followed"),
    _counter("trace_messages_nameless_total", "Messages selected that have no id"),
    _gauge("trace_messages_followed", "Messages that are followed"),
)


def traces(managed: ManagedNode) -> Values:
    counts = managed.node.tracer.counts
    return (
        counts.recorded,
        counts.lost,
        counts.passed_over,
        counts.nameless,
        counts.followed,
    )


FEDERATION_LINKS = (
    _gauge("federation_links", "Federation links that run here, by what they are for and state"),
)
FEDERATION_MESSAGES = (
    _counter(
        "federation_messages_received_total", "Messages that federation links of this node got"
    ),
)

BLOCKED = (_gauge("connections_blocked", "Connections that wait because of an alarm"),)
BLOCKED_BY_QUEUE = (
    _gauge("queue_blocked_connections", "Connections that wait because this queue grows"),
)

ALARMS = (
    _gauge("alarms_file_descriptor_limit", "1 while file descriptors run short"),
    _gauge("alarms_free_disk_space_watermark", "1 while the disk alarm is on"),
    _gauge("alarms_memory_used_watermark", "1 while the memory alarm is on"),
)


def alarms(managed: ManagedNode) -> Values:
    local = {alarm.resource.value for alarm in managed.node.alarms.local()}
    return (0, int("disk" in local), int("memory" in local))


NODE = (
    _gauge("process_open_fds", "Open file descriptors"),
    _gauge("process_open_tcp_sockets", "Open client sockets"),
    _gauge("process_resident_memory_bytes", "Resident memory"),
    _gauge("disk_space_available_bytes", "Free space on the disk of the data directory"),
    _gauge("process_max_fds", "Limit of file descriptors"),
    _gauge("process_max_tcp_sockets", "Limit of sockets"),
    _gauge("resident_memory_limit_bytes", "Memory from which on publishers wait"),
    _gauge("disk_space_available_limit_bytes", "Free space below which publishers wait"),
    _gauge("erlang_uptime_seconds", "Seconds since the node started"),
)


def node(managed: ManagedNode) -> Values:
    machine = managed.machine()
    return (
        machine.fd_used,
        machine.sockets_used,
        machine.mem_used,
        machine.disk_free,
        machine.fd_total,
        machine.sockets_total,
        machine.mem_limit,
        machine.disk_free_limit,
        managed.node.uptime_s,
    )


PERSISTER = (
    _counter("io_write_bytes_total", "Octets written to the journal"),
    _counter("io_sync_ops_total", "Syncs of the journal"),
    _counter("msg_store_read_total", "Messages read from the disk"),
    _counter("msg_store_write_total", "Messages written to the disk"),
    _counter("storage_messages_lost_total", "Messages that could not be read back"),
    _counter("storage_records_damaged_total", "Damaged records found at the last start"),
    _gauge("storage_messages_unclaimed", "Messages of queues that no definition names"),
    _gauge("storage_definitions_unreadable", "Definitions that are kept and cannot be read"),
    _gauge("storage_unwritten_bytes", "Octets that wait to be written"),
    _gauge("storage_snapshots", "Snapshots that stand in the store"),
    _gauge("storage_pinned_bytes", "Octets on the disk for the sake of snapshots alone"),
    _gauge("storage_cursors", "Cursors of streams that may keep snapshots"),
    _counter(
        "storage_snapshots_released_total",
        "Snapshots released because all together kept more than snapshot_limit",
    ),
)

AUTH = (
    _counter("auth_attempts_total", "Logins tried"),
    _counter("auth_attempts_succeeded_total", "Logins that succeeded"),
    _counter("auth_attempts_failed_total", "Logins that failed"),
    _counter("auth_attempts_throttled_total", "Logins refused unseen after many that failed"),
)


def auth(managed: ManagedNode) -> Values:
    counts = managed.node.counts
    tried = counts.logins_succeeded + counts.logins_failed
    return (tried, counts.logins_succeeded, counts.logins_failed, counts.logins_throttled)


# Queues

QUEUE_COARSE = (
    _gauge("queue_messages_ready", "Messages ready to be delivered"),
    _gauge("queue_messages_unacked", "Messages delivered and not yet acknowledged"),
    _gauge("queue_messages", "Ready and unacknowledged messages"),
    _counter("queue_process_reductions_total", "Always 0: a measure of the Erlang runtime"),
)

QUEUE = (
    _gauge("queue_consumers", "Consumers"),
    _gauge("queue_consumer_capacity", "Share of the time a consumer could take a message"),
    _gauge("queue_consumer_utilisation", "The same as queue_consumer_capacity"),
    _gauge("queue_process_memory_bytes", "Memory of the queue, estimated"),
    _gauge("queue_messages_ram", "Messages in memory"),
    _gauge("queue_messages_ram_bytes", "Octets of the bodies of ready messages in memory"),
    _gauge("queue_messages_ready_ram", "Ready messages in memory"),
    _gauge("queue_messages_unacked_ram", "Unacknowledged messages in memory"),
    _gauge("queue_messages_persistent", "Messages that survive a restart"),
    _gauge("queue_messages_persistent_bytes", "Octets of their bodies"),
    _gauge("queue_messages_bytes", "Octets of the bodies of ready messages"),
    _gauge("queue_messages_ready_bytes", "Octets of the bodies of ready messages"),
    _gauge("queue_messages_paged_out", "Ready messages that are on disk only"),
    _gauge("queue_messages_paged_out_bytes", "Octets of their bodies"),
    _gauge("queue_head_message_timestamp", "NaN: headers are not looked at"),
    _counter("queue_disk_reads_total", "Messages read from the disk"),
    _counter("queue_disk_writes_total", "Messages written to the disk"),
    _counter("queue_messages_published_total", "Messages published to the queue"),
    _counter("queue_messages_delivered_total", "Messages delivered from the queue"),
    _counter("queue_messages_acked_total", "Messages of the queue acknowledged"),
    _counter("queue_messages_redelivered_total", "Messages delivered again"),
)
NO_SUM = {"queue_head_message_timestamp", "queue_consumer_capacity"}
"""Metrics whose sum means nothing."""


def queue_coarse(queue: LocalQueue) -> Values:
    ready, unacked = queue.backing.length, queue.unacked
    return (ready, unacked, ready + unacked + queue.set_aside[0], 0)


def queue_full(managed: ManagedNode, queue: LocalQueue, now: float) -> Values:
    status = queue.backing.status(now)
    stats = queue.stats()
    ready_bytes = queue.backing.ready_bytes
    capacity = managed.statistics.capacity(queue)
    in_memory = status.ram_msg_count + status.ram_ack_count
    return (
        queue.consumer_total,
        capacity,
        capacity,
        status.memory_bytes,
        in_memory,
        status.ram_bytes,
        status.ram_msg_count,
        status.ram_ack_count,
        *(status.persistent if queue.survives else (0, 0)),
        ready_bytes,
        ready_bytes,
        status.len - status.ram_msg_count,
        ready_bytes - status.ram_bytes,
        math.nan,
        status.disk_reads,
        status.disk_writes,
        stats.publish,
        stats.deliver_get,
        stats.ack,
        stats.redeliver,
    )


# Quorum queues under the names of RabbitMQ's consensus library

RAFT = (
    _counter("raft_term_total", "Leaders the quorum queue has had"),
    _gauge("raft_log_snapshot_index", "Always 0: there is no log to shorten"),
    _gauge("raft_log_last_applied_index", "Publishes and verdicts since the queue is here"),
    _gauge("raft_log_commit_index", "The same as raft_log_last_applied_index"),
    _gauge("raft_log_last_written_index", "The same as raft_log_last_applied_index"),
    _gauge(
        "raft_entry_commit_latency_seconds",
        "Always 0: it is not measured",
    ),
)


def raft(managed: ManagedNode, queue: LocalQueue) -> Values:
    index = operations(queue)
    return (term_of(managed, queue), 0, index, index, index, 0)


# Channels and connections

CHANNEL = (
    _gauge("channel_consumers", "Consumers"),
    _gauge("channel_messages_unacked", "Messages delivered and not yet acknowledged"),
    _gauge("channel_messages_unconfirmed", "Publishes not yet confirmed"),
    _gauge("channel_messages_uncommitted", "Publishes of a transaction under way"),
    _gauge("channel_acks_uncommitted", "Acknowledgements of a transaction under way"),
    _gauge("consumer_prefetch", "Limit of unacknowledged messages of a new consumer"),
    _gauge("channel_prefetch", "Limit of unacknowledged messages of the channel"),
    _counter("channel_process_reductions_total", "Always 0: a measure of the Erlang runtime"),
)

CHANNEL_TRAFFIC = (
    _counter("channel_messages_published_total", "Messages published"),
    _counter("channel_messages_confirmed_total", "Publishes confirmed"),
    _counter("channel_messages_unroutable_returned_total", "Messages returned as unroutable"),
    _counter("channel_messages_unroutable_dropped_total", "Messages dropped as unroutable"),
    _counter("channel_get_ack_total", "Messages got, to be acknowledged"),
    _counter("channel_get_total", "Messages got, acknowledged at once"),
    _counter("channel_messages_delivered_ack_total", "Messages delivered, to be acknowledged"),
    _counter("channel_messages_delivered_total", "Messages delivered, acknowledged at once"),
    _counter("channel_messages_redelivered_total", "Messages delivered again"),
    _counter("channel_messages_acked_total", "Messages acknowledged"),
    _counter("channel_get_empty_total", "Gets that found nothing"),
)


def channel_state(channel: Channel) -> Values:
    confirms, transaction = channel.confirms, channel.transaction
    return (
        len(channel.consumers),
        len(channel.unacked),
        confirms.unconfirmed if confirms is not None else 0,
        transaction.published if transaction is not None else 0,
        transaction.judged if transaction is not None else 0,
        channel.prefetch,
        channel.limit.most if channel.limit is not None else 0,
        0,
    )


def channel_traffic(channel: Channel) -> Values:
    stats = channel.stats()
    return (
        stats.publish,
        stats.confirm,
        stats.return_unroutable,
        stats.drop_unroutable,
        stats.get,
        stats.get_no_ack,
        stats.deliver,
        stats.deliver_no_ack,
        stats.redeliver,
        stats.ack,
        stats.get_empty,
    )


CONNECTION = (
    _counter("connection_incoming_bytes_total", "Octets received"),
    _counter("connection_outgoing_bytes_total", "Octets sent"),
    _counter("connection_process_reductions_total", "Always 0: a measure of the Erlang runtime"),
)
CONNECTION_STATE = (
    _counter("connection_incoming_packets_total", "Reads from the socket"),
    _counter("connection_outgoing_packets_total", "Writes to the socket"),
    _gauge("connection_pending_packets", "Octets that wait for the peer to read them"),
    _gauge("connection_channels", "Channels"),
)


def connection_octets(connection: Connection) -> Values:
    return (connection.received_octets, connection.sent_octets, 0)


def connection_state(connection: Connection) -> Values:
    return (
        connection.received_count,
        connection.sent_count,
        connection.owed_octets,
        connection.channel_count,
    )


# Totals

TOTALS = (
    _gauge("connections", "Connections"),
    _gauge("channels", "Channels"),
    _gauge("consumers", "Consumers"),
    _gauge("queues", "Queues"),
)

GLOBAL = (
    _counter("global_messages_received_total", "Messages received from publishers"),
    _counter("global_messages_received_confirm_total", "Messages received with confirms wanted"),
    _counter("global_messages_routed_total", "Messages routed to at least one queue"),
    _counter("global_messages_unroutable_dropped_total", "Messages dropped as unroutable"),
    _counter("global_messages_unroutable_returned_total", "Messages returned as unroutable"),
    _counter("global_messages_confirmed_total", "Publishes confirmed"),
    _gauge("global_publishers", "Channels that have published"),
    _gauge("global_consumers", "Consumers"),
)

GLOBAL_BY_TYPE = (
    _counter("global_messages_delivered_total", "Messages delivered to consumers and gets"),
    _counter(
        "global_messages_delivered_consume_manual_ack_total",
        "Messages delivered to consumers that acknowledge",
    ),
    _counter(
        "global_messages_delivered_consume_auto_ack_total",
        "Messages delivered to consumers that do not acknowledge",
    ),
    _counter("global_messages_delivered_get_manual_ack_total", "Messages got, to acknowledge"),
    _counter("global_messages_delivered_get_auto_ack_total", "Messages got, without"),
    _counter("global_messages_get_empty_total", "Gets that found nothing"),
    _counter("global_messages_redelivered_total", "Messages delivered again"),
    _counter("global_messages_acknowledged_total", "Messages acknowledged"),
)


def delivered(stats: MessageStats) -> Values:
    return (
        stats.deliver_get,
        stats.deliver,
        stats.deliver_no_ack,
        stats.get,
        stats.get_no_ack,
        stats.get_empty,
        stats.redeliver,
        stats.ack,
    )


DEAD_LETTERED = (
    _counter("global_messages_dead_lettered_expired_total", "Messages that expired"),
    _counter("global_messages_dead_lettered_rejected_total", "Messages that were rejected"),
    _counter("global_messages_dead_lettered_maxlen_total", "Messages beyond a length limit"),
)
DEATH_REASONS = ("expired", "rejected", "maxlen")

DELIVERY_LIMIT = (
    _counter(
        "global_messages_dead_lettered_delivery_limit_total",
        "Messages returned more often than the delivery limit allows",
    ),
)
DEAD_CONFIRMED = (
    _counter(
        "global_messages_dead_lettered_confirmed_total",
        "Dead letters that every queue they were for has taken",
    ),
)
