"""Requests -> steps -> events. The engine is the only place that changes everything."""

from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.config import CELL, EngineConfig, HostConfig
from kdalab.engine.core import Engine
from kdalab.engine.events import Event
from kdalab.engine.faults import Faults
from kdalab.engine.request import Phase, Request, Start
from kdalab.engine.view import NodeView, RequestView, View, fold

__all__ = [
    "CELL",
    "BlockEngine",
    "BlockEngineConfig",
    "Engine",
    "EngineConfig",
    "Event",
    "Faults",
    "HostConfig",
    "NodeView",
    "Phase",
    "Request",
    "RequestView",
    "Start",
    "View",
    "fold",
]
