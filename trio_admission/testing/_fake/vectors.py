"""Embeddings and reranking: they take a slot for as long as their prefill lasts, and say nothing."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, ClassVar

from .dialect import Dialect, Said, tokenize
from .errors import ApiError
from .openai import several_prompts

if TYPE_CHECKING:
    from .results import Token

_DIMENSIONS = 8


class _Silent(Dialect):
    """What has no tokens and no stream."""

    speaks: ClassVar[bool] = False

    def token(self, token: Token) -> bytes:
        """Never asked."""
        raise AssertionError(token)

    def end(self, index: int, said: Said) -> bytes:  # noqa: ARG002 (nothing was said)
        """Return nothing."""
        return b""

    def usage(self) -> dict[str, int]:
        """Return the tokens of all inputs."""
        used = sum(len(tokenize(prompt)) for prompt in self.prompts)
        return {"prompt_tokens": used, "total_tokens": used}


class Embeddings(_Silent):
    """`/v1/embeddings`; each vector is made of its input's length."""

    def read_prompts(self) -> list[str]:
        """Return each input."""
        given = self.body.get("input", self.body.get("content"))
        if given is None:
            raise ApiError(400, '"input" or "content" must be provided')
        if not given:
            raise ApiError(400, '"input" must not be empty')
        if self.body.get("encoding_format") not in {None, "float", "base64"}:
            raise ApiError(400, "The format to return the embeddings in. Can be either float or base64")
        return several_prompts(given)

    def answer(self) -> Any:
        """Return the list of vectors."""
        data = [self._item(index, prompt) for index, prompt in enumerate(self.prompts)]
        return {"model": self.facts.model, "object": "list", "usage": self.usage(), "data": data}

    def vector(self, prompt: str) -> list[float]:
        """Return a text's vector."""
        return [1.0 / (len(prompt) + place) for place in range(1, _DIMENSIONS + 1)]

    def _item(self, index: int, prompt: str) -> dict[str, Any]:
        vector = self.vector(prompt)
        item: dict[str, Any] = {"embedding": vector, "index": index, "object": "embedding"}
        if self.body.get("encoding_format") == "base64":
            packed = struct.pack(f"<{_DIMENSIONS}f", *vector)
            item |= {"embedding": base64.b64encode(packed).decode(), "encoding_format": "base64"}
        return item


class NativeEmbeddings(Embeddings):
    """`/embedding`: a vector for each token sequence, and no usage."""

    def answer(self) -> Any:
        """Return the vectors."""
        return [
            {"index": index, "embedding": [self.vector(prompt)]} for index, prompt in enumerate(self.prompts)
        ]


class Rerank(_Silent):
    """`/v1/rerank`; a document's score is the lower the longer it is."""

    def read_prompts(self) -> list[str]:
        """Return query and document together, for each document."""
        query, documents = self.body.get("query"), self.body.get("documents")
        if query is None:
            raise ApiError(400, '"query" must be provided')
        if not (isinstance(documents, list) and documents and all(isinstance(one, str) for one in documents)):
            raise ApiError(400, '"documents" must be a non-empty string array')
        return [f"{query}\n{document}" for document in documents]

    def answer(self) -> Any:
        """Return the scores, the best first."""
        scores = [-float(len(prompt)) for prompt in self.prompts]
        results = [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]
        results.sort(key=lambda result: -result["relevance_score"])
        head = {"model": self.facts.model, "object": "list", "usage": self.usage()}
        return {**head, "results": results[: self.number("top_n", 0, len(results))]}
