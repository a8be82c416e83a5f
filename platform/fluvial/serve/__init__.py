"""Rows of tables by their keys, in milliseconds and without a JVM: in a process, and over HTTP."""
