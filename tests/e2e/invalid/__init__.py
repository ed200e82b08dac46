"""Requests that are wrong, by the ten thousand, and what a server must not do about them: see run.py."""
