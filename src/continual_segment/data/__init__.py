"""From a folder of scans and labels to the patches a network learns from."""
