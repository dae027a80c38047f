"""The embedded engine: llama.cpp's own server in a child process, and where its model comes from.

    engine = await nursery.start(run_engine, EngineConfig(find_model()))

starts it; cancelling the nursery stops it.
"""

from __future__ import annotations

from ._errors import EngineError as EngineError
from .embedded import Engine as Engine, EngineConfig as EngineConfig, run_engine as run_engine
from .model import Model as Model, fetch_model as fetch_model, find_model as find_model
