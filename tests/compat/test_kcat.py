"""kcat, as people use it in a shell."""

import json
import shutil
import subprocess
import uuid
from typing import Any

import pytest
from compat_cluster import BROKERS
from secured import librdkafka

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (apt-get install kcat)")


def kcat(broker: Any, *words: str, given: str = "") -> str:
    settings = [word for pair in librdkafka(broker.bootstrap_servers).items() for word in ("-X", "=".join(pair))]
    done = subprocess.run(
        [str(KCAT), *settings, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(broker: Any, codec: str) -> None:
    topic = f"kcat-{uuid.uuid4().hex[:8]}"
    lines = [f"k{number}:line {number}" for number in range(100)]
    kcat(broker, "-P", "-t", topic, "-K:", "-z", codec, given="\n".join(lines))
    assert kcat(broker, "-C", "-t", topic, "-e", "-q", "-K:").splitlines() == lines


def test_metadata_and_a_group(broker: Any) -> None:
    topic = f"kcat-{uuid.uuid4().hex[:8]}"
    kcat(broker, "-P", "-t", topic, given="one\ntwo")
    listed = json.loads(kcat(broker, "-L", "-J", "-t", topic))
    assert [found["topic"] for found in listed["topics"]] == [topic]
    assert listed["controllerid"] in range(BROKERS)
    out = kcat(broker, "-G", f"group-{topic}", "-c", "2", "-X", "auto.offset.reset=earliest", "-q", topic)
    assert out.splitlines() == ["one", "two"]
