"""Record batches (magic 2): layout, checks, compression."""

from log_broker.records.batch import BatchHeader, batches_in, read_header
from log_broker.records.compression import Codec
from log_broker.records.record import Record, build_batch, iterate_records

__all__ = ["BatchHeader", "Codec", "Record", "batches_in", "build_batch", "iterate_records", "read_header"]
