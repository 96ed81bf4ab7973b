"""A place where workers that may die leave things for each other, and rounds that a quorum of them can close.

Others use `place.MeetingPlace` and `quorum` (Quorum, Share, bring, settled, come_in, answer).
"""
