"""
The counts of `fluvial serve` in the text format of Prometheus.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fluvial.serve.errors import ServeError
from fluvial.serve.follower import Follower

_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)

Handler = Callable[[Request], Awaitable[Response]]


class Metrics:
    """
    Counts requests and their times, and tells which versions are held.
    """

    def __init__(self, follower: Follower) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "fluvial_serve_requests",
            "Requests, by what was asked for and the status of the answer.",
            ("what", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "fluvial_serve_request_seconds",
            "Time until an answer began, waiting that was asked for included.",
            ("what",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Tables(follower))
        ProcessCollector(registry=self.registry)

    def timed(self, what: str, handler: Handler) -> Handler:
        """
        The handler, with its requests counted.
        """
        seconds = self._seconds.labels(what)

        async def timed(request: Request) -> Response:
            began, status = time.perf_counter(), 500
            try:
                response = await handler(request)
                status = response.status_code
            except ServeError as error:
                status = error.status
                raise
            except HTTPException as error:
                status = error.status_code
                raise
            finally:
                seconds.observe(time.perf_counter() - began)
                self._requests.labels(what, str(status)).inc()
            return response

        return timed

    @contextmanager
    def counted(self, what: str) -> Iterator[None]:
        """
        Count what is answered within this `with`, in any thread.
        """
        began, status = time.perf_counter(), 500
        try:
            yield
            status = 200
        except ServeError as error:
            status = error.status
            raise
        finally:
            self._seconds.labels(what).observe(time.perf_counter() - began)
            self._requests.labels(what, str(status)).inc()


class _Tables(Collector):
    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("fluvial_serve_table_version", "The version that is held.", labels=("table",))
        failing = GaugeMetricFamily(
            "fluvial_serve_table_failing", "Whether newer versions of a table cannot be read.", labels=("table",)
        )
        for table in self._follower.warehouse.opened():
            view = table.held
            if view is not None:
                version.add_metric((table.name,), view.version)
            failing.add_metric((table.name,), float(table.name in self._follower.failures))
        yield version
        yield failing
