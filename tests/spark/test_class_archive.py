"""The JVMs of these tests map the archive of loaded classes, without which they need twice the processor time."""

import sys
from typing import Any

import pytest

from tests.spark.class_archive import jvm_options


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked")
def test_session_maps_the_archive(spark: Any):
    assert "-XX:SharedArchiveFile=" in jvm_options(), "see the file *.failed in .pytest_cache/spark"
    java = spark._jvm.java
    options = java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    archive = jvm_options().split("SharedArchiveFile=")[1].split()[0]
    assert f"-XX:SharedArchiveFile={archive}" in list(options)
    if sys.platform == "linux":
        pid = java.lang.ProcessHandle.current().pid()
        with open(f"/proc/{pid}/maps") as maps:
            assert archive in maps.read()
