"""The same job under spark-submit, on executors of their own, and through Spark Connect.

    python benchmarks/spark_modes.py [submit] [cluster] [connect]

A broker gets messages; the job reads their queue from its store, publishes what it read to another
queue, and, where there is a SparkContext, exports the store. Each mode is a process of its own.
One line of JSON for each: rows read, published and exported, by how many executors, and how long
it took, start of Spark included. `connect` takes `pip install 'pyspark[connect]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 200

SUBMIT, CLUSTER, CONNECT = "submit", "cluster", "connect"
MASTERS = {SUBMIT: "local[2]", CLUSTER: "local-cluster[2,1,1024]", CONNECT: "local[2]"}

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


# What Spark runs


def job(spark: SparkSession, store: Path, url: str, archive: Path | None) -> dict[str, Any]:
    """Read, publish, and export where `archive` says to where."""
    from pyspark.sql import functions as F

    import warren.spark_export

    warren.spark_export.register(spark)
    orders = spark.read.format("warren").option("queue", "orders").load(str(store))
    read = orders.where("seq >= 0").agg(F.count("*"), F.countDistinct("body")).collect()[0]
    copies = orders.select("body").withColumn("routing_key", F.lit("copies"))
    writer = copies.write.format("warren").mode("append")
    writer.options(url=url, exchange="").save()
    found: dict[str, Any] = {"read": read[0], "distinct": read[1]}
    if archive is not None:
        found |= _export(spark, store, archive)
    return found


def _export(spark: SparkSession, store: Path, archive: Path) -> dict[str, Any]:
    from warren.spark_export import read_export
    from warren.spark_export.export.export import run
    from warren.spark_export.export.export_plan import Wish
    from warren.spark_export.snapshot.options import ReadOptions
    from warren.spark_export.snapshot.plan import QueueSelector

    archive.mkdir()
    # Small, so that there is something for each executor.
    wish = Wish(QueueSelector(names=("orders",)), ReadOptions(), target_file_bytes=4096)
    manifest = run(lambda: spark, store, archive, "full", wish)
    workers = spark.sparkContext.parallelize(range(8), 8).map(_parent).distinct().collect()
    return {
        "exported": manifest.rows,
        "files": len(manifest.files),
        "read_export": read_export(spark, archive).count(),
        "executors": len(workers),
    }


def _parent(_: int) -> int:
    """The process that started the daemon of this Python worker: an executor."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(") ")[2].split()[1])


def run_job(mode: str, store: Path, url: str, archive: Path) -> None:
    """In the process of a mode: prints the result as the last line."""
    from pyspark.sql import SparkSession

    if mode == CONNECT:
        builder = SparkSession.builder.remote(MASTERS[mode])
    else:
        # spark-submit names the master and the settings.
        builder = SparkSession.builder
    spark = builder.appName(f"warren {mode}").getOrCreate()
    try:
        found = job(spark, store, url, None if mode == CONNECT else archive)
    finally:
        spark.stop()
    print(json.dumps(found))


# What starts it


def start(mode: str, store: Path, url: str, directory: Path) -> dict[str, Any]:
    """Run the job in a mode, with an empty directory for what it writes."""
    arguments = ["job", mode, str(store), url, str(directory / "archive")]
    settings = [word for pair in QUIET.items() for word in ("--conf", "=".join(pair))]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(_spark_home(directory)),
    }
    if mode == CONNECT:
        command = [sys.executable, __file__]
        # What the server in the background is started with.
        environment["PYSPARK_SUBMIT_ARGS"] = shlex.join([*settings, "pyspark-shell"])
    else:
        submit = directory / "spark" / "bin" / "spark-submit"
        command = [str(submit), "--master", MASTERS[mode], *settings, __file__]
    begun = time.monotonic()
    ended = subprocess.run(
        [*command, *arguments], env=environment, cwd=directory, capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError(f"{mode} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return {
        "mode": mode,
        **found,
        "seconds": round(time.monotonic() - begun, 1),
    }


def _spark_home(directory: Path) -> Path:
    """Spark as it is installed, in a directory of our own: executors of `local-cluster` write to
    `work` in it."""
    import pyspark

    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def measure(modes: Iterable[str]) -> Iterable[dict[str, Any]]:
    """The result of each mode, with how many messages arrived."""
    import pika

    from warren import Broker

    with tempfile.TemporaryDirectory() as scratch, Broker(data_dir=Path(scratch, "data")) as broker:
        parameters = pika.URLParameters(broker.url)
        parameters.heartbeat = 0
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in ("orders", "copies"):
            channel.queue_declare(queue, durable=True)
        for number in range(MESSAGES):
            body = b"%06d" % number * 10
            channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
        for mode in modes:
            directory = Path(scratch, mode)
            directory.mkdir()
            found = start(mode, Path(scratch, "data"), broker.url, directory)
            published = channel.queue_purge("copies").method.message_count
            shutil.rmtree(directory)
            yield {**found, "published": published}
        connection.close()


def main() -> None:
    if sys.argv[1:2] == ["job"]:
        mode, store, url, archive = sys.argv[2:]
        run_job(mode, Path(store), url, Path(archive))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modes", nargs="*", choices=[[], *MASTERS], default=[])
    for found in measure(parser.parse_args().modes or list(MASTERS)):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
