"""llama.cpp's server in a child process: embedded, or by the command line of a llama-server.

    engine = await nursery.start(run_engine, EngineConfig(find_model()))
    engine = await nursery.start(run_command, ["llama-server", "-m", "model.gguf"])

start one; cancelling the nursery stops it.
"""

from __future__ import annotations

from ._errors import EngineError as EngineError
from ._process import Engine as Engine
from .command import require_program as require_program, run_command as run_command
from .embedded import (
    EngineConfig as EngineConfig,
    require_engine as require_engine,
    run_engine as run_engine,
)
from .model import (
    DEMO_MODEL as DEMO_MODEL,
    Model as Model,
    fetch_model as fetch_model,
    find_gguf as find_gguf,
    find_model as find_model,
)
