"""
Coming into a cluster, which may be at a level that this node does not support.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from log_broker.errors import BrokerError


class Joining:
    """Takes a node into the cluster, unless it learns meanwhile that it cannot follow what is decided there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._refusal: asyncio.Future[BrokerError] = loop.create_future()

    def cannot_follow(self, reason: BrokerError) -> None:
        """Take note that the cluster is at a level that this node does not support."""
        if not self._refusal.done():
            self._refusal.set_result(reason)

    async def unless_refused(self, steps: Coroutine[Any, Any, None]) -> None:
        """Take the steps; raises BrokerError(UNSUPPORTED_VERSION) when the cluster is beyond this node."""
        joining = self._loop.create_task(steps)
        try:
            await asyncio.wait((joining, self._refusal), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                raise self._refusal.result()
            joining.result()
        finally:
            joining.cancel()
