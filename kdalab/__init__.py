"""KDALab: how hybrid models with Kimi Delta Attention change prefix caching, taught by running it.

Importing this package is quick: torch, gradio and plotly load only when something needs them.
"""

__version__ = "0.1.0"
