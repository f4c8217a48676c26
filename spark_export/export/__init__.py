"""Exports: messages of a store as Parquet files, which count when their manifest is there.

Begin with `export`. `parquet` is what each task does, `manifest` says what an export consists of,
`exported` reads it back as a DataFrame.
"""
