"""The driver program of `kills.py`: writes rows to three queues, as one DataFrame or as a stream, and is killed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.faults import FaultySource


def main(folder: Path, given: dict[str, Any]):
    (folder / "driver").write_text(str(os.getpid()))
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in {
        "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF", "driver.memory": "512m",
        "sql.execution.arrow.maxRecordsPerBatch": "100",
    }.items():  # fmt: skip
        builder = builder.config("spark." + name, value)
    spark = builder.getOrCreate()
    jvm: Any = spark._jvm
    (folder / "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    spark.dataSource.register(FaultySource)
    options = {"url": given["url"], "queue": given["queues"][0], "jobName": "n", "batchSize": 10}
    if given["calls"] is not None:
        options |= {"commit": given["calls"], "how": given["victim"], "folder": folder}
    if given["stream"]:
        rows = spark.readStream.schema("data string, queue string").option("maxFilesPerTrigger", 1)
        writer = rows.json(str(folder / "in")).repartition(4).writeStream.format("faulty").trigger(availableNow=True)
        writer.options(**options, checkpointLocation=str(folder / "checkpoint")).start().awaitTermination()
        return
    frame = spark.read.schema("data string, queue string").json(str(folder / "in")).repartition(4)
    frame.write.format("faulty").mode("append").options(**options, writeId="w").save()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
