"""What users declare: entities, tables, folds, reducers, transforms, and the file of a project."""
