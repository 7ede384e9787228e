"""Bulk encoding of a folder, a store, Parquet files or tars to records for `memory import`."""
