"""
The `fluvial` command: one module for each group of commands.

Nothing heavy is imported at the top of these modules (no client library, Spark or Dagster), so that every command
starts at once and loads only what it uses.
"""
