"""``kdalab lab``: what traces teach about cache policies."""

from __future__ import annotations

from kdalab.cli.lab_yardsticks import app

__all__ = ["app"]
