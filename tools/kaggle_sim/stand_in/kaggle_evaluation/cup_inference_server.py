"The inference server of that competition."

from .core.templates import InferenceServer
from .cup_gateway import CupGateway


class CupInferenceServer(InferenceServer):
    "Answers `predict(rows)` with a table of id and answer."

    def _get_gateway_for_test(self, data_paths=None):
        return CupGateway(data_paths)

    def _gateway_code(self, place):
        return f"import sys; sys.path.append({str(place)!r}); " + (
            "from kaggle_evaluation.cup_gateway import CupGateway; CupGateway().run()"
        )
