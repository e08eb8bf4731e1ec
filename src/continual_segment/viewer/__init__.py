"""Viewer: scans and label maps on a local web page, for eyes."""
