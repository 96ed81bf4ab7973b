"""A place where workers that may die leave things for each other, and rounds that a quorum of them can close.

Others use `place.MeetingPlace` and `quorum` (Quorum, Share, put_share, closed_shares, try_to_join, answer).
"""
