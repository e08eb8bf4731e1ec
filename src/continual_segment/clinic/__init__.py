"""Clinic: scans as hospitals have them in, results as they need them out."""
