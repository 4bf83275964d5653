"""What is shown of a household: its segments, what is recommended, what it really bought next."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.complete_journey.roles import Deployment
from protos.admin_pb2 import UserDescription
from protos.recommender_pb2 import RecommendRequest, RecommendResponse
from services import clients
from services.channels import Target
from services.cli.output import age_text, time_text
from services.cli.recommend import describe

TIMEOUT_S = 30.0
NUM_SHOWN = 20


@dataclass(frozen=True)
class Purchases:
    """What a household bought in some weeks."""

    items: AbstractSet[int]
    first_time_ms: int


def recommend(where: Deployment, household: str, time_ms: int = 0) -> RecommendResponse:
    """For a household, as of a time: purchases are of 2017."""
    request = RecommendRequest(user_id=household, k=NUM_SHOWN, time_ms=time_ms)
    return clients.recommend(Target(where.recommender), request, TIMEOUT_S)


def describe_household(where: Deployment, household: str) -> UserDescription:
    """What the state node holds of a household."""
    return clients.describe_user(Target(where.state), household, 0, TIMEOUT_S)


def show_segments(console: Console, moments: dict[str, UserDescription]) -> None:
    """The three segments at several moments, side by side."""
    table = Table("", *moments)
    for name in ("recent", "mid_term", "lifecycle"):
        counts = [f"{getattr(user, name)} interactions" for user in moments.values()]
        table.add_row(f"{name.replace('_', '-')} segment", *counts)
    users = list(moments.values())
    table.add_row("lifecycle boundary", *(str(user.meta.lifecycle_boundary) for user in users))
    table.add_row("newest purchase", *(time_text(user.meta.newest_event_time_ms) for user in users))
    table.add_row("summary", *(_summary(user) for user in users))
    console.print(table)


def _summary(user: UserDescription) -> str:
    if not user.summaries:
        return "none"
    newest = max(user.summaries, key=lambda summary: summary.boundary)
    return f"up to {newest.boundary}, {age_text(newest.built_at_ms)} old"


def show_recommendations(
    console: Console, reply: RecommendResponse, bought_next: AbstractSet[int]
) -> None:
    """The list, with what was really bought marked."""
    table = Table("#", "item", "product", "semantic ID", "score", "bought next?")
    for rank, entry in enumerate(reply.items, 1):
        bought = "[bold green]yes[/]" if entry.item.item_id in bought_next else ""
        sid = "-".join(map(str, entry.sid))
        table.add_row(
            str(rank),
            str(entry.item.item_id),
            escape(entry.item.title),
            sid,
            f"{entry.score:.2f}",
            bought,
        )
    console.print(table)
    console.print(describe(reply), highlight=False, markup=False)


@dataclass(frozen=True)
class Comparison:
    """Mean share of the next purchases found among as many recommendations."""

    households: int
    personal: float
    popular: float


def compare(where: Deployment, bought_next: dict[str, Purchases]) -> Comparison:
    """Recall of the recommendations, against popular items for everybody."""
    popular = recommend(where, "a household that does not exist")
    popular_items = {entry.item.item_id for entry in popular.items}
    personal, common = 0.0, 0.0
    for household, bought in bought_next.items():
        reply = recommend(where, household, bought.first_time_ms)
        found = bought.items & {entry.item.item_id for entry in reply.items}
        personal += len(found) / len(bought.items)
        common += len(bought.items & popular_items) / len(bought.items)
    count = len(bought_next)
    return Comparison(count, personal / count, common / count)
