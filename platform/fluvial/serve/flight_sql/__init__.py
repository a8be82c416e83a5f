"""
The Arrow Flight SQL door of `fluvial serve`: the statements of `POST /sql` for ADBC, JDBC and what stands on them.
"""
