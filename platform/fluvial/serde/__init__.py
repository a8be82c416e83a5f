"""Records as the clients of a schema registry write and read them, and their values as JSON."""
