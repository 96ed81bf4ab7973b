"What asks the server: batch after batch of the test rows, and the submission of its answers."

import os
from abc import ABC, abstractmethod

import pandas

from .relay import Client

IS_RERUN = os.getenv("KAGGLE_IS_COMPETITION_RERUN") is not None  # as Kaggle's own asks: an empty one counts


class Gateway(ABC):
    "Plays the test rows. `data_paths`: where they are; None: the competition's own place."

    limit_s = 300.0

    def __init__(self, data_paths=None):
        self.data_paths = data_paths
        self.unpack_data_paths()

    @abstractmethod
    def unpack_data_paths(self): ...

    @abstractmethod
    def generate_data_batches(self):
        "Yield ((what predict is given, …), ids of the rows)."

    @abstractmethod
    def competition_specific_validation(self, answer, row_ids): ...

    def run(self):
        "Ask for everything, and write the submission."
        client, answers = Client(self.limit_s), []
        try:
            for given, row_ids in self.generate_data_batches():
                answer = client.send("predict", *given)
                if not isinstance(answer, pandas.DataFrame) or len(answer) != len(row_ids):
                    raise ValueError(f"{len(row_ids)} rows were asked for, and the answer is {answer!r}")
                self.competition_specific_validation(answer, row_ids)
                answers.append(answer)
        finally:
            client.close()
        pandas.concat(answers).to_csv("submission.csv", index=False)
