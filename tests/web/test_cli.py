"""The command `trio-admission`, as a person or a supervisor meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import trio

from tests.support.command import running
from tests.support.gateway import CHAT, chat
from tests.support.raw_client import RawClient, data_of
from tests.support.serving import until
from trio_admission.testing.fake_llama_server import FakeLlamaServer
from trio_admission_web import cli, commands, extras as extras_module
from trio_admission_web.keys import hash_key
from trio_admission_web.options import BACKEND, GATEWAY, POOL


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_it_tells_its_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([flag])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"trio-admission {version('trio-admission')}\n"


async def test_serve_listens_serves_and_stops_at_a_signal() -> None:
    async with FakeLlamaServer(total_slots=2, words=3) as llama, llama.listening() as upstream:
        serve = ("trio_admission_web", "serve", "--upstream", upstream, "--port", "0")
        async with running(*serve) as command:
            async with RawClient.connected(command.url) as client:
                answer = await client.ask("POST", CHAT, chat())
                assert answer.json["choices"][0]["message"]["content"] == "r1w0 r1w1 r1w2"
                slots = (await client.ask("GET", "/admission")).json["backends"]["default"]["slots"]
                assert slots == 2
            command.process.send_signal(signal.SIGTERM)
    assert command.process.returncode == 0


async def test_a_signal_lets_running_streams_finish_and_refuses_new_ones() -> None:
    async with FakeLlamaServer(words=20, interval=0.05) as llama, llama.listening() as upstream:
        serve = ("trio_admission_web", "serve", "--upstream", upstream, "--port", "0")
        async with running(*serve) as command, RawClient.connected(command.url) as client:
            await client.request("POST", CHAT, chat(stream=True))
            answer = await client.read_head()
            await client.read_events(answer, 2)
            command.process.send_signal(signal.SIGTERM)
            assert await becomes(command.url, 503)
            while await client.read_more(answer):
                pass
            assert (answer.complete, data_of(answer.body)[-1]) == (True, "[DONE]")
    assert command.process.returncode == 0


async def becomes(url: str, status: int) -> bool:
    """Ask until the answer has that status."""
    with trio.move_on_after(5):
        async with RawClient.connected(url) as client:
            while (await client.ask("POST", CHAT, chat())).status != status:
                pass
            return True
    return False


async def test_the_flags_of_serve_reach_the_gateway() -> None:
    async with FakeLlamaServer(api_key="up-KEY", words=10_000) as llama, llama.listening() as upstream:
        serve = ("trio_admission_web", "serve", "--upstream", upstream, "--port", "0", "--host", "127.0.0.1")
        flags = ("--slots", "1", "--upstream-api-key", "up-KEY", "--max-wait", "0")
        async with running(*serve, *flags) as command:
            async with RawClient.connected(command.url) as holder, RawClient.connected(command.url) as client:
                while (await client.ask("GET", "/ready")).status != 200:
                    pass  # nobody waits with --max-wait 0, not even for the first look at the server
                await holder.request("POST", CHAT, chat(stream=True))
                assert (await holder.read_head()).status == 200
                assert (await client.ask("POST", CHAT, chat())).json["error"]["code"] == "queue_timeout"
            command.process.send_signal(signal.SIGTERM)


async def test_hypercorns_own_command_serves_the_same_application() -> None:
    async with FakeLlamaServer(words=3) as llama, llama.listening() as upstream:
        hypercorn = ("hypercorn", "-k", "trio", "-b", "127.0.0.1:0", "trio_admission_web.asgi:app")
        async with running(*hypercorn, sign=b".* Running on", TRIO_ADMISSION_UPSTREAM=upstream) as command:
            async with RawClient.connected(command.url) as client:
                assert (await client.ask("POST", CHAT, chat())).status == 200
            command.process.send_signal(signal.SIGTERM)
    assert b'"outcome": "answered"' in command.said
    assert command.said.count(b"Running on") == 1


def test_hypercorn_with_another_worker_is_told_which_it_needs() -> None:
    hypercorn = [
        sys.executable,
        "-m",
        "hypercorn",
        "-w",
        "0",
        "-b",
        "127.0.0.1:0",
        "trio_admission_web.asgi:app",
    ]
    environ = {**os.environ, "TRIO_ADMISSION_UPSTREAM": "http://h"}
    done = subprocess.run(hypercorn, capture_output=True, check=False, env=environ)
    sentence = "the gateway runs on Trio: hypercorn needs `-k trio`"
    assert (done.returncode, done.stderr.decode()) == (1, f"trio-admission: {sentence}\n")


def key_file(file: Path, *secrets: str, more: str = "") -> None:
    """Write a configuration with these keys."""
    keys = [f'[keys.{secret}]\nhash = "{hash_key(secret)}"' for secret in secrets]
    file.write_text("\n".join([more, *keys]))


async def test_a_hangup_reloads_keys_and_leaves_the_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    async with FakeLlamaServer(total_slots=1, words=20, interval=0.05) as llama, llama.listening() as url:
        key_file(file, "old")
        serve = ("trio_admission_web", "serve", "--upstream", url, "--port", "0", "--config", str(file))
        async with (
            running(*serve) as command,
            RawClient.connected(command.url) as runs,
            RawClient.connected(command.url) as waits,
        ):
            for client in (runs, waits):
                await client.request("POST", CHAT, chat(stream=True), [("Authorization", "Bearer old")])
                assert (await client.read_head()).status == 200
            key_file(file, "new", more="max_wait = 1\ngrace = 0.2")
            command.process.send_signal(signal.SIGHUP)
            await until(lambda: b"reloaded: 1 API keys" in command.said, seconds=20)
            assert b"to change admission takes a restart" in command.said
            assert await statuses(command.url) == {"old": 401, "new": 200}

            key_file(file, "other", more="grace = -1\nprot = 1")
            command.process.send_signal(signal.SIGHUP)
            await until(lambda: command.said.count(b"not reloaded") == 2, seconds=20)
            assert b"gateway.toml:2: prot is not a setting; did you mean port?" in command.said
            assert await statuses(command.url) == {"old": 401, "new": 200}

            for client in (runs, waits):
                await client.read_until(b"[DONE]")
            command.process.send_signal(signal.SIGTERM)
    assert command.process.returncode == 0


async def statuses(url: str) -> dict[str, int]:
    """What each key gets."""
    found = {}
    for secret in ("old", "new"):
        async with RawClient.connected(url) as client:
            answer = await client.ask("GET", "/admission", headers=[("X-Api-Key", secret)])
            found[secret] = answer.status
    return found


async def test_each_line_of_the_log_is_json_where_there_is_no_terminal() -> None:
    async with FakeLlamaServer(words=3) as llama, llama.listening() as upstream:
        serve = ("trio_admission_web", "serve", "--upstream", upstream, "--port", "0")
        async with running(*serve) as command:
            async with RawClient.connected(command.url) as client:
                await client.ask("POST", CHAT, chat(model="m"))
            command.process.send_signal(signal.SIGTERM)
    lines = [line for line in command.said.decode().splitlines() if not line.startswith("listening on")]
    told = [json.loads(line) for line in lines]
    [request] = [each for each in told if "outcome" in each]
    assert (request["route"], request["model"], request["outcome"]) == (CHAT, "m", "answered")


def test_check_config_says_everything_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    key_file(file, "ada", more='backends.a.url = "http://h"\nport = "x"\ngrace = 0')
    assert cli.main(["check-config", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"trio-admission: {file}:2: port must be a whole number from 0 to 65535, not 'x'",
        f"trio-admission: {file}:3: grace must be a number of seconds above 0, not 0",
    ]
    key_file(file, "ada", more='backends.a.url = "http://h"')
    assert cli.main(["check-config", str(file)]) == 0
    assert capsys.readouterr().out == "good: 1 backend(s), 1 API key(s)\n"


def test_a_new_key_is_one_that_its_hash_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new-key"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert line == f'hash = "{hash_key(key.removeprefix("key:").strip())}"'


def new_key_to(stdout: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "trio_admission_web", "new-key"]
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False, env=environ)


def test_what_cannot_be_written_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = new_key_to(full.fileno())
    sentence = "standard output cannot be written: No space left on device"
    assert (done.returncode, done.stderr.decode()) == (1, f"trio-admission: {sentence}\n")


def test_what_nobody_reads_any_more_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = new_key_to(writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_every_setting_is_a_flag_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    said = capsys.readouterr().out
    assert all(f"  {option.flag} " in said for option in (*GATEWAY, *POOL, *BACKEND))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["serve"],
            (
                "no backend is configured: say where a llama-server is (--upstream URL), how to start one"
                " (--command COMMAND) or which model to run (--gguf FILE); a variable such as"
                " TRIO_ADMISSION_UPSTREAM, or url, command or gguf in a table [backends.NAME] of the file,"
                " does too"
            ),
        ),
        (
            ["serve", "--upstream", "x"],
            (
                "--upstream must be an address such as http://127.0.0.1:8080,"
                " without /v1, user, password, query and fragment"
            ),
        ),
        (
            ["serve", "--upstream", "http://localhost:8000"],
            "backend default has the gateway's own address, 127.0.0.1:8000: give it another --port",
        ),
        (
            ["serve", "--upstream", "http://h", "--slots", "0"],
            "--slots must be a whole number, at least 1, not 0",
        ),
        (
            ["serve", "--upstream", "http://h", "--host", "0.0.0.0"],
            "--host can be reached by others, so keys must be configured (or say --insecure)",
        ),
        (["demo", "--model", "/no/such.gguf"], "there is no model file /no/such.gguf"),
        (
            ["demo", "--host", "0.0.0.0"],
            "--host can be reached by others, and the demo has no keys: say --insecure to let everybody in",
        ),
        (["demo", "--host", "no..host"], "--host is no host that is known: no..host"),
        (
            ["serve", "--upstream", "http://h", "--host", "no..host"],
            "--host is no host that is known: no..host",
        ),
        (
            ["serve", "--upstream", "http://h", "--command", f"{sys.executable} x"],
            "--command must not be given together with --upstream",
        ),
        (
            ["serve", "--command", sys.executable, "--upstream-api-key", "x"],
            "--upstream-api-key is for --upstream; the gateway makes a key for a server that it starts",
        ),
        (["serve", "--gguf", "/no/such.gguf"], "--gguf: there is no model file /no/such.gguf"),
        (
            ["serve", "--command", "no-such-server"],
            "--command: there is no program no-such-server to run",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"trio-admission: {sentence}\n")


def test_a_file_that_is_no_model_is_one_sentence_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"PK\x03\x04, and no model")
    sentence = f"{file} is no model: it does not begin with GGUF"
    for command, place in (("demo", ""), ("serve", "--gguf: ")):
        flag = "--model" if command == "demo" else "--gguf"
        assert cli.main([command, flag, str(file)]) == 1
        assert capsys.readouterr().err == f"trio-admission: {place}{sentence}\n"


def test_serve_and_check_config_say_the_same_of_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('port = "x"\ntls_cert = "/no/c"\nbackends.a.command = ["no-such-server"]\n')
    said = []
    for command in (["check-config", str(file)], ["serve", "--config", str(file)]):
        assert cli.main(command) == 1
        said.append(capsys.readouterr().err.splitlines())
    assert said[0] == said[1]
    assert len(said[0]) == 4


def test_a_mistake_in_the_environment_is_named_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIO_ADMISSION_SLOTS", "many")
    assert cli.main(["serve", "--upstream", "http://h"]) == 1
    assert "TRIO_ADMISSION_SLOTS must be a whole number, at least 1, not 'many'" in capsys.readouterr().err


async def test_an_address_that_is_taken_is_one_sentence() -> None:
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        done = await trio.run_process(
            [
                sys.executable,
                "-m",
                "trio_admission_web",
                "serve",
                "--upstream",
                "http://h",
                "--port",
                str(port),
            ],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().splitlines() == [
        f"trio-admission: cannot listen on http://127.0.0.1:{port}: Address already in use"
    ]


def test_the_demo_says_that_its_address_is_taken_before_it_loads_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["demo", "--port", str(port), "--host", "0.0.0.0", "--insecure"]) == 1
    said = capsys.readouterr()
    sentence = f"cannot listen on http://0.0.0.0:{port}: Address already in use"
    assert (said.out, said.err) == ("", f"trio-admission: {sentence}\n")


@pytest.mark.parametrize(("command", "extras"), [("serve", "web"), ("demo", "web,demo")])
@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (None, "'trio-admission[{}]'"),
        ({"url": "file:///my%20clone", "dir_info": {}}, "'/my clone[{}]'"),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "-e '/clone[{}]'"),
        (
            {"url": "https://h/r.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            "'trio-admission[{}] @ git+https://h/r.git'",
        ),
        ({"url": "file:///t.whl", "archive_info": {}}, "'trio-admission[{}] @ file:///t.whl'"),
    ],
)
@pytest.mark.parametrize("has_pip", [True, False])
def test_a_missing_extra_is_named_and_how_to_get_it_for_what_is_installed(
    command: str,
    extras: str,
    record: dict[str, object] | None,
    wanted: str,
    has_pip: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    information = tmp_path / "trio_admission-9.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: trio-admission\nVersion: 9\n")
    if record is not None:
        (information / "direct_url.json").write_text(json.dumps(record))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "quart" else object())
    monkeypatch.setattr(extras_module, "find_spec", lambda _name: object() if has_pip else None)
    assert cli.main([command]) == 1
    installer = f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"
    assert capsys.readouterr().err == (
        f"trio-admission: quart is not installed: `{installer} {wanted.format(extras)}` gets it\n"
    )


def test_the_command_itself_needs_nothing_of_the_extra() -> None:
    probe = (
        "import sys; from trio_admission_web import cli; "
        "print([m for m in ('quart', 'hypercorn', 'h11') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_check_config_without_a_file_looks_where_serve_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[backends.main]\nurl = "http://127.0.0.1:8080"\n')
    monkeypatch.setenv("TRIO_ADMISSION_CONFIG", str(file))
    assert cli.main(["check-config"]) == 0
    assert capsys.readouterr().out.startswith("good: 1 backend(s)")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--slots", "0"], "--slots must be a whole number, at least 1, not 0"),
        (["--slots", "many"], "--slots must be a whole number, at least 1, not 'many'"),
        (["--port", "x"], "--port must be a whole number from 0 to 65535, not 'x'"),
        ([], "TRIO_ADMISSION_SLOTS must be a whole number, at least 1, not 'few'"),
    ],
)
def test_the_demo_refuses_what_it_cannot_run_before_it_downloads_a_model(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not arguments:
        monkeypatch.setenv("TRIO_ADMISSION_SLOTS", "few")
    monkeypatch.setattr(commands, "fetch_model", pytest.fail)
    monkeypatch.setattr(commands, "find_model", pytest.fail)
    assert cli.main(["demo", *arguments]) == 1
    assert capsys.readouterr().err == f"trio-admission: {sentence}\n"


def test_the_demo_refuses_a_prompt_that_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["demo", "--once", " "])
    assert exit_.value.code == 2
    sentence = "argument --once: must not be empty"
    assert capsys.readouterr().err.endswith(f"trio-admission demo: error: {sentence}\n")


def test_the_demo_takes_from_the_environment_what_no_flag_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIO_ADMISSION_PORT", "8123")
    monkeypatch.setenv("TRIO_ADMISSION_HOST", "::1")
    monkeypatch.setenv("TRIO_ADMISSION_SLOTS", "2")
    monkeypatch.setenv("TRIO_ADMISSION_UPSTREAM", "http://h")  # the engine is its only backend
    _, said = commands._demo_app(None, {})
    [backend] = said.backends
    assert (said.host, said.port, backend.slots, backend.url) == ("::1", 8123, 2, None)
    _, said = commands._demo_app(None, {"port": "0", "slots": "3"})
    assert (said.host, said.port, said.backends[0].slots) == ("::1", 0, 3)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["serve", "--prot", "80"], "; did you mean --port?"),
        (["serve", "--url=http://h"], "; did you mean --upstream?"),
        (["serve", "--api-key", "x"], "; did you mean --upstream-api-key?"),
        (["serve", "--max_wait", "3"], "; did you mean --max-wait?"),
        (["serve", "http://h"], "; did you mean --upstream http://h?"),
        (["serve", "gateway.toml"], ""),
        (["demo", "--prot", "80"], "; did you mean --port?"),
        (["demo", "http://h"], ""),
        (["check-config", "--config=gateway.toml"], "; did you mean FILE?"),
        (["fetch-model", "--fast"], ""),
    ],
)
def test_a_misspelt_option_is_told_by_its_command_with_what_may_be_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    name, *unknown = arguments
    assert said.startswith(f"usage: trio-admission {name} ")
    assert said.endswith(
        f"trio-admission {name}: error: unrecognized arguments: {' '.join(unknown)}{meant}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["--verison"], "unrecognized arguments: --verison; did you mean --version?"),
        (["serv"], "there is no COMMAND 'serv'; did you mean serve? (choose from serve, check-config, "),
        (["run"], "there is no COMMAND 'run' (choose from serve, check-config, "),
    ],
)
def test_a_command_that_there_is_not_is_told_with_what_may_be_meant(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert f"\ntrio-admission: error: {sentence}" in capsys.readouterr().err


def test_the_help_says_what_options_take_that_take_one_of_few_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    said = capsys.readouterr().out
    for option in (
        "--kv-cache isolated|unified",
        "--control on|off",
        "--kv-budget on|off",
        "--models NAME,...",
    ):
        assert option in said


@pytest.mark.parametrize(("words", "is_cut"), [(1000, True), (3, False)])
async def test_one_answer_that_is_cut_says_so(
    words: int, is_cut: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeLlamaServer(words=words) as llama, llama.listening() as url:
        await commands._ask(url, "Tell me a story.")
    said = capsys.readouterr()
    assert said.out.count("r1w") == (128 if is_cut else 3)
    assert said.err == ("(cut here: --once stops after 128 tokens)\n" if is_cut else "")
