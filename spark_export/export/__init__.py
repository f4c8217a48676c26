"""Exports: messages of a store as Parquet files, which count when their manifest is there.

Begin with `export`. `parquet` is what each task does, `manifest` says what an export consists of,
`exported` reads it back as a DataFrame. `lake_table` is what tables of Delta (`delta_table`) and
Iceberg (`iceberg_table`) have in common; `table_batches` appends the batches of a stream to them.
"""
