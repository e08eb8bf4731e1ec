"""DICOMweb: search an archive (QIDO-RS), retrieve series (WADO-RS), store results (STOW-RS).

The answers of an archive are input from outside: types, sizes, times, UIDs and boundaries are checked, and
nothing in them becomes a path. The client is the standard library's: no redirect is followed, no proxy is
used, no certificate is accepted unverified.
"""
