"""One module per library and engine: a loop as that library's own page would write it.

The docstring of a row has its name, and fields that `benchmarks._works_with.table` reads
without importing it.
"""
