"""How the tables came to be what they are, for alembic."""
