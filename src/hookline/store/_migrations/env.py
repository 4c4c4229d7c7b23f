"""What alembic runs. The connection, in a transaction, is handed over by `hookline.store._migrate`."""

from alembic import context

from hookline.store._tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
    # SQLite changes a table by making a new one.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
