"""A gateway that queues in front of llama-server, made with `trio_admission`.

`trio_admission_web.app.create_app` makes the application, `trio_admission_web.asgi` is its entry for
``hypercorn -k trio``, and the command ``trio-admission`` runs it. The map of the house is in
docs/contributing.md.
"""
