"""One line per answered request, for those who join them with what users did next."""

import json
import logging

from protos import recommender_pb2

log = logging.getLogger(__name__)


class RequestLog:
    """Writes a JSON document per answer; callers' texts are escaped, so that a line stays a line."""

    def __init__(self, *, enabled: bool = False) -> None:
        """Says nothing unless `enabled`: user ids are in it."""
        self._enabled = enabled

    def answered(
        self,
        request: recommender_pb2.RecommendRequest,
        response: recommender_pb2.RecommendResponse,
        traceparent: str,
    ) -> None:
        """`traceparent` as the caller sent it, or ""."""
        if not self._enabled:
            return
        document = {
            "request_id": response.request_id,
            "traceparent": traceparent,
            "user_id": request.user_id,
            "surface": request.surface,
            "context": dict(request.context),
            "item_ids": [entry.item.item_id for entry in response.items],
            "source": recommender_pb2.Source.Name(response.source),
            "degraded": [recommender_pb2.Degradation.Name(each) for each in response.degraded],
            "state_version": response.state_version,
            "bundle_version": response.bundle_version,
            "timings_ms": {stage: round(spent, 3) for stage, spent in response.timings_ms.items()},
        }
        log.info("%s", json.dumps(document))
