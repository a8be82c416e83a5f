"""
From a contract to what is written by hand otherwise: Spark and Delta types, Python classes, expectations, a page; and
from a Parquet file to a contract.

Every other function takes the schema's JSON and returns text or JSON; none needs Spark or a registry.
"""

from fluvial.registry.generate.classes import dataclasses_source
from fluvial.registry.generate.dictionary import dictionary_page
from fluvial.registry.generate.expectations import expectation_suite
from fluvial.registry.generate.of_parquet import record_of_parquet
from fluvial.registry.generate.spark_types import GenerateError, delta_ddl, struct_type_json, struct_type_source

__all__ = [
    "GenerateError",
    "dataclasses_source",
    "delta_ddl",
    "dictionary_page",
    "expectation_suite",
    "record_of_parquet",
    "struct_type_json",
    "struct_type_source",
]
