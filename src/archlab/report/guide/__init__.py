"""The guide: the site that archlab's documents, topics and schema are read on."""
