"""What the server tells of itself, and what it does with a slot's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .dialect import CREATED, FINGERPRINT, read_object
from .errors import NO_SLOT, ApiError

if TYPE_CHECKING:
    from .engine import Engine, Slot
    from .http import Request

_BYTES_PER_TOKEN = 23_040
_METRICS = (  # name, kind, what it is
    ("prompt_tokens_total", "counter", "Number of prompt tokens processed, excluding cached tokens"),
    ("prompt_tokens_cached_total", "counter", "Number of prompt tokens reused from the cache"),
    ("prompt_seconds_total", "counter", "Total time spent processing prompts"),
    ("tokens_predicted_total", "counter", "Number of generation tokens processed"),
    ("tokens_predicted_seconds_total", "counter", "Total time spent generating tokens"),
    ("requests_processing", "gauge", "Number of requests processing"),
    ("requests_deferred", "gauge", "Number of requests deferred"),
)


@dataclass(eq=False, kw_only=True)
class Options:
    """How the server was started. The first three fields take effect at a restart, the rest at once.

    Attributes:
        total_slots: How many sequences it decodes at once.
        n_ctx: Tokens that one slot holds; with `kv_unified` also what all of them hold together.
        kv_unified: Whether the slots share their memory, so that too much at once ends all that is in flight.
        model: The model's name in every answer.
        api_key: What every route but /health asks for; None asks for nothing.
        words: Tokens of a generation whose script says nothing about them.
        prefill: Seconds before the first token is decoded.
        interval: Seconds per token.
        ping_interval: Seconds without data after which a stream gets an empty comment; None sends none.
        embeddings: Whether /v1/embeddings and /embedding are on.
        reranking: Whether /v1/rerank is on.
        infill: Whether /infill is on.
        vision: Whether images are accepted.
        slots_endpoint: Whether GET /slots is on.
        metrics_endpoint: Whether /metrics is on.
        slot_save: Whether slots can be saved, restored and erased.
        loading: Whether the model is still loading, so that everything answers 503.
    """

    total_slots: int = 4
    n_ctx: int = 4096
    kv_unified: bool = False
    model: str = "fake-model"
    api_key: str | None = None
    words: int = 8
    prefill: float = 0.0
    interval: float = 0.01
    ping_interval: float | None = 30.0
    embeddings: bool = False
    reranking: bool = False
    infill: bool = False
    vision: bool = False
    slots_endpoint: bool = True
    metrics_endpoint: bool = True
    slot_save: bool = False
    loading: bool = False


def props(options: Options, engine: Engine) -> dict[str, Any]:
    """Return what /props tells."""
    return {
        "default_generation_settings": {"params": {"n_predict": -1, "stream": False}, "n_ctx": engine.n_ctx},
        "total_slots": len(engine.slots),
        "model_alias": options.model,
        "model_ftype": "Q4_1",
        "model_path": f"/models/{options.model}.gguf",
        "modalities": {"vision": options.vision, "video": False, "audio": False},
        "endpoint_slots": options.slots_endpoint,
        "endpoint_props": False,
        "endpoint_metrics": options.metrics_endpoint,
        "chat_template": "chatml",
        "chat_template_caps": {"supports_parallel_tool_calls": True, "supports_tools": True},
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "build_info": FINGERPRINT,
        "is_sleeping": False,
    }


def slots(options: Options, engine: Engine, query: str) -> list[dict[str, Any]]:
    """Return what /slots tells, or refuse."""
    if not options.slots_endpoint:
        raise ApiError(501, "This server does not support slots endpoint. Start it without `--no-slots`")
    engine.delivered()
    if "fail_on_no_slot=1" in query and len(engine.busy) == len(engine.slots):
        raise NO_SLOT
    return [_slot(slot, engine.n_ctx) for slot in engine.slots]


def metrics(options: Options, engine: Engine) -> str:
    """Return what /metrics tells, or refuse."""
    if not options.metrics_endpoint:
        raise ApiError(501, "This server does not support metrics endpoint. Start it with `--metrics`")
    engine.delivered()
    totals = engine.totals
    values: dict[str, float] = {
        "prompt_tokens_total": totals["prompt_tokens"],
        "prompt_tokens_cached_total": totals["cached_tokens"],
        "prompt_seconds_total": totals["prompt_ms"] / 1000,
        "tokens_predicted_total": totals["predicted_tokens"],
        "tokens_predicted_seconds_total": totals["predicted_ms"] / 1000,
        "requests_processing": len(engine.busy),
        "requests_deferred": len(engine.deferred),
    }
    lines = [
        f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {values[name]:g}\n"
        for name, kind, text in _METRICS
    ]
    return "".join(lines)


def models(options: Options, engine: Engine) -> dict[str, Any]:
    """Return what /v1/models tells."""
    meta = {"n_ctx": engine.n_ctx, "n_ctx_train": 8192}
    entry = {
        "id": options.model,
        "aliases": [options.model],
        "tags": [],
        "object": "model",
        "created": CREATED,
    }
    data = [{**entry, "owned_by": "llamacpp", "meta": meta}]
    listed = {"name": options.model, "model": options.model, "type": "model", "capabilities": ["completion"]}
    return {"models": [listed], "object": "list", "data": data}


async def slot_action(
    options: Options, engine: Engine, saved: dict[str, list[str]], request: Request
) -> dict[str, Any]:
    """Save, restore or erase what a slot remembers, after its run if it has one."""
    if not options.slot_save:
        raise ApiError(501, "This server does not support slots action. Start it with `--slot-save-path`")
    number, action = request.path.rpartition("/")[2], request.query.removeprefix("action=")
    if not (number.isascii() and number.isdecimal()):
        raise ApiError(400, "Invalid slot ID")
    if action not in {"save", "restore", "erase"}:
        raise ApiError(400, "Invalid action")
    filename = "" if action == "erase" else _filename(request.body)
    slot = engine.slots[int(number) % len(engine.slots)]
    while slot.run is not None:
        await slot.freed.park()
    if action == "erase":
        erased = len(slot.kv)
        slot.kv.clear()
        return {"id_slot": slot.id, "n_erased": erased}
    if action == "save":
        saved[filename] = list(slot.kv)
        size = {"n_saved": len(slot.kv), "n_written": len(slot.kv) * _BYTES_PER_TOKEN}
        return {"id_slot": slot.id, "filename": filename, **size, "timings": {"save_ms": 0.0}}
    slot.kv[:] = saved.get(filename, [])  # a failed restore empties the slot
    if filename not in saved:
        raise ApiError(
            400, "Unable to restore slot: No available space in KV cache or invalid slot save file"
        )
    size = {"n_restored": len(slot.kv), "n_read": len(slot.kv) * _BYTES_PER_TOKEN}
    return {"id_slot": slot.id, "filename": filename, **size, "timings": {"restore_ms": 0.0}}


def _filename(raw: bytes) -> str:
    filename = read_object(raw).get("filename")
    if filename is None:
        raise ApiError(400, "[json.exception.out_of_range.403] key 'filename' not found")
    if not isinstance(filename, str) or "/" in filename:
        raise ApiError(400, "Invalid filename")
    return filename


def _slot(slot: Slot, n_ctx: int) -> dict[str, Any]:
    told: dict[str, Any] = {"id": slot.id, "n_ctx": n_ctx, "speculative": False}
    told["is_processing"] = slot.run is not None
    if slot.task < 0:
        return told
    decoded = slot.run.decoded if slot.run is not None else 0
    limit = slot.run.job.limit if slot.run is not None else None
    return {
        **told,
        "id_task": slot.task,
        "n_prompt_tokens": len(slot.kv),
        "n_prompt_tokens_processed": len(slot.run.job.prompt) - slot.run.cached
        if slot.run is not None
        else 0,
        "n_prompt_tokens_cache": slot.run.cached if slot.run is not None else 0,
        "params": {"n_predict": -1 if limit is None else limit},
        "next_token": [
            {
                "has_next_token": slot.run is not None,
                "has_new_line": False,
                "n_remain": -1 if limit is None else limit - decoded,
                "n_decoded": decoded,
            }
        ],
    }
