"""Serving benchmarks of the toggle; see README.md in this folder."""
