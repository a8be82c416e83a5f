"""The tables' names in the catalogs of other engines: Unity Catalog, or a Hive metastore."""
