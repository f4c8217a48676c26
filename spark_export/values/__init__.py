"""AMQP values and Spark's VARIANT values: from octets to octets, many at once.

`field_tables` reads header tables and `field_writing` writes them; `variant` makes Spark's binary
VARIANT and `variant_reading` reads it; `basic_properties` knows the order and types of the
properties of a message; `arrow_columns` makes Arrow arrays from octets.
"""
