"""The command line: `conseg COMMAND`, each command a thin layer over one function of the package."""
