"""Images of a folder, a store, Parquet files or tars to records that `memory import` reads."""
