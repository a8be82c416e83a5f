"""JSON Schemas: their text, where their references lead, and what may follow what. Nothing here knows of a registry."""
