"""The laboratory: phantoms, comparison methods, benchmark. It imports the product, never the reverse."""
