"""What a node answers to those who ask whether it runs and whether it serves."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from fluvial.health import WithHealth

NODE_ID = 3


@dataclass
class Image:
    alive: set[int] = field(default_factory=lambda: {1, NODE_ID})

    def is_alive(self, node_id: int) -> bool:
        return node_id in self.alive


def client(*, alive: set[int], heard: bool = True) -> httpx.AsyncClient:
    node: Any = SimpleNamespace(
        static_config=SimpleNamespace(node_id=NODE_ID), cluster=Image(alive), lease=SimpleNamespace(valid=heard)
    )
    app = WithHealth(PlainTextResponse("from the app"), node)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node")


async def test_a_node_that_serves_is_ready() -> None:
    async with client(alive={NODE_ID}) as asked:
        assert (await asked.get("/readyz")).status_code == 200
        assert (await asked.get("/healthz")).text == "ok\n"


@pytest.mark.parametrize(
    ("alive", "heard", "reason"),
    [({1}, True, "the controller has fenced"), ({1, NODE_ID}, False, "has answered no heartbeat")],
    ids=["fenced", "cut off"],
)
async def test_one_outside_the_cluster_is_healthy_and_not_ready(alive: set[int], heard: bool, reason: str) -> None:
    async with client(alive=alive, heard=heard) as asked:
        ready = await asked.get("/readyz")
        assert ready.status_code == 503
        assert reason in ready.text
        assert (await asked.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz/more", "/subjects"])
async def test_other_paths_are_the_apps(path: str) -> None:
    async with client(alive=set()) as asked:
        assert (await asked.get(path)).text == "from the app"
