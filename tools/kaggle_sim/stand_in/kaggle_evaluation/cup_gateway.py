"The gateway of a competition of tables: groups of rows of test.csv, in the rerun of the hidden ones."

import os
from pathlib import Path

import pandas

from .core.base_gateway import IS_RERUN, Gateway

HERE = Path(__file__).resolve().parents[1]


class CupGateway(Gateway):
    "Groups of CUP_ROWS rows, each with CUP_LIMIT_S seconds; in the rerun those of the file CUP_HIDDEN."

    limit_s = float(os.environ.get("CUP_LIMIT_S", "30"))

    def unpack_data_paths(self):
        hidden = os.environ.get("CUP_HIDDEN") if IS_RERUN else None
        self.file = Path(self.data_paths[0]) if self.data_paths else Path(hidden or HERE / "test.csv")

    def generate_data_batches(self):
        rows, size = pandas.read_csv(self.file), int(os.environ.get("CUP_ROWS", "4"))
        for first in range(0, len(rows), size):
            group = rows[first : first + size].reset_index(drop=True)
            yield (group,), list(group["id"])

    def competition_specific_validation(self, answer, row_ids):
        if list(answer["id"]) != list(row_ids) or answer.isna().any().any():
            raise ValueError(f"the ids {row_ids} were asked for, and {list(answer['id'])} answered")
