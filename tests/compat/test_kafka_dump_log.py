"""Kafka's own DumpLogSegments reads what lies on our disk: segments, both indexes and producer snapshots."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from secured import librdkafka

import log_broker
from tests.peers.kafka_jars import lacking, require_kafka_jars, run_kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 120  # of each codec
RECORD = re.compile(r"^\| offset: (\d+) .*? key: (\S+) payload: (\S+)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a partition that was written with every codec and closed."""
    require_kafka_jars()
    data_dir = tmp_path_factory.mktemp("dump") / "data"
    settings = {"log_segment_bytes": "3000", "log_index_interval_bytes": "500"}
    with log_broker.embedded(data_dir=data_dir, **settings) as broker:
        for codec in CODECS:
            producer = Producer(
                {
                    **librdkafka(broker.bootstrap_servers),
                    "enable.idempotence": True,
                    "compression.type": codec,
                    "batch.size": 1000,
                }
            )
            for at in range(RECORDS):
                producer.produce("t", key=f"{codec}-{at}", value=f"value-{at}" * 3)
            assert producer.flush(30) == 0
            del producer  # before the broker goes, or it complains
    return data_dir / "t-0"


def files(partition: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in partition.iterdir() if path.suffix in suffixes)


def dump(*words: object) -> str:
    done = run_kafka("kafka.tools.DumpLogSegments", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Mismatches" not in done.stdout
    assert "Found" not in done.stdout, "it reports what is wrong with lines that begin so"
    assert "Could not" not in done.stdout + done.stderr
    return done.stdout


def test_every_record_and_snapshot_is_read(partition: Path) -> None:
    logs, snapshots = files(partition, ".log"), files(partition, ".snapshot")
    assert len(logs) > 3
    assert snapshots
    text = dump("--files", ",".join(map(str, logs + snapshots)), "--print-data-log", "--deep-iteration")
    assert "isvalid: false" not in text
    assert RECORD.findall(text) == [
        (str(number * RECORDS + at), f"{codec}-{at}", f"value-{at}" * 3)
        for number, codec in enumerate(CODECS)
        for at in range(RECORDS)
    ]
    for codec in CODECS:
        assert f"compresscodec: {codec}" in text
    producers = re.findall(r"^producerId: (\d+) producerEpoch: 0 .* lastSequence: (\d+) lastOffset", text, re.MULTILINE)
    last = {int(producer): int(sequence) for producer, sequence in producers}
    assert len(last) == len(CODECS)
    assert set(last.values()) == {RECORDS - 1}


def test_both_indexes_agree_with_their_segments(partition: Path) -> None:
    indexes = files(partition, ".index", ".timeindex")
    assert any(path.stat().st_size for path in indexes if path.suffix == ".index")
    text = dump("--files", ",".join(map(str, indexes)))
    assert len(re.findall(r"^Dumping ", text, re.MULTILINE)) == len(indexes)
    assert re.search(r"^offset: \d+ position: \d+$", text, re.MULTILINE)
    assert re.search(r"^timestamp: \d+ offset: \d+$", text, re.MULTILINE)
