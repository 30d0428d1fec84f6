"""The demo: a captured PostgreSQL change log, merged into Delta tables and compared with the database's own dump."""
