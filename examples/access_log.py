"""
A web server's access log becomes a table: its lines go into a topic as they are, Spark takes them apart, SQL counts.

    python -m examples.access_log
"""

import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from examples.program import Platform, main
from fluvial.tables import history, pipeline

TOPIC = "example-access-log"
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "AccessLogLine",
    "fields": [{"name": "server", "type": "string"}, {"name": "line", "type": "string"}],
}
LINES = 4000
# host ident user [time] "request" status bytes: the Common Log Format of NCSA's httpd, and of every server since.
FORMAT = r'^(\S+) (\S+) (\S+) \[([^\]]+)\] "(.*)" (\d{3}) (\d+|-)$'

lines = history(TOPIC)  # history.example_access_log


@pipeline(name="example_hits_per_minute", inputs=[lines.table])
def hits_per_minute(lines: Any) -> Any:
    """Hits, failures and bytes of each minute."""
    from pyspark.sql import functions as sql

    fields = lines.selectExpr(*(f"regexp_extract(line, r'{FORMAT}', {n}) AS f{n}" for n in (4, 6, 7)))
    requests = fields.selectExpr(
        "date_trunc('minute', to_timestamp(f4, 'dd/MMM/yyyy:HH:mm:ss Z')) AS minute",
        "int(f6) AS status",
        "if(f7 = '-', 0, bigint(f7)) AS bytes",
    )
    return requests.groupBy("minute").agg(
        sql.expr("count(*) AS hits"), sql.expr("count_if(status >= 500) AS failures"), sql.expr("sum(bytes) AS bytes")
    )


def generated_lines(number: int = LINES, seed: int = 2013) -> list[str]:
    """Return lines of about an hour, the same at each call; a client's request may hold quotes, and a reply nothing."""
    dice = random.Random(seed)
    at = datetime(2013, 11, 22, 9, tzinfo=UTC)
    found = []
    for _ in range(number):
        at += timedelta(seconds=dice.choice((0, 0, 1, 2)))
        request = dice.choice(("GET / HTTP/1.1", "GET /flights?from=JFK HTTP/1.1", "POST /seats HTTP/1.1", 'GET /"x"'))
        status = dice.choices((200, 304, 404, 503), (90, 6, 3, 1))[0]
        size = "-" if status == 304 else dice.randrange(200, 40_000)
        who = f"192.0.2.{dice.randrange(1, 255)} - {dice.choice(('-', 'ada', 'bob'))}"
        found.append(f'{who} [{at:%d/%b/%Y:%H:%M:%S %z}] "{request}" {status} {size}')
    return found


def run(platform: Platform) -> str:
    """Ship the log, count in SQL, and hold the counts against those of the text itself."""
    text = generated_lines()
    if platform.open_topic(TOPIC, SCHEMA, partitions=3):
        events = ({"server": f"www-{number % 3}", "line": line} for number, line in enumerate(text))
        platform.send(TOPIC, events, key="server")
    platform.bring_up(lines, hits_per_minute)
    minutes = platform.sql("""
        SELECT date_format(minute, 'dd/MMM/yyyy:HH:mm') AS minute, hits, bytes
        FROM marts.example_hits_per_minute ORDER BY hits DESC, minute
    """).collect()
    assert {row.minute: row.hits for row in minutes} == Counter(line.split("[")[1][:17] for line in text)
    assert sum(row.bytes for row in minutes) == sum(int(line.split()[-1].replace("-", "0")) for line in text)
    return f"{LINES} hits in {len(minutes)} minutes; most, {minutes[0].hits}, at {minutes[0].minute}"


if __name__ == "__main__":
    main(run)
