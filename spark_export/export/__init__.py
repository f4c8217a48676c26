"""Exports: messages of a store as Parquet files, which count when their manifest exists.

Begin with `export`; `export_plan` is what an export begins with, `export_options` are those of the
command that the source has, too. `parquet` is the work of each task, `manifest` lists the contents
of an export, `exported` reads it back as a DataFrame. `lake_table` is the common part of tables of
Delta (`delta_table`) and Iceberg (`iceberg_table`); `table_batches` appends the batches of a stream
to them.
"""
