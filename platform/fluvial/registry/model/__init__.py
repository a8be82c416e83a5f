"""What a registry holds and decides: subjects, versions, levels, owners."""
