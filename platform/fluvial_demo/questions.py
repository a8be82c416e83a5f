"""The questions that the demo asks in SQL when the tables are there."""

from dataclasses import dataclass

from pipelines.flights.transforms import BANDS, NO_REPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and the query that answers it; its column names are the table's headings."""

    title: str
    query: str


_BANDS_IN_ORDER = ", ".join(f"'{name}'" for name in (*(name for _, name in BANDS), NO_REPORT))

QUESTIONS = (
    Question(
        title="What happened?",
        query="""
            select event_type `event`, count(*) `events`, count(distinct tailnum) `aircraft`,
                   min(event_time) `first (UTC)`, max(event_time) `last (UTC)`
            from history.flight_events group by 1 order by 2 desc
        """,
    ),
    Question(
        title="Which aircraft leave New York most often?",
        query="""
            select a.tailnum `aircraft`, concat_ws(' ', p.manufacturer, p.model) `type`, p.year `built`,
                   a.departures `flights`, a.miles, a.mean_arr_delay `mean delay (min)`, a.last_airport `now at`
            from state.aircraft a left join compacted.planes p on p.tailnum = a.tailnum
            order by a.departures desc, a.tailnum limit 10
        """,
    ),
    Question(
        title="Where do flights arrive latest? (1,000 arrivals or more)",
        query="""
            select e.dest `airport`, coalesce(first(p.name), '(not among the airports)') `name`, count(*) `arrivals`,
                   avg(e.arr_delay) `mean delay (min)`
            from history.flight_events e left join compacted.airports p on p.faa = e.dest
            where e.event_type = 'ARRIVED'
            group by e.dest having count(*) >= 1000 order by 4 desc limit 10
        """,
    ),
    Question(
        title="What does poor visibility cost?",
        query=f"""
            select visibility, sum(departures) `departures`,
                   sum(mean_dep_delay * departures) / sum(departures) `mean delay (min)`,
                   100 * sum(late * departures) / sum(departures) `15 min late (%)`,
                   100 * sum(cancellations) / sum(departures + cancellations) `cancelled (%)`
            from marts.delay_by_hour_and_visibility
            group by visibility order by array_position(array({_BANDS_IN_ORDER}), visibility)
        """,
    ),
)

CHART_QUERY = """
    select hour, visibility, departures, mean_dep_delay from marts.delay_by_hour_and_visibility where departures > 0
"""
