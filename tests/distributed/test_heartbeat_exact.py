"""When a rank counts as stuck, and at which step ranks act together, with a clock that only the test moves."""

import threading

import pytest

from spectrakit.distributed.hang_detector import (
    FAILED,
    HURRY,
    SAVE_NOW,
    STOP,
    HangDetector,
    HangLimits,
    Heartbeat,
    RankStates,
    SharedPage,
    agreed,
    announce,
    checkpoint_file,
    raise_flag,
    request,
    requested,
    requested_by_files,
    stop_file,
)


class Page:
    "A page for two ranks that train (or have said nothing), and a detector that allows `floor_s` seconds of silence."

    def __init__(self, floor_s: float = 30.0, factor: float = 20.0, begun: bool = True, **options: float):
        self.now, self.page = 0.0, SharedPage(None, 2)
        self.ranks = [Heartbeat(self.page, rank) for rank in (0, 1)]
        self.detector = HangDetector(
            RankStates(self.page), HangLimits(factor, floor_s, **options), clock=lambda: self.now
        )
        for rank in self.ranks if begun else ():
            rank.begin(0)
        self.detector.find_stuck()

    def stuck_at(self, seconds: float) -> int | None:
        "The rank that is stuck when the clock shows `seconds`."
        self.now = seconds
        found = self.detector.find_stuck()
        return None if found is None else found.rank


def test_a_rank_is_stuck_once_it_has_been_silent_for_longer_than_the_floor():
    page = Page(30.0)
    assert page.stuck_at(30.0) is None
    page.ranks[0].beat()
    assert page.stuck_at(30.5) == 1
    page.ranks[1].beat()
    assert page.stuck_at(31.0) is None and page.stuck_at(60.6) == 0


def test_of_two_that_are_silent_the_one_behind_is_stuck():
    page = Page(30.0)
    page.ranks[0].step(1)
    assert page.stuck_at(1.0) is None and page.stuck_at(40.0) == 1


def test_slow_steps_are_given_time():
    page = Page(30.0, factor=20.0)
    page.ranks[1].report_pace(5.0)
    assert page.stuck_at(99.0) is None and page.stuck_at(101.0) is not None


def test_what_takes_long_by_its_nature_is_given_ten_times_as_long():
    page = Page(30.0)
    page.ranks[0].beat("saving")
    assert page.stuck_at(1.0) is None and page.stuck_at(299.0) is None and page.stuck_at(302.0) is not None


def test_nobody_is_waited_for_beyond_the_most():
    page = Page(30.0, most_s=10.0)
    page.ranks[1].report_pace(50.0)
    assert page.stuck_at(10.0) is None and page.stuck_at(10.5) is not None


def test_a_start_of_which_no_rank_has_said_anything_gets_a_minute_also_where_time_is_short():
    page = Page(20.0, most_s=20.0, begun=False)
    assert page.stuck_at(59.0) is None and page.stuck_at(61.0) == 0


def test_the_first_sign_of_life_ends_the_patience_with_a_start_but_the_others_are_as_slow():
    page = Page(20.0, most_s=20.0, begun=False)
    assert page.stuck_at(39.0) is None
    page.ranks[1].beat("connecting")
    assert page.stuck_at(40.0) is None and page.stuck_at(59.5) is None and page.stuck_at(60.5) == 0


def test_one_that_waits_for_no_other_has_not_begun_while_it_prepares():
    page = Page(20.0, most_s=20.0, first_s=90.0, alone=True)
    for rank in page.ranks:
        rank.beat("preparing")
    assert page.stuck_at(1.0) is None and page.stuck_at(90.0) is None and page.stuck_at(92.0) == 0
    for rank in page.ranks:
        rank.beat("predicting")
    assert page.stuck_at(100.0) is None and page.stuck_at(121.0) == 0


def test_a_start_has_no_more_than_its_own_limit():
    page = Page(3.0, most_s=20.0, start_s=15.0, begun=False)
    assert page.stuck_at(14.5) is None and page.stuck_at(15.5) == 0


def test_a_rank_that_is_done_is_never_stuck():
    page = Page(30.0)
    for rank in page.ranks:
        rank.beat("done")
    assert page.stuck_at(1e6) is None


# agreement


def test_all_ranks_act_at_the_step_that_rank_0_has_announced():
    page = Page()
    at = announce(page.ranks[0], 3, STOP)
    assert at > 3  # a rank may be a step ahead
    for rank in page.ranks:
        rank.begin(at - 1)
    assert not page.ranks[1].step(at - 1)
    acted = [rank.step(at) for rank in page.ranks]
    assert acted == [True, True] and [agreed(rank, at) for rank in page.ranks] == [STOP, STOP]
    assert not page.ranks[0].step(at + 1) and agreed(page.ranks[0], at + 1) == 0


def test_a_stop_is_asked_for_by_a_rank_or_from_outside():
    page = Page()
    assert requested(page.page) == 0
    raise_flag(page.ranks[1], HURRY)
    request(page.page, STOP)
    assert requested(page.page) & (STOP | HURRY) == STOP | HURRY


def test_a_rank_that_waits_for_a_failed_one_is_told():
    page = Page()
    raise_flag(page.ranks[1], FAILED)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            page.ranks[0].step(5)
        except RuntimeError as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(30)
    assert [str(error) for error in told] == ["another process of this run has failed"]


@pytest.mark.parametrize(("file", "code"), [(stop_file, STOP), (checkpoint_file, SAVE_NOW)])
def test_a_file_in_the_runs_folder_asks(tmp_path, file, code):
    assert requested_by_files(tmp_path) == 0
    file(tmp_path).touch()
    assert requested_by_files(tmp_path) == code
