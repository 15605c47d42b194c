"""``python -m kdalab``: the same as the command ``kdalab``."""

from kdalab.cli.main import run

if __name__ == "__main__":
    run()
