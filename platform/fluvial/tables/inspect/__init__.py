"""What tables are verified against, and what explains them and their rows."""
