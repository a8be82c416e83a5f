"""This project's declarations and transforms."""
