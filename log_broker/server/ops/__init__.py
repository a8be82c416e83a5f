"""What an operator sees of a node: metrics, events, settings, quarantine, lag of the event loop."""
