"""The parts of the fake llama-server, from the wire inwards: stream, http, dialects, engine, script."""
