"""Figures and SVG from plain data: nothing here touches an engine."""
