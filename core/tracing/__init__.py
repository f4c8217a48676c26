"""Records of the lives of messages (docs/tracing.md).

Theory. Rules (`trace_rules`) select messages when they are published. The ids of these are
*followed* (`tracer`), and a `LifeTrace` for each virtual host, which hears of its messages as a
`MessageObserver`, makes a record (`trace_record`) of every event of a followed message. A
`TraceStore` (`trace_store`) keeps the records and finds those of one message. Begin with
`life_trace`.
"""
