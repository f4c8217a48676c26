"""Memory, disk and file descriptors: measuring them, and holding publishers back.

Theory. Monitors measure (`memory_monitor`, `disk_monitor`) and raise `alarms`; an alarm of any
node counts at every node. While a resource is a little short, only publishers to queues that grow
wait (`growth`); when it is very short, all do, as in RabbitMQ. `descriptors` keeps enough file
descriptors for the node's own files. `information_unit` reads amounts such as 512MB.
"""
