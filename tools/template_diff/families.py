"""Chat templates in the manner of published model families, written for this comparison."""

FAMILIES = {}
