"""The asyncio shell: connections, handlers, one node."""
