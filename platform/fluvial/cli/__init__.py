"""The `fluvial` command."""
