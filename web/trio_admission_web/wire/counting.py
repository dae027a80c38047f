"""How the backend is asked for the number of a prompt's tokens, where a dialect has no address for that."""

from __future__ import annotations

import json


def count_prompt(prompt: object) -> tuple[str, bytes] | None:
    """Return path and body to ask for the tokens of a plain prompt; None if it is not one text."""
    if not isinstance(prompt, str):
        return None
    return "/tokenize", json.dumps({"content": prompt, "add_special": True}).encode()
