"The server that a competition makes its own of."

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from .relay import Server


class InferenceServer(ABC):
    "Answers the gateway with the functions that it is given."

    def __init__(self, *endpoint_listeners):
        self.server = Server(*endpoint_listeners)

    @abstractmethod
    def _get_gateway_for_test(self, data_paths=None): ...

    def serve(self):
        "Answer the gateway of the rerun, until it has asked for everything."
        self.server.start()
        if os.getenv("KAGGLE_IS_COMPETITION_RERUN") is None:
            return
        place = Path(__file__).resolve().parents[2]  # Kaggle runs the gateway beside the notebook; here it is a child
        gateway = subprocess.Popen([sys.executable, "-c", self._gateway_code(place)])
        self.server.wait_for_termination()
        gateway.wait()

    @abstractmethod
    def _gateway_code(self, place): ...

    def run_local_gateway(self, data_paths=None):
        "Ask this server for the public rows."
        self.server.start()
        try:
            self._get_gateway_for_test(data_paths).run()
        finally:
            self.server.stop()
