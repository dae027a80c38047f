"""The gateway behind nginx and HAProxy, with the configurations of the page about deployment.

    python -m bench.proxies [nginx] [haproxy]

Each proxy is started on loopback with what ``docs/how-to/deploy.md`` says; replaced are the addresses and the
files of the certificate. The gateway runs as ``trio-admission serve`` does, with keys, in front of a scripted
llama-server, and is asked through the proxy, in TLS. The exit status is 1 if anything is not as the page
says, and 2 if a proxy is not installed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import ssl
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
import trustme

from bench.gateway import free_port
from tests.support.command import running
from tests.support.gateway import CHAT, chat, shown
from tests.support.raw_client import RawClient, keepalives
from tests.support.serving import until
from tests.support.verdict import verdict
from trio_admission.testing.fake_llama_server import FakeLlamaServer, Script
from trio_admission_web.keys import hash_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PAGE = Path(__file__).parent.parent / "docs/how-to/deploy.md"
SECRETS = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789", "root": "sk-root-0123456789"}
INTERVAL = 0.25  # seconds between the events of a stream, and between keepalives


def block(language: str) -> str:
    """The page's only block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def replaced(text: str, **places: str) -> str:
    """Put what is there on this machine for what the page says; each must be said."""
    for said, here in places.items():
        if said not in text:
            raise AssertionError(f"the page does not say {said}")
        text = text.replace(said, here)
    return text


def nginx(folder: Path, port: int, gateway: str) -> list[str]:
    """Write the configuration and return the command."""
    places = {
        "127.0.0.1:8000": gateway,
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/nginx/llm.pem": str(folder / "cert.pem"),
        "/etc/nginx/llm.key": str(folder / "key.pem"),
    }
    page = replaced(block("nginx"), **places)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths}\n{page}\n}}\n"
    )
    return ["nginx", "-c", str(file), "-e", "stderr"]


def haproxy(folder: Path, port: int, gateway: str) -> list[str]:
    """Write the configuration and return the command."""
    places = {
        "127.0.0.1:8000": gateway,
        ":443": f"127.0.0.1:{port}",
        "/etc/haproxy/llm.pem": str(folder / "both.pem"),
    }
    file = folder / "haproxy.cfg"
    file.write_text(replaced(block("haproxy"), **places))
    return ["haproxy", "-db", "-f", str(file)]


PROXIES: dict[str, Callable[[Path, int, str], list[str]]] = {"nginx": nginx, "haproxy": haproxy}


class Site:
    """A proxy, the gateway behind it and the server behind that."""

    def __init__(self, llama: FakeLlamaServer, gateway: str, port: int, trusting: ssl.SSLContext) -> None:
        self.llama = llama
        self.gateway = gateway
        self._port = port
        self._trusting = trusting

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        """Connect to the proxy; leaving closes the connection."""
        stream = await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", self._port, ssl_context=self._trusting, https_compatible=True
        )
        async with stream:
            yield RawClient(stream)  # type: ignore[arg-type] # any stream does that is not reset

    async def line(self) -> list[dict[str, Any]]:
        """Who waits, as the gateway itself says."""
        async with RawClient.connected(self.gateway) as client:
            answer = await client.ask("GET", "/admission", headers=shown(SECRETS["root"]).items())
        found: list[dict[str, Any]] = answer.json["backends"]["default"]["line"]
        return found

    async def queued(self, count: int) -> None:
        """Wait until so many wait."""
        with trio.fail_after(10):
            while len(await self.line()) != count:  # noqa: ASYNC110 - another process is waited for
                await trio.sleep(0.02)


def ask(client: RawClient, who: str, **body: Any) -> Awaitable[None]:
    """Send a request as somebody."""
    return client.request("POST", CHAT, chat(**body), shown(SECRETS[who]).items())


async def events_come_one_by_one(site: Site) -> None:
    site.llama.script(Script(tokens=8, interval=INTERVAL))
    async with site.client() as client:
        await ask(client, "alice", stream=True)
        answer = await client.read_answer()
    assert verdict(answer, stream=True) == "answered"
    times = [at for at, _ in client.arrivals]
    assert times[-1] - times[0] > 6 * INTERVAL, "the events came together"
    assert len(times) >= 8, "the events came in few pieces"


async def who_waits_gets_keepalives_and_who_leaves_loses_the_place(site: Site) -> None:
    site.llama.script(Script(tokens=2000, interval=INTERVAL))
    async with site.client() as first:
        await ask(first, "alice", stream=True)
        await until(lambda: site.llama.busy_slots)
        async with site.client() as second:
            await ask(second, "bob", stream=True)
            await site.queued(1)
            assert [each["flow"] for each in await site.line()] == ["bob"]
            answer = await second.read_head()
            while len(keepalives(answer.body)) < 4:
                assert await second.read_more(answer)
        await site.queued(0)
        async with site.client() as plain:
            await ask(plain, "bob")
            await site.queued(1)
        await site.queued(0)
        assert site.llama.busy_slots, "the one that runs was cut"
    await until(lambda: not site.llama.busy_slots)


async def a_long_wait_ends_in_the_whole_answer(site: Site) -> None:
    site.llama.script(Script(tokens=10, interval=INTERVAL))
    async with site.client() as client:
        await ask(client, "bob")
        assert verdict(await client.read_answer(), stream=False) == "answered"


async def keys_and_ids_pass_and_refusals_are_the_gateways(site: Site) -> None:
    async with site.client() as client:
        answer = await client.ask("POST", CHAT, chat(), [("x-request-id", "mine-1")])
        assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")
        headers = [("x-api-key", SECRETS["alice"]), ("x-request-id", "mine-2")]
        answer = await client.ask("POST", CHAT, chat(), headers)
        assert (answer.status, answer.header("x-request-id")) == (200, "mine-2")
        large = chat() | {"filler": "x" * (20 * 2**20)}
        assert (await client.ask("POST", CHAT, large, headers)).status == 200
        assert (await client.ask("GET", "/nowhere", headers=headers)).json["error"]["code"] == "not_found"


CHECKS = (
    events_come_one_by_one,
    who_waits_gets_keepalives_and_who_leaves_loses_the_place,
    a_long_wait_ends_in_the_whole_answer,
    keys_and_ids_pass_and_refusals_are_the_gateways,
)


async def draining_is_told(site: Site, stop: Callable[[], None]) -> None:
    site.llama.script(Script(tokens=60, interval=INTERVAL))
    async with site.client() as running_one, site.client() as late:
        await ask(running_one, "alice", stream=True)
        await until(lambda: site.llama.busy_slots)
        stop()
        with trio.fail_after(10):
            while True:
                async with RawClient.connected(site.gateway) as client:
                    if (await client.ask("GET", "/ready")).status == 503:
                        break
        await trio.sleep(7)  # for health checks, which would lose patience
        await ask(late, "bob")
        answer = await late.read_answer()
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining"), answer.body
        assert answer.header("Retry-After")
        assert verdict(await running_one.read_answer(), stream=True) == "answered"


@asynccontextmanager
async def proxied(name: str, gateway: str, folder: Path) -> AsyncIterator[int]:
    """Run a proxy for the block, which gets its port."""
    port = free_port()
    command = PROXIES[name](folder, port, gateway.removeprefix("http://"))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.run_process, command, check=False))
        with trio.fail_after(10):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    await trio.sleep(0.05)
        yield port
        nursery.cancel_scope.cancel()


def prepare(folder: Path, upstream: str) -> tuple[ssl.SSLContext, Path]:
    """Write the certificate and the gateway's configuration; return what trusts the one, and the other."""
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    file = folder / "gateway.toml"
    file.write_text(f'keepalive_interval = {INTERVAL}\nport = 0\n[backends.default]\nurl = "{upstream}"\n')
    with file.open("a") as config:
        for who, secret in SECRETS.items():
            admin = "true" if who == "root" else "false"
            config.write(f'[keys.{who}]\nhash = "{hash_key(secret)}"\nadmin = {admin}\n')
    folder.chmod(0o755)  # nginx gives up root's rights
    return trusting, file


async def main(name: str) -> int:
    failed = 0
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        llama = await stack.enter_async_context(FakeLlamaServer(total_slots=1, words=3, interval=0.01))
        trusting, file = prepare(folder, await stack.enter_async_context(llama.listening()))
        serve = ("trio_admission_web", "serve", "--config", str(file))
        command = await stack.enter_async_context(running(*serve))
        port = await stack.enter_async_context(proxied(name, command.url, folder))
        site = Site(llama, command.url, port, trusting)
        stop = partial(command.process.send_signal, signal.SIGTERM)
        for check in (*CHECKS, partial(draining_is_told, stop=stop)):
            what = getattr(check, "__name__", "draining is told").replace("_", " ")
            try:
                with trio.fail_after(60):
                    await check(site)
            except Exception as error:  # noqa: BLE001 - told, and counted
                failed += 1
                print(f"{name}: {what}: FAILED: {error!r}")
            else:
                print(f"{name}: {what}: good")
        if command.process.returncode is None:
            stop()
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("proxies", nargs="*", metavar="nginx|haproxy")
    asked = parser.parse_args().proxies or list(PROXIES)
    missing = [name for name in asked if shutil.which(name) is None]
    if missing:
        print("not installed:", *missing)
        sys.exit(2)
    sys.exit(1 if sum(trio.run(main, name) for name in asked) else 0)
