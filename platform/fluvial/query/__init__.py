"""Answers to SQL statements about the warehouse's tables: by Sail where it gives what Spark would, else by Spark."""
