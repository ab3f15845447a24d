"""Guide: the site of archlab's documents, topics and reference."""
