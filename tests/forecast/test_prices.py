"Prices are lines of a file; one's own win, and what is no price is refused with its file."

import pytest

from spectrakit.forecast.prices import price_of, prices
from spectrakit.system.errors import RequestError
from spectrakit.system.hardware import Gpu

A100 = Gpu("NVIDIA A100-SXM4-80GB", 80.0, (8, 0))
T4 = Gpu("Tesla T4", 15.0, (7, 5))


@pytest.fixture
def own(tmp_path, monkeypatch):
    "Writes a table of one's own beside the notebook."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    return (tmp_path / "profiles" / "prices.yaml").write_text


def test_ones_own_price_wins_and_what_stands_in_no_table_has_none(own):
    assert price_of([T4]) is None and price_of([A100, T4]) is None and price_of([]) is None
    own("A100-80GB: 3.0\nT4: {dollars: 0.35, as_of: 2026-11-23, where: here}\n")
    assert price_of([A100]).dollars == 3.0 and price_of([A100, A100]).dollars == 6.0
    assert price_of([T4]).reason == "0.35 $/h for T4 (here, as of 2026-11-23)"
    assert price_of([Gpu("NVIDIA A100-PCIE-40GB", 40.0, (8, 0))]) is None  # another one


@pytest.mark.parametrize("line", ["A100-80GB: -1", "A100-80GB: true", "A100-80GB: cheap", "A100-80GB: {as_of: 2026}"])
def test_what_is_no_price_is_refused_with_its_file(own, line):
    own(line + "\n")
    with pytest.raises(RequestError, match=r"prices\.yaml the price of A100-80GB is .*\. Write dollars per hour"):
        prices()
