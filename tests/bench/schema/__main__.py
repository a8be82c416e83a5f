"""
What schemas cost: `make bench-schema`, or `python -m tests.bench.schema [PART …] [--quick] [--json FILE]`.

Each part measures one thing on real processes and says it in rows of its own; without a name all run, in this order.
With `--peer URL` the reads of another registry that answers there are measured as well, by the same client.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.schema import broker_checks, registry_reads, registry_size
from tests.bench.schema.rows import Options, Row

PARTS: Mapping[str, Callable[[Options], Iterable[Row]]] = {
    "reads": registry_reads.measure,
    "size": registry_size.measure,
    "broker": broker_checks.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.schema", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see that it runs")
    parser.add_argument("--peer", help="where another registry answers")
    parser.add_argument("--json", type=Path, help="where to write the rows as well")
    words = parser.parse_args()
    options = Options(quick=words.quick, peer=words.peer)
    table = Table("part", "what", "value", "unit")
    rows = []
    for part in words.parts or PARTS:
        for row in PARTS[part](options):
            rows.append({"part": part, **asdict(row)})
            table.add_row(part, row.what, f"{row.value:,.6g}", row.unit)
    Console().print(table)
    if words.json is not None:
        words.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
