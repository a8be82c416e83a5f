"""Group and transaction coordinators: their shards of internal topics, and what they are asked."""
