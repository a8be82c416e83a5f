"""Three brokers in place of one (S-055): what they do in parallel, what copies cost, and what survives a SIGKILL."""

from functools import partial

from rich.console import Console
from rich.table import Table

from tests.bench.clients.measure import nodes
from tests.bench.scale.driving import Load, RecordsMissingError, measure, rounds
from tests.bench.scale.survival import killed

PARTITIONS = 12
CLIENTS = 48
ONE = "1 broker, one copy"
THREE = "3 brokers, one copy"
COPIED = "3 brokers, three copies, acks=all"


def together(console: Console, *, count: int, seconds: float) -> None:
    """Twelve partitions on one broker and on three, with one copy and with three; then one of the three is killed."""
    with nodes(1) as one, nodes(3) as three:
        load = Load(PARTITIONS, CLIENTS, seconds)
        found = rounds(
            count,
            {
                ONE: partial(measure, one, load),
                THREE: partial(measure, three, load),
                COPIED: partial(measure, three, load._replace(copies=3)),
            },
        )
        after = killed(three, seconds)
    table = Table("12 partitions on", "records/s", "beside one", "p50 ms", "p99 ms", "busy cores: brokers", "clients")
    for side, sample in found.items():
        figures = (sample.p50_ms, sample.p99_ms, sample.broker_cores, sample.client_cores)
        ratio = sample.rate / found[ONE].rate
        table.add_row(side, f"{sample.records_rate:,.0f}", f"{ratio:.2f}", *(f"{figure:.2f}" for figure in figures))
    console.print(table)
    console.print(
        f"SIGKILL of one of three, three copies: {after.acknowledged:,} records acknowledged, {after.afterwards:,} of "
        f"them sent after it, {after.missing:,} missing; each partition took records again within {after.seconds:.1f} s"
    )
    if after.missing:
        raise RecordsMissingError(f"{after.missing:,} acknowledged records are gone with the broker that was killed")
