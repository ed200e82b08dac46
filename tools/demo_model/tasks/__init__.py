"""The tasks of the demo corpus, one per module."""
