"""The query language, without a database."""
