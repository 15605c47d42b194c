"""The project's claims as a table that anyone can run: ``kdalab verify``."""
