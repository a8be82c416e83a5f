"""Commands that run pipelines and ask their tables."""
