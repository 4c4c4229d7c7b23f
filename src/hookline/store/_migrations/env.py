"""Alembic's environment: runs the migrations on the connection that `hookline.store._migrate` passes in."""

from alembic import context

from hookline.store._tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
    # SQLite can change most things in a table only by copying it to a new one.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
