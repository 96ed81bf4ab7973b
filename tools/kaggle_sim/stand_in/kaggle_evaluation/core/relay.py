"Requests from the gateway to the server: a function's name and its arguments, and its answer, each with a limit."

import importlib
import io
import json
import os
import socket
import threading
import time

import pandas

PORT = "CUP_PORT"  # the variable that names it; 0: a free one, which the server then writes there
STARTUP_LIMIT_S = 60.0  # 15 minutes on Kaggle


def packed(value):
    "A value as JSON; a table as CSV in it. TypeError for what cannot travel."
    if type(value).__name__ == "DataFrame":
        return {"table": value.to_csv(index=False) if isinstance(value, pandas.DataFrame) else value.write_csv()}
    if value is None:
        raise TypeError("None is no answer")
    if isinstance(value, (list, tuple)):
        return {"list": [packed(one) for one in value]}
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"a {type(value).__name__} cannot travel")
    return {"value": value}


def unpacked(value, tables="pandas"):
    "The value; a table in the library that `tables` names."
    if "table" in value:
        return importlib.import_module(tables).read_csv(io.StringIO(value["table"]))
    return [unpacked(one, tables) for one in value["list"]] if "list" in value else value["value"]


class Server:
    "Answers requests for the functions that it was given, one at a time."

    def __init__(self, *listeners):
        self.listeners = {listener.__name__: listener for listener in listeners}
        if "<lambda>" in self.listeners:
            raise ValueError("functions need names")
        self.socket = socket.create_server(("127.0.0.1", int(os.environ.get(PORT, "50051"))))
        os.environ[PORT] = str(self.socket.getsockname()[1])
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.ended = threading.Event()

    def start(self):
        self.thread.start()

    def wait_for_termination(self):
        self.ended.wait()

    def stop(self):
        self.ended.set()
        self.socket.close()

    def _run(self):
        while not self.ended.is_set():
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
                for line in stream:
                    name, given = json.loads(line)
                    if name == "over":
                        self.ended.set()
                        return
                    if name not in self.listeners:
                        answer = {"error": f"No listener for {name} was registered"}
                    else:
                        answer = self._answer(name, given)
                    stream.write(json.dumps(answer) + "\n")
                    stream.flush()

    def _answer(self, name, given):
        try:
            tables = os.environ.get("CUP_TABLES", "pandas")
            return {"answer": packed(self.listeners[name](*(unpacked(one, tables) for one in given)))}
        except Exception as error:  # an error of the competitor's ends the competition
            return {"error": f"{type(error).__name__}: {error}"}


class Client:
    "Asks a server. RuntimeError where it answers with an error, TimeoutError where it is late."

    def __init__(self, limit_s):
        self.limit_s, end = limit_s, time.monotonic() + STARTUP_LIMIT_S
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", int(os.environ[PORT])), timeout=5)
                break
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError("the inference server never started") from None
                time.sleep(0.1)
        self.stream = self.socket.makefile("rw", encoding="utf-8", newline="\n")
        self.first = True

    def send(self, name, *given):
        self.socket.settimeout(None if self.first else self.limit_s)  # the first may load the model
        self.stream.write(json.dumps([name, [packed(one) for one in given]]) + "\n")
        self.stream.flush()
        found = json.loads(self.stream.readline())
        self.first = False
        if "error" in found:
            raise RuntimeError(f"the server answered with an error: {found['error']}")
        return unpacked(found["answer"])

    def close(self):
        self.stream.write(json.dumps(["over", []]) + "\n")
        self.stream.flush()
        self.socket.close()
