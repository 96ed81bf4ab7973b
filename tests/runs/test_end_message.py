"""The message at a run's end: one request after the result is on disk, which costs the run nothing and no secret."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.runs import end_message
from spectrakit.runs.end_message import Messenger, find_messenger
from tasks import Line

INLINE = ("launch.mode=inline", "trainer.accelerator=cpu", "trainer.max_epochs=1", "run.console=none")
WORD = "hK4tZ9qLw2Xs8Vb3"


@pytest.fixture
def hook():
    "A server that keeps requests in `received`; it answers with `status`, or only once `answers` is set."

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            server.received.append((self.path, body))
            server.answers.wait(60)
            self.send_response(server.status)
            self.send_header("Location", f"{server.address}/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.received, server.status, server.answers = [], 200, threading.Event()
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.answers.set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.answers.set()
    server.shutdown()
    server.server_close()


class Post(socketserver.StreamRequestHandler):
    "An SMTP server without encryption, which keeps all that it is told."

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        data = False
        for line in iter(self.rfile.readline, b""):
            self.server.heard.append(line.decode().strip())
            data = (data or line.startswith(b"data")) and line != b".\r\n"
            if line.startswith(b"QUIT"):
                return self.wfile.write(b"221 bye\r\n")
            if not data or line.startswith(b"data"):
                self.wfile.write(b"354 go on\r\n" if data else b"250 fine\r\n")
        return None


@pytest.fixture
def post():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        server.heard, server.daemon_threads = [], True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ended():
    "Wait for the threads that send."
    for thread in threading.enumerate():
        if thread.name == "end message":
            thread.join(30)


class Failing(Line):
    def loss(self, model, batch):
        raise KeyError("flux")


@pytest.mark.parametrize("task, status", [(Line(), "completed"), (Failing(), "failed")])
def test_one_message_tells_how_the_run_ended(task, status, hook, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNS_HOOK", f"{hook.address}/{WORD}")
    run = fit(task, compose(*INLINE, f"run.dir={tmp_path}", "run.notify=RUNS_HOOK"), on_error="return")
    ended()
    [(path, body)] = hook.received
    message = json.loads(body)
    assert (run.status, path, message["status"], message["run"]) == (status, f"/{WORD}", status, run.path.name)
    assert message["title"].startswith(f"{run.path.name}: {status}")
    assert ("flux" in message["text"]) == (status == "failed")
    for file in run.path.rglob("*"):  # settings, events and logs
        assert not file.is_file() or WORD.encode() not in file.read_bytes(), file


def test_a_server_that_does_not_answer_holds_nothing_up(hook, tmp_path):
    hook.answers.clear()
    run = fit(Line(), compose(*INLINE, f"run.dir={tmp_path}", f"run.notify={hook.address}/runs"))
    waiting = [thread for thread in threading.enumerate() if thread.name == "end message"]
    assert run.status == "completed" and len(waiting) == 1 and waiting[0].is_alive()
    assert (run.path / "summary.json").is_file()
    hook.answers.set()
    ended()


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_neither_a_redirect_nor_an_error_is_followed_by_another_request(status, hook):
    hook.status, said = status, []
    Messenger(f"{hook.address}/{WORD}", said.append).send("a", "b").join()
    assert len(hook.received) == len(said) == 1 and str(status) in said[0] and WORD not in said[0]


def test_an_email_is_sent_once(post, monkeypatch):
    monkeypatch.setenv("RUNS_MAIL", f"smtp://127.0.0.1:{post.server_address[1]}/me@example.org")
    find_messenger(compose("run.notify=RUNS_MAIL"), "local").send("coffee-1: completed", "loss=0.1").join()
    assert post.heard.count("data") == 1 and "rcpt TO:<me@example.org>" in post.heard
    assert "Subject: coffee-1: completed" in post.heard and "loss=0.1" in post.heard


def test_a_password_is_not_sent_without_encryption(post, monkeypatch):
    monkeypatch.setenv("RUNS_MAIL", f"smtp://me:{WORD}@127.0.0.1:{post.server_address[1]}/me@example.org")
    said = []
    find_messenger(compose("run.notify=RUNS_MAIL"), "local", said.append).send("a", "b").join()
    assert len(said) == 1 and WORD not in said[0] and "data" not in post.heard
    assert not any("AUTH" in line.upper() or WORD in line for line in post.heard)


def test_offline_kaggle_says_so_once_and_sends_nothing(hook, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(end_message, "has_internet", lambda: False)
    said = []
    assert find_messenger(compose(f"run.notify={hook.address}/runs"), "kaggle", said.append) is None
    assert len(said) == 1 and "no internet" in said[0]
    monkeypatch.setenv("RUNS_HOOK", "not an address")  # neither does a wrong secret stop a run
    run = fit(Line(), compose(*INLINE, f"run.dir={tmp_path}", "run.notify=RUNS_HOOK"))
    ended()
    assert run.status == "completed" and hook.received == []
    assert capsys.readouterr().err.count("No message of run.notify is sent") == 1


def test_runs_of_a_search_send_nothing():
    assert find_messenger(compose("run.notify=https://ntfy.sh/runs", "tracking.group=study"), "local") is None
