"""The laboratory: phantoms, comparison methods and the benchmark. It imports the product, never the reverse."""
