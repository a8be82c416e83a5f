"""The cluster's metadata: its image, its records, and what the controller decides."""
