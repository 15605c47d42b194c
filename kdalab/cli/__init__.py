"""The ``kdalab`` command: one module a sub-command, each importing what it needs when it runs."""
