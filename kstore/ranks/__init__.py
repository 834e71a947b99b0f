"""The ranks of one job: who they are, where they leave word for each other, and how they agree."""

from kstore.ranks.agreement import Agreement, Offer, Superseded, Verdict
from kstore.ranks.board import Board, GroupBoard, StoreBoard
from kstore.ranks.job import Rank, find_rank

__all__ = ["Agreement", "Board", "GroupBoard", "Offer", "Rank", "StoreBoard", "Superseded", "Verdict", "find_rank"]
