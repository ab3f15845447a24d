"""The guide: a site with archlab's documents, topics and reference."""
