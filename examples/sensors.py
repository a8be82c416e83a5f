"""
Thermometers that need no answer: readings are sent with acks=0, one in twenty is lost, and Spark fills the gaps.

    python -m examples.sensors
"""

import math
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

from examples.program import SECONDS_MAX, Event, Platform, main
from fluvial.tables import history, pipeline

TOPIC = "example-sensors"
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "minute", "type": "int"},
        {"name": "celsius", "type": "double"},
    ],
}
SENSORS, MINUTES, LOSS = 4, 720, 0.05
PATIENCE_SECONDS = 10
SWING, PERIOD = 5.0, 1440  # degrees above and below the mean, in a day of minutes
BEND = SWING * (2 * math.pi / PERIOD) ** 2  # what the second derivative never exceeds

readings = history(TOPIC)  # history.example_sensors


@pipeline(name="example_temperatures", inputs=[readings.table])
def temperatures(readings: Any) -> Any:
    """Each sensor's temperature at every minute from its first reading to its last, straight lines over the gaps."""
    following = "OVER (PARTITION BY sensor ORDER BY minute)"
    stretches = readings.selectExpr(
        "*", f"lead(minute) {following} AS next_minute", f"lead(celsius) {following} AS next_celsius"
    )
    minutes = stretches.selectExpr("*", "explode(sequence(minute, coalesce(next_minute - 1, minute))) AS at")
    return minutes.selectExpr(
        "sensor",
        "at AS minute",
        "CASE WHEN at = minute THEN celsius"
        " ELSE celsius + (next_celsius - celsius) * (at - minute) / (next_minute - minute) END AS celsius",
        "at = minute AS measured",
        "coalesce(next_minute, minute) - minute AS gap",
    )


def truth(sensor: str, minute: int) -> float:
    """Return the temperature that there was."""
    return 20 + int(sensor[-1]) + SWING * math.sin(2 * math.pi * minute / PERIOD)


def sent() -> Iterator[Event]:
    """What the sensors measure, minute by minute."""
    for minute in range(MINUTES):
        for sensor in (f"t{number}" for number in range(SENSORS)):
            yield {"sensor": sensor, "minute": minute, "celsius": truth(sensor, minute)}


def over_a_bad_link(platform: Platform, seed: int = 275) -> None:
    """Send without asking whether it arrives; the link loses what the dice say."""
    dice, encode = random.Random(seed), platform.encoder(TOPIC)
    producer = platform.producer(acks=0)
    carried = 0
    for reading in sent():
        if dice.random() >= LOSS:
            producer.produce(TOPIC, encode(reading), reading["sensor"])
            carried += 1
        producer.poll(0)
    producer.flush(SECONDS_MAX)
    # Flushed is what the socket has taken, and no answer tells when it is in the log, or that it will not be.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while platform.end_of(TOPIC) < carried and time.monotonic() < deadline:
        time.sleep(0.1)


def run(platform: Platform) -> str:
    """Send, fill the gaps, and compare with the temperatures that there were."""
    if platform.open_topic(TOPIC, SCHEMA):
        over_a_bad_link(platform)
    platform.bring_up(readings, temperatures)
    rows = platform.sql("SELECT * FROM marts.example_temperatures").collect()
    filled = [row for row in rows if not row.measured]
    assert len(rows) == len({(row.sensor, row.minute) for row in rows}) > 0.99 * SENSORS * MINUTES
    assert 0 < len(filled) < 2 * LOSS * len(rows)
    assert all(row.celsius == truth(row.sensor, row.minute) for row in rows if row.measured)
    # A straight line over a gap is off by at most BEND * gap² / 8.
    errors = [(abs(row.celsius - truth(row.sensor, row.minute)), BEND * row.gap**2 / 8) for row in filled]
    assert all(error <= bound + 1e-9 for error, bound in errors)
    return (
        f"{len(filled)} of {len(rows)} readings were lost; filled in, they are off by {max(errors)[0]:.5f} °C at most"
    )


if __name__ == "__main__":
    main(run)
