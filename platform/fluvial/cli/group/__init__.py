"""Commands on consumer groups."""
