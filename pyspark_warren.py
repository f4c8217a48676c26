"""Found by Spark itself: it imports every top-level module called `pyspark_...`.

One that cannot be imported keeps Spark from finding any. So where the parts are missing that
`warren[spark]` would bring, there is no source here, and nothing else happens.
"""

try:
    from warren.spark_export.source.source import MessageStoreSource as DefaultSource
except ImportError:
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
