"""The command line: `conseg VERB`, each verb a thin layer over one function of the package."""
